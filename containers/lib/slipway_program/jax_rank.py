"""What every trainer on JAX has alike: how its processes find each other, the mesh over all of them, and the compiled step. Imported where
JAX is."""

import os
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .parameters import Cell, Facts
from .trainer import Trainer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MATRICES = {"fp32": "highest", "tf32": "tensorfloat32"}
"""What JAX calls the precision of products of matrices and of convolutions. By itself it takes tf32 on a GPU."""


class JaxRank(Trainer):
    """One rank, with one device. Its axis in the mesh is `ranks`. A sub-class sets `_state`, parameters and running statistics by their
    names, and `_memory`, what the update rule remembers, on all ranks the same, and gives to `_compile` what is computed."""

    _state: Dict[str, "jax.Array"] = {}
    _memory = None  # type: Any

    def __init__(self, cell: Cell, dataset: Any) -> None:
        super().__init__(cell, dataset)
        self._mesh = join_mesh(cell["device"], cell["precision"])
        self.device = "cuda:%s" % os.environ["LOCAL_RANK"] if cell["device"] == "cuda" else "cpu"

    def _compile(self, step: Callable[..., Any], forward: Callable[[Any, Any], Any]) -> None:
        """Compile `step`, on one rank's share: state, memory, images, labels and, where something is dropped, [a seed] -> state, memory,
        [loss]. `forward`: state and images as they are read -> outputs, as the network is outside of training."""
        parts, everywhere = PartitionSpec("ranks"), PartitionSpec()
        takes = (everywhere, everywhere, parts, parts) + (parts,) * self._drops
        shared = jax.shard_map(step, mesh=self._mesh, in_specs=takes, out_specs=(everywhere, everywhere, parts), check_vma=False)
        self._jitted = jax.jit(shared, donate_argnums=(0, 1))
        self._compiled = {}  # type: Dict[Tuple[int, ...], Any]  # by the shape of a batch
        self._forward = jax.jit(forward)

    def prepare(self, shape: Tuple[int, int], training: bool) -> None:
        zeros = np.zeros(shape, np.int32)
        if training:
            self._compiled[shape] = self._jitted.lower(self._state, self._memory, *self._shares(zeros, zeros)).compile()
        else:
            self.outputs(zeros)

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        compiled = self._compiled.get(images.shape, self._jitted)
        self._state, self._memory, loss = jax.block_until_ready(compiled(self._state, self._memory, *self._shares(images, labels)))
        return np.asarray(loss.addressable_data(0))[0]

    def _shares(self, images: np.ndarray, labels: np.ndarray) -> List[jax.Array]:
        """Return the global batch, of which this is this rank's part."""
        own = [images, labels.astype(np.int32)] + ([np.array([self.dropout_seed], np.uint32)] if self._drops else [])
        sharding = NamedSharding(self._mesh, PartitionSpec("ranks"))
        return [jax.make_array_from_process_local_data(sharding, array) for array in own]

    def _normalised(self, images: jax.Array) -> jax.Array:
        """Normalise to mean 0 and deviation 1 over the training split; leave token ids as they are."""
        return images if self._of_tokens else (images.astype(jnp.float32) - self._mean) * self._scale

    def outputs(self, images: np.ndarray) -> np.ndarray:
        state = {name: array.addressable_data(0) for name, array in self._state.items()}
        return np.asarray(self._forward(state, images))

    def leave(self) -> None:
        if jax.process_count() > 1:
            jax.distributed.shutdown()

    def total(self, values: np.ndarray) -> np.ndarray:
        if jax.process_count() == 1:
            return values
        gathered = process_allgather(values.astype(np.float64).view(np.uint32))  # type: np.ndarray  # 64 bit numbers are off in JAX
        return np.ascontiguousarray(gathered).view(np.float64).reshape(-1, len(values)).sum(axis=0)

    def _everywhere(self, arrays: Mapping[str, np.ndarray]) -> Dict[str, jax.Array]:
        """Return the same on all ranks; copies, because JAX may use the memory of an array as it is."""
        sharding = NamedSharding(self._mesh, PartitionSpec())
        return {name: jax.make_array_from_process_local_data(sharding, np.array(array)) for name, array in arrays.items()}

    def provenance(self) -> Facts:
        found = {"jaxlib_version": jax.lib.__version__, "backend": None}  # type: Facts
        if self.device == "cpu":
            return dict(found, backend="gloo" if jax.process_count() > 1 else None)
        device, tf32 = jax.local_devices()[0], jax.config.jax_default_matmul_precision == MATRICES["tf32"]
        return dict(found, backend="nccl", gpu_model=device.device_kind, gpu_uuid=granted_gpu(), tf32=tf32)

    def memory(self) -> Tuple[int, str]:
        if self.device == "cpu":
            return super().memory()
        told = jax.local_devices()[0].memory_stats() or {}
        return int(told.get("peak_bytes_in_use", 0)), "cuda_allocator"


def granted_gpu() -> Optional[str]:
    """Return the UUID of this rank's GPU, by which Slipway grants them; None where somebody else has said which."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    place = int(os.environ["LOCAL_RANK"])
    return seen[place] if place < len(seen) and seen[place].startswith("GPU-") else None


def join_mesh(kind: str, precision: str) -> Mesh:
    """Join the ranks of this run, gloo between CPUs, NCCL between GPUs. One device of each, in the order of the ranks.

    JAX's coordinator, which runs in rank 0, listens on the run's own address: on all addresses of the node, as it does by itself, whoever
    can connect could disturb the run.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    jax.config.update("jax_platforms", kind)
    if kind == "cuda":
        jax.config.update("jax_default_matmul_precision", MATRICES[precision])
    if world_size > 1:
        host = os.environ["MASTER_ADDR"]
        address = ("[%s]:%s" if ":" in host else "%s:%s") % (host, os.environ["MASTER_PORT"])
        if kind == "cpu":
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            _choose_interface("lo" if host in LOOPBACK else os.environ.get("GLOO_SOCKET_IFNAME"))
        own = {"local_device_ids": [int(os.environ["LOCAL_RANK"])]} if kind == "cuda" else {}
        jax.distributed.initialize(address, world_size, rank, coordinator_bind_address=address, **own)
    return Mesh(np.array(sorted(jax.devices(), key=lambda device: device.process_index)), ("ranks",))


def _choose_interface(interface: Optional[str]) -> None:
    """Choose the interface for Gloo, which would look up the node's own name: that need not resolve, or resolves to the loopback. JAX has
    no setting for it.
    """
    if interface is not None:
        from jax._src.lib import _jax

        _jax.make_gloo_tcp_collectives = partial(_jax.make_gloo_tcp_collectives, interface=interface)
