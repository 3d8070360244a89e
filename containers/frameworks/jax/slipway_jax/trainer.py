"""Training in JAX: one compiled step over the mesh, in which each rank has its own part of the global batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from slipway_program.jax_rank import JaxRank
from slipway_program.parameters import Arrays, trained

from .network import Network
from .optimizers import first_memory, update


class JaxTrainer(JaxRank):
    """One rank. State is on all ranks the same; running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "jax"
    version = jax.__version__

    def __init__(self, cell: Mapping[str, Any], dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        self._network = Network(cell["model_layers"], nhwc=cell["layout"] == "nhwc")
        self._optimizer: Mapping[str, Any] = cell["optimizer"]
        self.restore(start, first_memory(self._optimizer, trained(start)))
        self._compile(self._step, lambda state, images: self._network(state, self._normalised(images), training=False)[0])

    def _step(self, state: Any, momentum: Any, images: jax.Array, labels: jax.Array, seed: jax.Array | None = None) -> Any:
        """On one rank's share."""
        dice = None if seed is None else jax.random.key(seed[0])

        def loss_of(weights: Any) -> Any:
            outputs, running = self._network({**state, **weights}, self._normalised(images), training=True, dice=dice)
            return _mean_loss(outputs, labels), running

        weights = trained(state)
        (loss, running), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        gradients = lax.pmean(gradients, "ranks")
        running = lax.psum(jax.tree.map(lambda value: jnp.where(lax.axis_index("ranks") == 0, value, 0), running), "ranks")
        updated, momentum = update(self._optimizer, weights, gradients, momentum)
        return {**state, **updated, **running}, momentum, loss[None]

    def state(self) -> Arrays:
        return {name: np.asarray(array.addressable_data(0)) for name, array in self._state.items()}

    def momentum(self) -> Arrays:
        return {name: np.asarray(array.addressable_data(0)) for name, array in self._memory.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        self._state, self._memory = self._everywhere(state), self._everywhere(momentum)


def _mean_loss(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Of all samples alike; that of a sequence is the mean over its tokens."""
    losses = -jnp.take_along_axis(jax.nn.log_softmax(outputs), jnp.maximum(labels, 0)[..., None], -1)[..., 0]
    if labels.ndim == 1:
        return losses.mean()
    return (jnp.where(labels >= 0, losses, 0).sum(1) / (labels >= 0).sum(1)).mean()
