"""Training in Caffe2: a net computes loss and gradients, which are averaged over MPI, and a net updates by its MomentumSGD."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
from caffe2.python import core, workspace
from slipway_historic_program.mpi import MpiTrainer
from slipway_program.parameters import RUNNING, Arrays, Cell, trained
from slipway_program.trainer import masks

from .network import MASK, add_layers
from .reading import native_batches

MOMENTUM = ".momentum"


class Caffe2Trainer(MpiTrainer):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "caffe2"
    version = version("torch")

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        core.GlobalInit(["caffe2", "--caffe2_log_level=3", "--logtostderr=1"])  # else it writes files to TMPDIR
        layers = cell["model_layers"]
        self._layers = layers
        self._input, self._output = layers[0]["name"], layers[-1]["name"]
        self._names, self._parameters = list(start), list(trained(start))
        self._running = [name for name in start if name.endswith(RUNNING)]
        optimizer = cell["optimizer"]
        self._factor = optimizer["momentum"]
        for name, value in (("rate", optimizer["learning_rate"]), ("one", 1.0), ("decay", optimizer["weight_decay"])):
            workspace.FeedBlob(name, np.array([value], np.float32))
        self.restore(start, {name: np.zeros_like(array) for name, array in trained(start).items()})
        workspace.FeedBlob(self._input, self._normalised(np.zeros((cell["batch_size"], *dataset.size, dataset.channels), np.uint8)))
        workspace.FeedBlob("labels", np.zeros(cell["batch_size"], np.int32))
        self._feed_masks(cell["batch_size"])

        backward, evaluation = core.Net("backward"), core.Net("evaluation")
        _, loss = backward.SoftmaxWithLoss([add_layers(backward, layers, training=True), "labels"], ["softmax", "loss"])
        self._gradients = {name: str(blob) for name, blob in backward.AddGradientOperators([loss]).items() if name in trained(start)}
        update = self._update(start)
        add_layers(evaluation, layers, training=False)
        for net in (backward, update, evaluation):
            workspace.CreateNet(net)
        self._backward, self._updated, self._evaluation = backward, update, evaluation

    def _update(self, start: Arrays) -> Any:
        """Add weight decay, of weights only, to the gradient."""
        net = core.Net("update")
        for name in self._parameters:
            gradient, momentum = self._gradients[name], name + MOMENTUM
            if start[name].ndim > 1:
                net.WeightedSum([gradient, "one", name, "decay"], gradient)
            net.MomentumSGDUpdate([gradient, momentum, "rate", name], [gradient, momentum, name], momentum=self._factor, nesterov=0)
        return net

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        workspace.FeedBlob(self._input, self._normalised(images))
        workspace.FeedBlob("labels", labels.astype(np.int32))
        self._feed_masks(len(labels))
        workspace.RunNet(self._backward)
        if self.ranks.size > 1:
            gradients = list(self._gradients.values())
            for gradient, mean in zip(gradients, self.mean(list(_fetched(gradients).values()))):
                workspace.FeedBlob(gradient, mean)
        workspace.RunNet(self._updated)
        for name, array in self.of_rank_0(_fetched(self._running if self.ranks.size > 1 else [])).items():
            workspace.FeedBlob(name, array)
        return float(workspace.FetchBlob("loss"))

    def _feed_masks(self, batch_size: int) -> None:
        for name, mask in masks(self._layers, batch_size, self.dropout_seed).items():
            workspace.FeedBlob(name + MASK, mask)

    def native_batches(self, dataset: Any, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return native_batches(dataset, batch_size, self.ranks.rank, self.ranks.size)

    def outputs(self, images: np.ndarray) -> np.ndarray:
        workspace.FeedBlob(self._input, self._normalised(images))
        workspace.RunNet(self._evaluation)
        found: np.ndarray = workspace.FetchBlob(self._output)
        return found

    def state(self) -> Arrays:
        return _fetched(self._names)

    def momentum(self) -> Arrays:
        """Return the momentum as Caffe2 has it, the learning rate in it."""
        return {name: workspace.FetchBlob(name + MOMENTUM) for name in self._parameters}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for name, array in (*state.items(), *((name + MOMENTUM, array) for name, array in momentum.items())):
            workspace.FeedBlob(name, np.ascontiguousarray(array, np.float32))


def _fetched(names: list[str]) -> Arrays:
    return {name: workspace.FetchBlob(name) for name in names}
