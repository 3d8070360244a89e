"""Training in TensorFlow: one tf.function per step, the exchange of gradients by the strategy's collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from slipway_program.parameters import Arrays, Cell, trained
from slipway_program.tf_rank import TensorFlowRank

from .network import forward, to_canonical, to_tensorflow


class TensorflowTrainer(TensorFlowRank):
    """One rank. Each has variables of its own, which are the same on all, since all add the same gradients to the same weights. Running
    statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "tensorflow"
    version = tf.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        self._layers = cell["model_layers"]
        self._optimizer: Mapping[str, float] = cell["optimizer"]
        self._state = {name: tf.Variable(to_tensorflow(array)) for name, array in start.items()}
        self._momentum = {name: tf.Variable(to_tensorflow(np.zeros_like(array))) for name, array in trained(start).items()}
        self._weights = trained(self._state)
        self._compile(lambda images: forward(self._layers, self._state, images, training=False)[0])

    def _step(self, images: Any, labels: Any, seed: Any = None) -> Any:
        """Update by v = momentum v + gradient, weight -= rate v. Weight decay goes to weights only."""
        with tf.GradientTape() as tape:
            outputs, running = forward(self._layers, self._state, self._normalised(images), training=True, seed=seed)
            loss = _mean_loss(outputs, labels)
            scaled = loss / self._world_size  # the collectives add up
        gradients = map(tf.convert_to_tensor, tape.gradient(scaled, list(self._weights.values())))  # an embedding has a sparse one
        own = [*gradients, *(value * self._is_first for value in running.values())]
        summed = dict(zip((*self._weights, *running), self._all_reduce(own), strict=True))
        constants = self._optimizer
        for name, weight in self._weights.items():
            decay = constants["weight_decay"] if len(weight.shape) > 1 else 0.0
            momentum = self._momentum[name].assign(constants["momentum"] * self._momentum[name] + summed[name] + decay * weight)
            weight.assign_sub(constants["learning_rate"] * momentum)
        for name in running:
            self._state[name].assign(summed[name])
        return loss

    def state(self) -> Arrays:
        return {name: to_canonical(variable.numpy()) for name, variable in self._state.items()}

    def momentum(self) -> Arrays:
        return {name: to_canonical(variable.numpy()) for name, variable in self._momentum.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for variables, arrays in ((self._state, state), (self._momentum, momentum)):
            for name, variable in variables.items():
                variable.assign(to_tensorflow(arrays[name]))


def _mean_loss(outputs: Any, labels: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), outputs)
    if len(labels.shape) == 1:
        return tf.reduce_mean(losses)
    told = tf.cast(labels >= 0, tf.float32)
    return tf.reduce_mean(tf.reduce_sum(losses * told, 1) / tf.reduce_sum(told, 1))
