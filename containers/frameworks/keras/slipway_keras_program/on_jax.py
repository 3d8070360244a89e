"""Training in Keras on JAX: the model and the optimizer of Keras as functions without state, in one compiled step over the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax
from slipway_program.jax_rank import JaxRank
from slipway_program.parameters import Arrays, Cell, Facts

from .network import KerasModel, mean_loss


class OnJax(KerasModel, JaxRank):
    """One rank. Weights, and what the optimizer remembers, are on all ranks the same; running statistics are those of rank 0, as in
    PyTorch's DistributedDataParallel."""

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        self._make(cell)
        self.restore(start, {name: np.zeros_like(start[name]) for name in self._variables})
        self._compile(self._step, lambda weights, images: self._called(weights, images, training=False)[0])

    def _step(self, weights: Any, remembered: Any, images: Any, labels: Any, seed: Any = None) -> Any:
        """Train on one rank's share. Weight decay is of weights only and goes through the momentum, unlike Keras' own."""
        self._dropout_seed.seed = None if seed is None else seed[0]

        def loss_of(trained: Any) -> Any:
            outputs, running = self._called({**weights, **trained}, images, training=True)
            return mean_loss(labels, outputs), running

        (loss, running), gradients = jax.value_and_grad(loss_of, has_aux=True)({name: weights[name] for name in self._variables})
        gradients = lax.pmean(gradients, "ranks")
        running = lax.psum([jnp.where(lax.axis_index("ranks") == 0, value, 0) for value in running], "ranks")
        own = [weights[name] for name in self._variables]
        decayed = [
            gradient + self._decay * weight if weight.ndim > 1 else gradient
            for gradient, weight in zip((gradients[name] for name in self._variables), own, strict=True)
        ]
        values, remembered = self._optimizer.stateless_apply(remembered, decayed, own)
        return dict(zip(self._all, (*values, *running), strict=True)), remembered, loss[None]

    def _called(self, weights: Any, images: Any, *, training: bool) -> Any:
        with keras.StatelessScope([(variable, weights[name]) for name, variable in self._all.items()]) as scope:
            outputs = self._model(self._normalised(images), training=training)
        return outputs, [scope.get_current_value(variable) for variable in self._running.values()]

    def state(self) -> Arrays:
        found = {name: np.asarray(array.addressable_data(0)) for name, array in self._state.items()}
        return {name: self._layouts.to_canonical(name, array) for name, array in found.items()}

    def momentum(self) -> Arrays:
        found = [np.asarray(array.addressable_data(0)) for array in self._memory[-len(self._variables) :]]
        return self._as_others_keep(dict(zip(self._variables, found, strict=True)))

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        """Restore; beside the momentum the optimizer has its rate and a count of steps, which decides nothing."""
        self._state = self._everywhere({name: self._layouts.to_keras(name, state[name]) for name in self._all})
        others = [np.asarray(variable) for variable in self._optimizer.variables[: -len(self._variables)]]
        moved = [self._as_keras_keeps(name, momentum[name]) for name in self._variables]
        self._memory = list(self._everywhere({str(number): array for number, array in enumerate((*others, *moved))}).values())

    def provenance(self) -> Facts:
        return {**super().provenance(), "keras_backend": keras.backend.backend(), "jax_version": jax.__version__}
