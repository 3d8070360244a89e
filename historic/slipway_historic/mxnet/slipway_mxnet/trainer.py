"""Training in MXNet: a hybridized Gluon network, gradients added up by parameter servers, weights updated by its own operator."""

from __future__ import annotations

import os
from typing import Any, Mapping

import mxnet as mx
import numpy as np
from slipway_program.parameters import RUNNING, Arrays, Cell, Facts, trained
from slipway_program.trainer import Trainer

from .network import Network
from .servers import Servers


class MxnetTrainer(Trainer):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "mxnet"
    version = mx.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        self._servers, self._is_first = Servers(), float(os.environ["RANK"] == "0")
        self._pixels = mx.nd.array(self._mean), mx.nd.array(self._scale)
        self._network = Network(cell["model_layers"], start)
        self._network.initialize()
        self._network.hybridize(static_alloc=True, static_shape=True)
        self._loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self._optimizer: Mapping[str, float] = cell["optimizer"]
        self._weights = trained(self._network.tensors)
        self._batch_norms = [layer for layer in cell["model_layers"] if layer["kind"] == "bn"]
        self._running = {name: mx.nd.array(array) for name, array in start.items() if name.endswith(RUNNING)}
        self._momentum = {name: mx.nd.zeros(weight.shape) for name, weight in self._weights.items()}
        self.restore(start, {name: np.zeros(weight.shape, np.float32) for name, weight in self._weights.items()})

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        if self._drops:
            mx.random.seed(self.dropout_seed)
        with mx.autograd.record():
            loss = self._loss(self._network(self._normalised(images)), mx.nd.array(labels)).mean()
        loss.backward()
        if self._servers.world_size > 1:
            self._servers.add_up("gradients", [weight.grad() for weight in self._weights.values()])
        self._update()
        if self._batch_norms:
            self._follow(images.shape[0])
        mx.nd.waitall()
        return loss.asscalar()

    def _update(self) -> None:
        """Update by m = momentum m - rate (gradient + decay weight), weight += m. Weight decay goes to weights only."""
        constants = self._optimizer
        for name, weight in self._weights.items():
            mx.nd.sgd_mom_update(
                weight.data(),
                weight.grad(),
                self._momentum[name],
                out=weight.data(),
                lr=constants["learning_rate"],
                momentum=constants["momentum"],
                wd=constants["weight_decay"] if len(weight.shape) > 1 else 0.0,
                rescale_grad=1 / self._servers.world_size,
            )

    def _follow(self, batch: int) -> None:
        """Move the running statistics by those of the batch, which the network's own have become; on all ranks those of rank 0."""
        mx.nd.waitall()  # MXNet's engine does not know that the backward pass of a static network writes them
        for layer in self._batch_norms:
            momentum, (height, width) = layer["momentum"], layer["shape_out"][1:]
            count = batch * height * width
            for name, factor in (("running_mean", 1.0), ("running_var", count / max(count - 1, 1))):
                key = f"{layer['name']}.{name}"
                self._running[key] = (1 - momentum) * self._running[key] + momentum * factor * self._network.tensors[key].data()
        if self._servers.world_size > 1:
            together = mx.nd.concat(*self._running.values(), dim=0) * self._is_first
            self._servers.add_up("running", [together])
            first = 0
            for name, array in self._running.items():
                self._running[name] = together[first : first + array.size]
                first += array.size

    def _normalised(self, images: np.ndarray) -> Any:
        mean, scale = self._pixels
        return ((mx.nd.array(images, dtype="uint8").astype("float32") - mean) * scale).transpose((0, 3, 1, 2))

    def outputs(self, images: np.ndarray) -> np.ndarray:
        for name, array in self._running.items():
            self._network.tensors[name].set_data(array)
        found: np.ndarray = self._network(self._normalised(images)).asnumpy()
        return found

    def barrier(self) -> None:
        mx.nd.waitall()
        self.total(np.zeros(1))

    def leave(self) -> None:
        self._servers.leave()

    def total(self, values: np.ndarray) -> np.ndarray:
        return self._servers.total(values)

    def state(self) -> Arrays:
        weights = {name: weight.data().asnumpy() for name, weight in self._weights.items()}
        return {**weights, **{name: array.asnumpy() for name, array in self._running.items()}}

    def momentum(self) -> Arrays:
        return {name: array.asnumpy() for name, array in self._momentum.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for name, weight in self._weights.items():
            weight.set_data(mx.nd.array(state[name]))
        self._running = {name: mx.nd.array(state[name]) for name in self._running}
        self._momentum = {name: mx.nd.array(momentum[name]) for name in self._momentum}

    def provenance(self) -> Facts:
        return {"backend": "ps-lite", "kvstore": "dist_sync"}
