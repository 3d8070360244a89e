"""Training in Keras on TensorFlow: a model and an optimizer of Keras, whose gradients the strategy adds up."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from slipway_program.parameters import Arrays
from slipway_program.trainer import Trainer

from .layouts import to_canonical, to_tensorflow
from .network import build

SUM = tf.distribute.ReduceOp.SUM


class KerasTrainer(Trainer):
    """One rank."""

    framework = "keras"
    version = keras.__version__

    def __init__(self, cell: Mapping[str, Any], dataset: Any, start: Arrays) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(cell["threads"])
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()  # the other ranks are named by TF_CONFIG
        self._world_size = int(os.environ["WORLD_SIZE"])
        if self._strategy.num_replicas_in_sync != self._world_size:
            raise RuntimeError(f"TF_CONFIG names {self._strategy.num_replicas_in_sync} ranks, and there are {self._world_size}")
        constants: Mapping[str, float] = cell["optimizer"]
        self._rate, self._decay = constants["learning_rate"], constants["weight_decay"]
        self._mean = np.asarray(dataset.mean, np.float32)
        self._scale = 1 / np.maximum(np.asarray(dataset.std, np.float32), 1)
        with self._strategy.scope():
            self._model = build(cell["model_layers"])
            self._optimizer = keras.optimizers.SGD(self._rate, momentum=constants["momentum"])
            self._optimizer.build(self._model.trainable_variables)
        self._variables = {
            f"{layer.name}.{name}": variable
            for layer in self._model.layers
            for name, variable in zip(("weight", "bias"), layer.trainable_variables, strict=False)
        }
        for name, variable in self._variables.items():
            variable.assign(to_tensorflow(start[name]))
        # autograph would leave files of code in TMPDIR: a rank ends at once, and there is nothing in ours that it would have to rewrite
        self._compiled = tf.function(lambda images, labels: self._strategy.run(self._step, (images, labels)), autograph=False)
        self._forward = tf.function(lambda images: self._model(self._normalised(images), training=False), autograph=False)
        self._sum = tf.function(lambda values: self._strategy.run(self._total, (values,)), autograph=False)

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        return self._compiled(tf.constant(images), tf.constant(labels)).numpy()

    def _step(self, images: Any, labels: Any) -> Any:
        """On one rank's share. Keras' own weight decay is another one: here it goes through the momentum, and to weights only."""
        weights = self._model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self._model(self._normalised(images), training=True)
            loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True))
            scaled = loss / self._world_size  # the strategy adds up
        gradients = tape.gradient(scaled, weights)
        decay = self._decay / self._world_size
        decayed = [
            gradient + decay * weight if len(weight.shape) > 1 else gradient for gradient, weight in zip(gradients, weights, strict=True)
        ]
        self._optimizer.apply(decayed, weights)
        return loss

    def _total(self, values: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(SUM, [tf.identity(values)])[0]

    def _normalised(self, images: Any) -> Any:
        """Mean 0 and deviation 1 over the training split."""
        return (tf.cast(images, tf.float32) - self._mean) * self._scale

    def outputs(self, images: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._forward(tf.constant(images)).numpy()
        return found

    def barrier(self) -> None:
        self.total(np.zeros(1))

    def leave(self) -> None:
        with contextlib.suppress(tf.errors.OpError):  # of ranks that have left already: their work was done, and so is ours
            self.barrier()

    def total(self, values: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._sum(tf.constant(values, tf.float64)).numpy()
        return found

    def state(self) -> Arrays:
        return {name: to_canonical(np.asarray(variable)) for name, variable in self._variables.items()}

    def momentum(self) -> Arrays:
        """Keras keeps v = momentum v - rate gradient, others v = momentum v + gradient. In 64 bits, so that nothing is rounded."""
        return {name: to_canonical(np.asarray(variable, np.float64)) / -self._rate for name, variable in self._momentums().items()}

    def _momentums(self) -> dict[str, Any]:
        return dict(zip(self._variables, self._optimizer.momentums, strict=True))

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for name, variable in self._variables.items():
            variable.assign(to_tensorflow(state[name]))
        for name, variable in self._momentums().items():
            variable.assign((-self._rate * to_tensorflow(momentum[name])).astype(np.float32))

    def provenance(self) -> dict[str, Any]:
        return {
            "backend": "grpc" if self._world_size > 1 else None,
            "keras_backend": keras.backend.backend(),
            "tensorflow_version": tf.__version__,
        }
