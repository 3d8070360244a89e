"""Training in JAX: one compiled step over the mesh, in which each rank has its own part of the global batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import slipway_reader
from jax import lax
from jax.sharding import PartitionSpec as P
from slipway_program.jax_rank import JaxRank
from slipway_program.parameters import Arrays, trained
from slipway_program.trainer import drops

from .network import Network
from .optimizers import first_memory, update


class JaxTrainer(JaxRank):
    """One rank. State is on all ranks the same; running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "jax"
    version = jax.__version__
    _state: dict[str, Any]
    _momentum: dict[str, Any]
    """What the update rule remembers."""

    def __init__(self, cell: Mapping[str, Any], dataset: Any, start: Arrays) -> None:
        super().__init__()
        self._network = Network(cell["model_layers"], nhwc=cell["layout"] == "nhwc")
        self._optimizer: Mapping[str, Any] = cell["optimizer"]
        self._of_tokens = isinstance(dataset, slipway_reader.Sequences)
        self._mean = 0 if self._of_tokens else np.asarray(dataset.mean, np.float32)
        self._scale = 1 if self._of_tokens else 1 / np.maximum(np.asarray(dataset.std, np.float32), 1)
        self.restore(start, first_memory(self._optimizer, trained(start)))
        self._drops = drops(cell["model_layers"])
        parts, everywhere = P("ranks"), P()
        step = jax.shard_map(
            self._step, mesh=self._mesh, in_specs=(everywhere, everywhere, parts, parts, *[parts] * self._drops),
            out_specs=(everywhere, everywhere, parts), check_vma=False,
        )  # fmt: skip
        self._jitted = jax.jit(step, donate_argnums=(0, 1))
        self._compiled: dict[tuple[int, ...], Any] = {}  # by the shape of a batch
        self._forward = jax.jit(lambda state, images: self._network(state, self._normalised(images), training=False)[0])

    def prepare(self, shape: tuple[int, int], training: bool) -> None:
        zeros = np.zeros(shape, np.int32)
        if training:
            self._compiled[shape] = self._jitted.lower(self._state, self._momentum, *self._shares(zeros, zeros)).compile()
        else:
            self.outputs(zeros)

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        compiled = self._compiled.get(images.shape, self._jitted)
        self._state, self._momentum, loss = jax.block_until_ready(compiled(self._state, self._momentum, *self._shares(images, labels)))
        return np.asarray(loss.addressable_data(0))[0]

    def _shares(self, images: np.ndarray, labels: np.ndarray) -> list[jax.Array]:
        """What a step is given of its batch."""
        own = (images, labels.astype(np.int32), *([np.array([self.dropout_seed], np.uint32)] if self._drops else []))
        return [self._shared(array) for array in own]

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

    def _normalised(self, images: jax.Array) -> jax.Array:
        """Mean 0 and deviation 1 over the training split; token ids as they are."""
        return images if self._of_tokens else (images.astype(jnp.float32) - self._mean) * self._scale

    def outputs(self, images: np.ndarray) -> np.ndarray:
        state = {name: array.addressable_data(0) for name, array in self._state.items()}
        return np.asarray(self._forward(state, images))

    def state(self) -> Arrays:
        return {name: np.asarray(array.addressable_data(0)) for name, array in self._state.items()}

    def momentum(self) -> Arrays:
        return {name: np.asarray(array.addressable_data(0)) for name, array in self._momentum.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        self._state, self._momentum = self._everywhere(state), self._everywhere(momentum)


def _mean_loss(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Of all samples alike; that of a sequence is the mean over its tokens."""
    losses = -jnp.take_along_axis(jax.nn.log_softmax(outputs), jnp.maximum(labels, 0)[..., None], -1)[..., 0]
    if labels.ndim == 1:
        return losses.mean()
    return (jnp.where(labels >= 0, losses, 0).sum(1) / (labels >= 0).sum(1)).mean()
