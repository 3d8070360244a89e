"""Training in TensorFlow: one tf.function per step, the exchange of gradients by the strategy's collectives."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from slipway_program.parameters import Arrays, trained
from slipway_program.trainer import Trainer

from .layouts import to_canonical, to_tensorflow
from .network import forward

SUM = tf.distribute.ReduceOp.SUM


class TensorflowTrainer(Trainer):
    """One rank. Each has variables of its own, which are the same on all, since all add the same gradients to the same weights. Running
    statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "tensorflow"
    version = tf.__version__

    def __init__(self, cell: Mapping[str, Any], dataset: Any, start: Arrays) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(cell["threads"])
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()  # the other ranks are named by TF_CONFIG
        self._world_size, self._is_first = int(os.environ["WORLD_SIZE"]), float(os.environ["RANK"] == "0")
        if self._strategy.num_replicas_in_sync != self._world_size:
            raise RuntimeError(f"TF_CONFIG names {self._strategy.num_replicas_in_sync} ranks, and there are {self._world_size}")
        self._layers = cell["model_layers"]
        self._optimizer: Mapping[str, float] = cell["optimizer"]
        self._mean = np.asarray(dataset.mean, np.float32)
        self._scale = 1 / np.maximum(np.asarray(dataset.std, np.float32), 1)
        self._state = {name: tf.Variable(to_tensorflow(array)) for name, array in start.items()}
        self._momentum = {name: tf.Variable(to_tensorflow(np.zeros_like(array))) for name, array in trained(start).items()}
        self._weights = trained(self._state)
        # autograph would leave files of code in TMPDIR: a rank ends at once, and there is nothing in ours that it would have to rewrite
        self._compiled = tf.function(lambda images, labels: self._strategy.run(self._step, (images, labels)), autograph=False)
        self._forward = tf.function(
            lambda images: forward(self._layers, self._state, self._normalised(images), training=False)[0], autograph=False
        )
        self._sum = tf.function(
            lambda values: self._strategy.run(lambda own: self._all_reduce([tf.identity(own)])[0], (values,)), autograph=False
        )

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        return self._compiled(tf.constant(images), tf.constant(labels)).numpy()

    def _step(self, images: Any, labels: Any) -> Any:
        """On one rank's share: v = momentum v + gradient, weight -= rate v. Weight decay goes to weights only."""
        with tf.GradientTape() as tape:
            outputs, running = forward(self._layers, self._state, self._normalised(images), training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
            scaled = loss / self._world_size  # the collectives add up
        own = [*tape.gradient(scaled, list(self._weights.values())), *(value * self._is_first for value in running.values())]
        summed = dict(zip((*self._weights, *running), self._all_reduce(own), strict=True))
        constants = self._optimizer
        for name, weight in self._weights.items():
            decay = constants["weight_decay"] if len(weight.shape) > 1 else 0.0
            momentum = self._momentum[name].assign(constants["momentum"] * self._momentum[name] + summed[name] + decay * weight)
            weight.assign_sub(constants["learning_rate"] * momentum)
        for name in running:
            self._state[name].assign(summed[name])
        return loss

    def _all_reduce(self, values: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(SUM, values)

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
        return {name: to_canonical(variable.numpy()) for name, variable in self._state.items()}

    def momentum(self) -> Arrays:
        return {name: to_canonical(variable.numpy()) for name, variable in self._momentum.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for variables, arrays in ((self._state, state), (self._momentum, momentum)):
            for name, variable in variables.items():
                variable.assign(to_tensorflow(arrays[name]))

    def provenance(self) -> dict[str, Any]:
        return {"backend": "grpc" if self._world_size > 1 else None}
