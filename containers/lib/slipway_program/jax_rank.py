"""What every trainer on JAX has alike: how its processes find each other, and the mesh over all of them. Imported where JAX is."""

import os
from functools import partial
from typing import Any, Dict, Mapping, Optional

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .trainer import Trainer

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class JaxRank(Trainer):
    """One rank, with one device. Its axis in the mesh is `ranks`."""

    def __init__(self) -> None:
        self._mesh = join_mesh()

    def barrier(self) -> None:
        self.total(np.zeros(1))

    def leave(self) -> None:
        if jax.process_count() > 1:
            jax.distributed.shutdown()

    def total(self, values: np.ndarray) -> np.ndarray:
        if jax.process_count() == 1:
            return values
        gathered = process_allgather(values.astype(np.float64).view(np.uint32))  # type: np.ndarray  # 64 bit numbers are off in JAX
        return np.ascontiguousarray(gathered).view(np.float64).reshape(-1, len(values)).sum(axis=0)

    def _shared(self, array: np.ndarray) -> jax.Array:
        """The global batch, of which `array` is this rank's part."""
        return jax.make_array_from_process_local_data(NamedSharding(self._mesh, PartitionSpec("ranks")), array)

    def _everywhere(self, arrays: Mapping[str, np.ndarray]) -> Dict[str, jax.Array]:
        """The same on all ranks; copies, because JAX may use the memory of an array as it is."""
        sharding = NamedSharding(self._mesh, PartitionSpec())
        return {name: jax.make_array_from_process_local_data(sharding, np.array(array)) for name, array in arrays.items()}

    def provenance(self) -> Dict[str, Any]:
        return {"jaxlib_version": jax.lib.__version__, "backend": "gloo" if jax.process_count() > 1 else None}


def join_mesh() -> Mesh:
    """Join the ranks of this run, gloo between CPUs. One device of each, in the order of the ranks.

    JAX's coordinator, which runs in rank 0, listens on the run's own address: on all addresses of the node, as it does by itself, whoever
    can connect could disturb the run.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    jax.config.update("jax_platforms", "cpu")
    if world_size > 1:
        host = os.environ["MASTER_ADDR"]
        address = ("[%s]:%s" if ":" in host else "%s:%s") % (host, os.environ["MASTER_PORT"])
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        _choose_interface("lo" if host in LOOPBACK else os.environ.get("GLOO_SOCKET_IFNAME"))
        jax.distributed.initialize(address, world_size, rank, coordinator_bind_address=address)
    return Mesh(np.array(sorted(jax.devices(), key=lambda device: device.process_index)), ("ranks",))


def _choose_interface(interface: Optional[str]) -> None:
    """Gloo would look up the node's own name, which need not resolve, or resolves to the loopback; JAX has no setting for it."""
    if interface is not None:
        from jax._src.lib import _jax

        _jax.make_gloo_tcp_collectives = partial(_jax.make_gloo_tcp_collectives, interface=interface)
