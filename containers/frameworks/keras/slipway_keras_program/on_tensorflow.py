"""Training in Keras on TensorFlow: a model and an optimizer of Keras, whose gradients the strategy adds up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from slipway_program.parameters import Arrays, Cell, Facts
from slipway_program.tf_rank import TensorFlowRank

from .network import KerasModel, mean_loss


class OnTensorFlow(KerasModel, TensorFlowRank):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        with self._strategy.scope():
            self._make(cell)
        for name, variable in self._all.items():
            variable.assign(self._layouts.to_keras(name, start[name]))
        self._compile(lambda images: self._model(images, training=False))

    def _step(self, images: Any, labels: Any, seed: Any = None) -> Any:
        """Train on one rank's share. Weight decay is of weights only and goes through the momentum, unlike Keras' own."""
        self._dropout_seed.seed = seed
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

    def state(self) -> Arrays:
        return {name: self._layouts.to_canonical(name, np.asarray(variable)) for name, variable in self._all.items()}

    def momentum(self) -> Arrays:
        return self._as_others_keep({name: np.asarray(variable) for name, variable in self._momentums().items()})

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for name, variable in self._all.items():
            variable.assign(self._layouts.to_keras(name, state[name]))
        for name, variable in self._momentums().items():
            variable.assign(self._as_keras_keeps(name, momentum[name]))

    def provenance(self) -> Facts:
        return {**super().provenance(), "keras_backend": keras.backend.backend(), "tensorflow_version": tf.__version__}
