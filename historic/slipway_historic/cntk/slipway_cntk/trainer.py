"""Training in CNTK: its momentum_sgd and, in several ranks, its own data-parallel learner, which sums gradients by MPI."""

import os
from typing import Any, Dict, List, Mapping

import cntk as C
import numpy as np
from cntk.internal.utils import _to_cntk_dict_value
from mpi4py import MPI
from slipway_historic_program.mpi import MpiTrainer
from slipway_program.parameters import RUNNING, Arrays, Cell, trained
from slipway_program.trainer import masks

from .network import Network, to_cntk

OF_MOMENTUM = "smoothed_gradients"
"""The key, in the state of a learner, of an array for each of its parameters."""


class CntkTrainer(MpiTrainer):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "cntk"
    version = C.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        C.device.try_set_default_device(C.device.cpu())
        C.cntk_py.set_max_num_cputhreads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self._layers = cell["model_layers"]
        self._network = Network(self._layers, start, cell["batch_size"])
        self._running = [name for name in start if name.endswith(RUNNING)]
        self._classes = np.eye(dataset.num_classes, dtype=np.float32)
        self._labels = C.input_variable(dataset.num_classes)
        self._loss = C.cross_entropy_with_softmax(self._network.outputs, self._labels)
        self._learned: Dict[Any, List[str]] = {}
        learners = self._make_learners(cell["optimizer"], cell["global_batch_size"])
        if self.ranks.size > 1:
            learners = [C.data_parallel_distributed_learner(learner) for learner in learners]
            learners[0].set_as_metric_aggregator()
        self._trainer = C.Trainer(None, (self._loss, None), learners)

    def _make_learners(self, constants: Mapping[str, float], global_batch_size: int) -> List[Any]:
        """Make one for weights and one for the rest, which does not decay. CNTK adds up the gradients of all samples: the rate is said to
        be that of a batch of all ranks, by whose size they are divided. Without unit_gain=False, gradients would count 1 - momentum.
        """
        rate = C.learning_parameter_schedule(constants["learning_rate"], minibatch_size=global_batch_size)
        keep = C.momentum_schedule(constants["momentum"], minibatch_size=global_batch_size)
        tensors = trained(self._network.tensors)
        weights = [name for name, tensor in tensors.items() if len(tensor.shape) > 1]
        for names, decay in ((weights, constants["weight_decay"]), ([name for name in tensors if name not in weights], 0.0)):
            own = [tensors[name] for name in names]
            learner = C.momentum_sgd(own, rate, keep, unit_gain=False, l2_regularization_weight=decay)
            self._learned[learner] = names
        return list(self._learned)

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        batch = {self._network.images: self._normalised(images), self._labels: self._classes[labels]}
        for name, mask in masks(self._layers, len(labels), self.dropout_seed).items():
            batch[self._network.masks[name]] = mask
        _, found = self._trainer.train_minibatch(batch, outputs=[self._loss])
        if self.ranks.size > 1:
            for name, array in self.of_rank_0({name: self._network.tensors[name].value for name in self._running}).items():
                self._network.tensors[name].value = array
        return found[self._loss].mean()

    def outputs(self, images: np.ndarray) -> np.ndarray:
        batch = {self._network.images: self._normalised(images)}
        for mask in self._network.masks.values():
            batch[mask] = np.ones((len(images), *mask.shape), np.float32)
        return self._network.outputs.eval(batch)  # type: np.ndarray

    def leave(self) -> None:
        """Let CNTK end MPI, as far as it has begun it."""
        self.barrier()
        C.Communicator.finalize()
        if not MPI.Is_finalized():
            MPI.Finalize()

    def state(self) -> Arrays:
        return {name: to_cntk(tensor.value) for name, tensor in self._network.tensors.items()}

    def momentum(self) -> Arrays:
        found = {learner: learner.create_checkpoint()[OF_MOMENTUM] for learner in self._learned}
        return {name: to_cntk(array) for learner, names in self._learned.items() for name, array in zip(names, found[learner])}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for name, tensor in self._network.tensors.items():
            tensor.value = to_cntk(state[name])
        for learner, names in self._learned.items():
            found = learner.create_checkpoint()
            found[OF_MOMENTUM] = _to_cntk_dict_value([to_cntk(momentum[name]) for name in names])
            learner.restore_from_checkpoint(found)
