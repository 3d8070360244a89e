"""Training in JAX: one compiled step over the mesh, in which each rank has its own part of the global batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import lax
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from slipway_program.parameters import Arrays, trained
from slipway_program.trainer import Trainer

from .communication import join_mesh
from .network import Network


class JaxTrainer(Trainer):
    """One rank. State is on all ranks the same; running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "jax"
    version = jax.__version__
    _state: dict[str, Any]
    _momentum: dict[str, Any]

    def __init__(self, cell: Mapping[str, Any], dataset: Any, start: Arrays) -> None:
        self._mesh = join_mesh()
        self._network = Network(cell["model_layers"], nhwc=cell["layout"] == "nhwc")
        self._optimizer: Mapping[str, float] = cell["optimizer"]
        self._mean = np.asarray(dataset.mean, np.float32)
        self._scale = 1 / np.maximum(np.asarray(dataset.std, np.float32), 1)
        self.restore(start, {name: np.zeros_like(array) for name, array in trained(start).items()})
        parts, everywhere = P("ranks"), P()
        step = jax.shard_map(
            self._step, mesh=self._mesh, in_specs=(everywhere, everywhere, parts, parts), out_specs=(everywhere, everywhere, parts),
            check_vma=False,
        )  # fmt: skip
        self._compiled = jax.jit(step, donate_argnums=(0, 1))
        self._forward = jax.jit(lambda state, images: self._network(state, self._normalised(images), training=False)[0])

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        parts = NamedSharding(self._mesh, P("ranks"))
        shares = [jax.make_array_from_process_local_data(parts, array) for array in (images, labels.astype(np.int32))]
        self._state, self._momentum, loss = jax.block_until_ready(self._compiled(self._state, self._momentum, *shares))
        return loss.addressable_data(0)[0]

    def _step(self, state: Any, momentum: Any, images: jax.Array, labels: jax.Array) -> Any:
        """On one rank's share: v = momentum v + gradient, weight -= rate v. Weight decay goes to weights only."""

        def loss_of(weights: Any) -> Any:
            outputs, running = self._network({**state, **weights}, self._normalised(images), training=True)
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[:, None], 1)), running

        constants = self._optimizer
        weights = trained(state)
        (loss, running), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        gradients = lax.pmean(gradients, "ranks")
        running = lax.psum(jax.tree.map(lambda value: jnp.where(lax.axis_index("ranks") == 0, value, 0), running), "ranks")
        for name, weight in weights.items():
            decay = constants["weight_decay"] if weight.ndim > 1 else 0.0
            momentum[name] = constants["momentum"] * momentum[name] + gradients[name] + decay * weight
        updated = {name: weight - constants["learning_rate"] * momentum[name] for name, weight in weights.items()}
        return {**state, **updated, **running}, momentum, loss[None]

    def _normalised(self, images: jax.Array) -> jax.Array:
        """Mean 0 and deviation 1 over the training split."""
        return (images.astype(jnp.float32) - self._mean) * self._scale

    def outputs(self, images: np.ndarray) -> np.ndarray:
        state = {name: array.addressable_data(0) for name, array in self._state.items()}
        return np.asarray(self._forward(state, images))

    def barrier(self) -> None:
        self.total(np.zeros(1))

    def leave(self) -> None:
        if jax.process_count() > 1:
            jax.distributed.shutdown()

    def total(self, values: np.ndarray) -> np.ndarray:
        if jax.process_count() == 1:
            return values
        gathered: np.ndarray = process_allgather(values.astype(np.float64).view(np.uint32))  # 64 bit numbers are off in JAX
        return np.ascontiguousarray(gathered).view(np.float64).reshape(-1, len(values)).sum(axis=0)

    def state(self) -> Arrays:
        return {name: np.asarray(array.addressable_data(0)) for name, array in self._state.items()}

    def momentum(self) -> Arrays:
        return {name: np.asarray(array.addressable_data(0)) for name, array in self._momentum.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        self._state, self._momentum = self._everywhere(state), self._everywhere(momentum)

    def _everywhere(self, arrays: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """The same on all ranks; copies, because JAX may use the memory of an array as it is."""
        sharding = NamedSharding(self._mesh, P())
        return {name: jax.make_array_from_process_local_data(sharding, np.array(array)) for name, array in arrays.items()}

    def provenance(self) -> dict[str, Any]:
        return {"jaxlib_version": jaxlib.__version__, "backend": "gloo" if jax.process_count() > 1 else None}
