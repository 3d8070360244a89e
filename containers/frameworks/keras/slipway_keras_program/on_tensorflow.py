"""Training in Keras on TensorFlow: a model and an optimizer of Keras, whose gradients the strategy adds up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from slipway_program.parameters import Arrays
from slipway_program.tf_rank import TensorFlowRank

from .layers import Dice, Layouts
from .network import build, mean_loss, named_running, named_variables


class OnTensorFlow(TensorFlowRank):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "keras"
    version = keras.__version__

    def __init__(self, cell: Mapping[str, Any], dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        constants: Mapping[str, float] = cell["optimizer"]
        self._rate, self._decay = constants["learning_rate"], constants["weight_decay"]
        self._dice, self._layouts = Dice(), Layouts(cell["model_layers"])
        with self._strategy.scope():
            self._model = build(cell["model_layers"], self._dice)
            self._optimizer = keras.optimizers.SGD(self._rate, momentum=constants["momentum"])
            self._optimizer.build(self._model.trainable_variables)
        self._variables, self._running = named_variables(self._model), named_running(self._model)
        for name, variable in self._all.items():
            variable.assign(self._layouts.to_keras(name, start[name]))
        self._compile(lambda images: self._model(images, training=False))

    def _step(self, images: Any, labels: Any, seed: Any = None) -> Any:
        """Train on one rank's share. Weight decay is of weights only and goes through the momentum, unlike Keras' own."""
        self._dice.seed = seed
        weights = self._model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self._model(self._normalised(images), training=True)
            loss = mean_loss(labels, outputs)
            scaled = loss / self._world_size  # the strategy adds up
        gradients = map(tf.convert_to_tensor, tape.gradient(scaled, weights))  # an embedding has a sparse one
        decay = self._decay / self._world_size
        decayed = [
            gradient + decay * weight if len(weight.shape) > 1 else gradient for gradient, weight in zip(gradients, weights, strict=True)
        ]
        self._optimizer.apply(decayed, weights)
        if self._running:
            own = [variable.value * self._is_first for variable in self._running.values()]
            for variable, value in zip(self._running.values(), self._all_reduce(own), strict=True):
                variable.assign(value)
        return loss

    @property
    def _all(self) -> dict[str, Any]:
        return {**self._variables, **self._running}

    def state(self) -> Arrays:
        return {name: self._layouts.to_canonical(name, np.asarray(variable)) for name, variable in self._all.items()}

    def momentum(self) -> Arrays:
        """Convert the momentum: Keras keeps v = momentum v - rate gradient, others v = momentum v + gradient. In 64 bits, so that nothing
        is rounded.
        """
        found = {name: np.asarray(variable, np.float64) / -self._rate for name, variable in self._momentums().items()}
        return {name: self._layouts.to_canonical(name, array) for name, array in found.items()}

    def _momentums(self) -> dict[str, Any]:
        return dict(zip(self._variables, self._optimizer.momentums, strict=True))

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for name, variable in self._all.items():
            variable.assign(self._layouts.to_keras(name, state[name]))
        for name, variable in self._momentums().items():
            variable.assign((-self._rate * self._layouts.to_keras(name, momentum[name])).astype(np.float32))

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "keras_backend": keras.backend.backend(), "tensorflow_version": tf.__version__}
