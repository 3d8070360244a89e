"""What every trainer on TensorFlow has alike: its processes, and the collectives of the strategy. Imported where TensorFlow is."""

import contextlib
import os
from typing import Any, Callable, Tuple

import numpy as np
import tensorflow as tf

from .parameters import Cell, Facts
from .trainer import Trainer

SUM = tf.distribute.ReduceOp.SUM


class TensorFlowRank(Trainer):
    """One rank. A sub-class gives to `_compile` what its network computes, and writes `_step`, what happens on one rank's share."""

    def __init__(self, cell: Cell, dataset: Any) -> None:
        super().__init__(cell, dataset)
        tf.config.threading.set_intra_op_parallelism_threads(cell["threads"])
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()  # the other ranks are named by TF_CONFIG
        self._world_size, self._is_first = int(os.environ["WORLD_SIZE"]), float(os.environ["RANK"] == "0")
        if self._strategy.num_replicas_in_sync != self._world_size:
            raise RuntimeError("TF_CONFIG names %d ranks, and there are %d" % (self._strategy.num_replicas_in_sync, self._world_size))
        self._several_lengths = self._of_tokens and len(dataset.lengths) > 1

    def _compile(self, network: Callable[[Any], Any]) -> None:
        """Compile `network`: normalised images to outputs, as it is outside of training."""
        # autograph would leave files of code in TMPDIR: a rank ends at once, and there is nothing in ours that it would have to rewrite
        self._compiled = tf.function(lambda *share: self._strategy.run(self._step, share), autograph=False)
        self._forward = tf.function(lambda images: network(self._normalised(images)), autograph=False)
        self._sum = tf.function(lambda values: self._strategy.run(self._total, (values,)), autograph=False)

    def prepare(self, shape: Tuple[int, int], training: bool) -> None:
        zeros = np.zeros(shape, np.int32)
        if not training:
            self.outputs(zeros)
        elif self._several_lengths:  # else the warm-up has the only one. Half of the work is done when a function is called, not before
            before = self.state(), self.momentum()
            self.step(zeros, zeros)
            self.restore(*before)

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        seed = [tf.constant(self.dropout_seed, tf.int64)] if self._drops else []
        return self._compiled(tf.constant(images), tf.constant(labels), *seed).numpy()

    def _step(self, images: Any, labels: Any, seed: Any = None) -> Any:
        """Return the loss of this rank's share; `seed`: of dropout, a tensor, None without. The strategy adds up, so a gradient is divided
        by the number of ranks first.
        """
        raise NotImplementedError

    def _total(self, values: Any) -> Any:
        return self._all_reduce([tf.identity(values)])[0]

    def _all_reduce(self, values: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(SUM, values)

    def _normalised(self, images: Any) -> Any:
        """Normalise to mean 0 and deviation 1 over the training split; leave token ids as they are."""
        return images if self._of_tokens else (tf.cast(images, tf.float32) - self._mean) * self._scale

    def outputs(self, images: np.ndarray) -> np.ndarray:
        return self._forward(tf.constant(images)).numpy()  # type: np.ndarray

    def leave(self) -> None:
        with contextlib.suppress(tf.errors.OpError):  # of ranks that have left already: their work was done, and so is ours
            self.barrier()

    def total(self, values: np.ndarray) -> np.ndarray:
        return self._sum(tf.constant(values, tf.float64)).numpy()  # type: np.ndarray

    def provenance(self) -> Facts:
        return {"backend": "grpc" if self._world_size > 1 else None}
