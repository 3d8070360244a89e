"""Training in Caffe: steps of its SGD solver, which calls us between backward and update; there gradients are averaged over MPI."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from slipway_historic_program.mpi import MpiTrainer
from slipway_program.parameters import RUNNING, Arrays, Cell

os.environ.setdefault("GLOG_minloglevel", "2")  # before Caffe is imported: it would print some lines for each layer

import caffe
from caffe.proto import caffe_pb2

from .network import FACTOR, blobs_of, evaluation_net, training_net, written
from .reading import native_batches


class CaffeTrainer(MpiTrainer):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "caffe"
    version = caffe.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        caffe.set_mode_cpu()
        layers, batch_size = cell["model_layers"], cell["batch_size"]
        self._first, self._last = layers[0]["name"], layers[-1]["name"]
        # Caffe saves its momentum to a file only: here, for a moment.
        self._saved = f".caffe-{self.ranks.rank}"
        with written(_solver(cell["optimizer"], training_net(layers, batch_size), self._saved)) as path:
            self._solver = caffe.get_solver(path)
        with written(evaluation_net(layers, batch_size)) as path:
            self._evaluated = caffe.Net(path, caffe.TEST)
        self._net = self._solver.net
        self._evaluated.share_with(self._net)
        self._blobs = blobs_of(layers, self._net)
        self._parameters = [name for name in self._blobs if not name.endswith((*RUNNING, FACTOR))]
        self._weights_of_new = {layer["name"]: layer["momentum"] for layer in layers if layer["kind"] == "bn"}
        self._running: Arrays = {}
        self._set(start)
        self._solver.add_callback(lambda: None, self._average)

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        if self._drops:
            caffe.set_random_seed(self.dropout_seed >> 1)  # it takes 31 bits
        self._net.blobs[self._first].data[...] = self._normalised(images)
        self._net.blobs["label"].data[...] = labels
        self._solver.step(1)
        for name, running in self._running.items():
            weight = self._weights_of_new[name.rpartition(".")[0]]
            self._running[name] = (1 - weight) * running + weight * self._blobs[name].data
        self._running = self.of_rank_0(self._running)
        return float(self._net.blobs["loss"].data)

    def _average(self) -> None:
        gradients = [self._blobs[name].diff for name in self._parameters]
        for gradient, mean in zip(gradients, self.mean(gradients)):
            gradient[...] = mean

    def native_batches(self, dataset: Any, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return native_batches(dataset, batch_size, self.ranks.rank, self.ranks.size)

    def outputs(self, images: np.ndarray) -> np.ndarray:
        for name, running in self._running.items():
            self._blobs[name].data[...] = running
            self._blobs[name.rpartition(".")[0] + FACTOR].data[...] = 1
        self._evaluated.blobs[self._first].data[...] = self._normalised(images)
        self._evaluated.forward()
        return np.array(self._evaluated.blobs[self._last].data)

    def state(self) -> Arrays:
        return {**{name: np.array(self._blobs[name].data) for name in self._parameters}, **self._running}

    def momentum(self) -> Arrays:
        """Return the momentum as Caffe has it, the learning rate in it."""
        self._solver.snapshot()
        found = caffe_pb2.SolverState()
        saved = Path(f"{self._saved}_iter_{self._solver.iter}")
        found.ParseFromString(saved.with_suffix(".solverstate").read_bytes())
        for suffix in (".solverstate", ".caffemodel"):
            saved.with_suffix(suffix).unlink()
        arrays = {name: np.array(kept.data, np.float32).reshape(kept.shape.dim) for name, kept in zip(self._blobs, found.history)}
        return {name: arrays[name] for name in self._parameters}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        self._set(state)
        saved = caffe_pb2.SolverState(iter=self._solver.iter, current_step=0)
        for name, blob in self._blobs.items():
            kept = saved.history.add()
            kept.shape.dim[:] = blob.data.shape
            kept.data.extend(momentum.get(name, np.zeros_like(blob.data)).ravel().tolist())
        path = Path(self._saved)
        path.write_bytes(saved.SerializeToString())
        self._solver.restore(str(path))
        path.unlink()

    def _set(self, state: Mapping[str, np.ndarray]) -> None:
        for name in self._parameters:
            self._blobs[name].data[...] = state[name]
        self._running = {name: np.array(array, np.float32) for name, array in state.items() if name.endswith(RUNNING)}


def _solver(constants: Mapping[str, float], net: Any, prefix: str) -> Any:
    """Return a solver that displays, tests and saves nothing by itself."""
    solver = caffe_pb2.SolverParameter(type="SGD", lr_policy="fixed", display=0, snapshot_after_train=False, snapshot_prefix=prefix)
    solver.base_lr, solver.momentum, solver.weight_decay = (constants[name] for name in ("learning_rate", "momentum", "weight_decay"))
    solver.net_param.CopyFrom(net)
    return solver
