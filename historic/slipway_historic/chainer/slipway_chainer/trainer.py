"""Training in Chainer: eager steps, gradients averaged by ChainerMN, weights updated by a plain MomentumSGD."""

from __future__ import annotations

from typing import Any, Mapping

import chainer
import chainermn
import numpy as np
from slipway_historic_program.mpi import MpiTrainer
from slipway_program.parameters import Arrays, Cell

from .network import Network


class ChainerTrainer(MpiTrainer):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel. ChainerMN's own optimizer is not used:
    its first call broadcasts and updates nothing, which would be a step less than the other frameworks do."""

    framework = "chainer"
    version = chainer.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        self._exchange = chainermn.create_communicator("naive", self.ranks)
        self._network = Network(cell["model_layers"], start)
        constants: Mapping[str, float] = cell["optimizer"]
        self._optimizer = chainer.optimizers.MomentumSGD(constants["learning_rate"], constants["momentum"]).setup(self._network)
        for weight in self._network.params():
            if weight.ndim > 1:
                weight.update_rule.add_hook(chainer.optimizer_hooks.WeightDecay(constants["weight_decay"]))
            weight.update_rule._init_states(weight)  # else there is none to restore before the first update

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        if self._drops:
            np.random.seed(self.dropout_seed)  # Chainer draws from it on CPUs
        loss = _mean_loss(self._network(self._normalised(images)), labels.astype(np.int32))
        self._network.cleargrads()
        loss.backward()
        if self.ranks.size > 1:
            self._exchange.allreduce_grad(self._network)
        self._optimizer.update()
        self._network.running.update(self.of_rank_0(self._network.running))
        return loss.array

    def outputs(self, images: np.ndarray) -> np.ndarray:
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            found: np.ndarray = self._network(self._normalised(images)).array
        return found

    def state(self) -> Arrays:
        return {**{name: parameter.array for name, parameter in self._network.parameters.items()}, **self._network.running}

    def momentum(self) -> Arrays:
        return {name: parameter.update_rule.state["v"] for name, parameter in self._network.parameters.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for name, array in self.state().items():
            array[...] = state[name]
        for name, array in self.momentum().items():
            array[...] = momentum[name]


def _mean_loss(outputs: Any, labels: np.ndarray) -> Any:
    functions = chainer.functions
    if labels.ndim == 1:
        return functions.softmax_cross_entropy(outputs, labels)
    flat = functions.reshape(outputs, (labels.size, -1))
    losses = functions.reshape(functions.softmax_cross_entropy(flat, labels.ravel(), reduce="no"), labels.shape)
    return functions.mean(functions.sum(losses, axis=1) / (labels >= 0).sum(axis=1).astype(np.float32))
