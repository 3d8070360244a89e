"""Training in DyNet: gradients averaged over MPI, weights updated in numpy, because its trainers take no gradients from outside."""

from __future__ import annotations

from typing import Any, Mapping

import dynet_config
import numpy as np
from slipway_historic_program.mpi import MpiTrainer
from slipway_program.parameters import RUNNING, Arrays, Cell, trained

dynet_config.set(mem=512, random_seed=1)  # MiB to begin with: it takes more where it needs more

import dynet  # noqa: E402 - the line above must come first

from .network import forward, to_canonical, to_dynet  # noqa: E402 - imports DyNet too


class DynetTrainer(MpiTrainer):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "dynet"
    version = dynet.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        self._layers = cell["model_layers"]
        self._optimizer: Mapping[str, float] = cell["optimizer"]
        self._collection = dynet.ParameterCollection()
        self._tensors = {name: self._collection.add_parameters(to_dynet(array).shape) for name, array in trained(start).items()}
        self._state: Arrays = {}
        self._momentum: Arrays = {}
        self.restore(start, {name: np.zeros_like(array) for name, array in trained(start).items()})

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        if self._drops:
            dynet.reset_random_seed(self.dropout_seed)
        outputs, moments = self._forward(images, training=True)
        loss = dynet.sum_batches(dynet.pickneglogsoftmax_batch(outputs, labels.tolist())) / len(labels)
        value = loss.value()
        self._follow({name: moment.npvalue() for name, moment in moments.items()}, len(labels))
        loss.backward()
        gradients = self.mean([to_canonical(tensor.grad_as_array()) for tensor in self._tensors.values()])
        self._update(dict(zip(self._tensors, gradients)))
        return value

    def _update(self, gradients: Arrays) -> None:
        """Update by v = momentum v + gradient, weight -= rate v. Weight decay goes to weights only."""
        constants = self._optimizer
        for name in self._tensors:
            weight = self._state[name]
            decay = constants["weight_decay"] if weight.ndim > 1 else 0.0
            momentum = self._momentum[name]
            momentum *= constants["momentum"]
            momentum += gradients[name] + decay * weight
            weight -= constants["learning_rate"] * momentum
            self._tensors[name].set_value(to_dynet(weight))
            self._tensors[name].scale_gradient(0)  # else the next one would be added to it

    def _follow(self, moments: Arrays, batch: int) -> None:
        """Move running statistics by those of the batch; their variance is that of a sample, as PyTorch's; on all ranks those of rank 0."""
        for layer in self._layers:
            if layer["kind"] == "bn":
                count = batch * layer["shape_out"][1] * layer["shape_out"][2]
                for what, factor in zip(RUNNING, (1.0, count / max(count - 1, 1))):
                    name = layer["name"] + what
                    self._state[name] += layer["momentum"] * (factor * moments[name] - self._state[name])
        self._state.update(self.of_rank_0({name: self._state[name] for name in moments}))

    def _forward(self, images: np.ndarray, training: bool) -> Any:
        dynet.renew_cg()
        running = {name: array for name, array in self._state.items() if name not in self._tensors}
        return forward(self._layers, {**self._tensors, **running}, self._normalised(images), training)

    def outputs(self, images: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._forward(images, training=False)[0].npvalue()
        return found.reshape(-1, len(images)).T

    def state(self) -> Arrays:
        return self._state

    def momentum(self) -> Arrays:
        return self._momentum

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        self._state = {name: np.array(array) for name, array in state.items()}
        self._momentum = {name: np.array(momentum[name]) for name in self._tensors}
        for name, tensor in self._tensors.items():
            tensor.set_value(to_dynet(self._state[name]))
