"""Training in DyNet: gradients averaged over MPI, weights updated in numpy, because its trainers take no gradients from outside."""

from __future__ import annotations

from typing import Any, Mapping

import dynet_config
import numpy as np
from slipway_program.mpi import MpiTrainer
from slipway_program.normalised import Normalised
from slipway_program.parameters import Arrays

dynet_config.set(mem=512, random_seed=1)  # MiB to begin with: it takes more where it needs more

import dynet  # noqa: E402 - the line above must come first

from .network import check, forward, to_canonical, to_dynet  # noqa: E402 - imports DyNet too


class DynetTrainer(MpiTrainer):
    """One rank."""

    framework = "dynet"
    version = dynet.__version__

    def __init__(self, cell: Mapping[str, Any], dataset: Any, start: Arrays) -> None:
        check(cell["model_layers"])
        self._layers = cell["model_layers"]
        self._optimizer: Mapping[str, float] = cell["optimizer"]
        self._normalised = Normalised(dataset)
        self._collection = dynet.ParameterCollection()
        self._tensors = {name: self._collection.add_parameters(to_dynet(array).shape) for name, array in start.items()}
        self._state: Arrays = {}
        self._momentum: Arrays = {}
        self.restore(start, {name: np.zeros_like(array) for name, array in start.items()})

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        loss = dynet.sum_batches(dynet.pickneglogsoftmax_batch(self._forward(images), labels.tolist())) / len(labels)
        value = loss.value()
        loss.backward()
        gradients = self.mean([to_canonical(tensor.grad_as_array()) for tensor in self._tensors.values()])
        self._update(dict(zip(self._tensors, gradients)))
        return value

    def _update(self, gradients: Arrays) -> None:
        """v = momentum v + gradient, weight -= rate v. Weight decay goes to weights only."""
        constants = self._optimizer
        for name, weight in self._state.items():
            decay = constants["weight_decay"] if weight.ndim > 1 else 0.0
            momentum = self._momentum[name]
            momentum *= constants["momentum"]
            momentum += gradients[name] + decay * weight
            weight -= constants["learning_rate"] * momentum
            self._tensors[name].set_value(to_dynet(weight))
            self._tensors[name].scale_gradient(0)  # else the next one would be added to it

    def _forward(self, images: np.ndarray) -> Any:
        dynet.renew_cg()
        return forward(self._layers, self._tensors, self._normalised(images))

    def outputs(self, images: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._forward(images).npvalue()
        return found.reshape(-1, len(images)).T

    def state(self) -> Arrays:
        return self._state

    def momentum(self) -> Arrays:
        return self._momentum

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        self._state = {name: np.array(state[name]) for name in self._tensors}
        self._momentum = {name: np.array(momentum[name]) for name in self._tensors}
        for name, tensor in self._tensors.items():
            tensor.set_value(to_dynet(self._state[name]))
