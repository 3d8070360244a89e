"""Training in Keras on JAX: the model and the optimizer of Keras as functions without state, in one compiled step over the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from slipway_program.jax_rank import JaxRank
from slipway_program.parameters import Arrays
from slipway_program.trainer import drops

from .layers import Dice
from .layouts import to_canonical, to_tensorflow
from .network import build, named_running, named_variables


class OnJax(JaxRank):
    """One rank. Weights, and what the optimizer remembers, are on all ranks the same; running statistics are those of rank 0, as in
    PyTorch's DistributedDataParallel."""

    framework = "keras"
    version = keras.__version__
    _weights: dict[str, Any]
    _remembered: list[Any]

    def __init__(self, cell: Mapping[str, Any], dataset: Any, start: Arrays) -> None:
        super().__init__()
        constants: Mapping[str, float] = cell["optimizer"]
        self._rate, self._decay = constants["learning_rate"], constants["weight_decay"]
        self._mean = np.asarray(dataset.mean, np.float32)
        self._scale = 1 / np.maximum(np.asarray(dataset.std, np.float32), 1)
        self._dice, self._drops = Dice(), drops(cell["model_layers"])
        self._model = build(cell["model_layers"], self._dice)
        self._optimizer = keras.optimizers.SGD(self._rate, momentum=constants["momentum"])
        self._optimizer.build(self._model.trainable_variables)
        self._names, self._running = list(named_variables(self._model)), list(named_running(self._model))
        self.restore(start, {name: np.zeros_like(start[name]) for name in self._names})
        parts, everywhere = P("ranks"), P()
        step = jax.shard_map(
            self._step, mesh=self._mesh, in_specs=(everywhere, everywhere, parts, parts, *[parts] * self._drops),
            out_specs=(everywhere, everywhere, parts), check_vma=False,
        )  # fmt: skip
        self._compiled = jax.jit(step, donate_argnums=(0, 1))
        self._forward = jax.jit(lambda weights, images: self._called(weights, images, training=False)[0])

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        own = (images, labels.astype(np.int32), *([np.array([self.dropout_seed], np.uint32)] if self._drops else []))
        shares = [self._shared(array) for array in own]
        self._weights, self._remembered, loss = jax.block_until_ready(self._compiled(self._weights, self._remembered, *shares))
        return loss.addressable_data(0)[0]

    def _step(self, weights: Any, remembered: Any, images: Any, labels: Any, seed: Any = None) -> Any:
        """On one rank's share. Keras' own weight decay is another one: here it goes through the momentum, and to weights only."""
        self._dice.seed = None if seed is None else seed[0]

        def loss_of(trained: Any) -> Any:
            outputs, running = self._called({**weights, **trained}, images, training=True)
            return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)), running

        (loss, running), gradients = jax.value_and_grad(loss_of, has_aux=True)({name: weights[name] for name in self._names})
        gradients = lax.pmean(gradients, "ranks")
        running = lax.psum([jnp.where(lax.axis_index("ranks") == 0, value, 0) for value in running], "ranks")
        decayed = [gradients[name] + self._decay * weights[name] if weights[name].ndim > 1 else gradients[name] for name in self._names]
        values, remembered = self._optimizer.stateless_apply(remembered, decayed, [weights[name] for name in self._names])
        return dict(zip((*self._names, *self._running), (*values, *running), strict=True)), remembered, loss[None]

    def _called(self, weights: Any, images: Any, *, training: bool) -> Any:
        """The model's outputs, and its new running statistics; images get mean 0 and deviation 1 over the training split."""
        normalised = (jnp.asarray(images, jnp.float32) - self._mean) * self._scale
        own = ([weights[name] for name in names] for names in (self._names, self._running))
        return self._model.stateless_call(*own, normalised, training=training)

    def outputs(self, images: np.ndarray) -> np.ndarray:
        weights = {name: array.addressable_data(0) for name, array in self._weights.items()}
        return np.asarray(self._forward(weights, images))

    def state(self) -> Arrays:
        return {name: to_canonical(np.asarray(array.addressable_data(0))) for name, array in self._weights.items()}

    def momentum(self) -> Arrays:
        """Keras keeps v = momentum v - rate gradient, others v = momentum v + gradient. In 64 bits, so that nothing is rounded."""
        found = [np.asarray(array.addressable_data(0), np.float64) for array in self._remembered[-len(self._names) :]]
        return {name: to_canonical(array) / -self._rate for name, array in zip(self._names, found, strict=True)}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        """Beside the momentum the optimizer has its rate and a count of steps, which decides nothing."""
        self._weights = self._everywhere({name: to_tensorflow(state[name]) for name in (*self._names, *self._running)})
        others = [np.asarray(variable) for variable in self._optimizer.variables[: -len(self._names)]]
        moved = [(-self._rate * to_tensorflow(momentum[name])).astype(np.float32) for name in self._names]
        self._remembered = list(self._everywhere({str(number): array for number, array in enumerate((*others, *moved))}).values())

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "keras_backend": keras.backend.backend(), "jax_version": jax.__version__}
