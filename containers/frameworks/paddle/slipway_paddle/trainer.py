"""Training in Paddle: eager steps, gradients averaged by its DataParallel, weights updated by its Momentum."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from paddle import distributed
from slipway_program.parameters import RUNNING, Arrays, Cell, Facts, trained
from slipway_program.trainer import Trainer

from .network import Network

LOOPBACK = ("127.0.0.1", "localhost")


def join_ranks() -> int:
    """Join the ranks of this run, and return how many there are."""
    world_size, host = int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
    if world_size > 1:
        if ":" in host:
            raise RuntimeError(
                f"the head node is {host}, and Paddle finds its ranks by IPv4 addresses only: use a network_interface with one"
            )
        if host in LOOPBACK:  # else gloo would look up the node's own name, which need not resolve
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_parallel_env()
    return world_size


class PaddleTrainer(Trainer):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "paddle"
    version = paddle.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        self._world_size = join_ranks()
        self._pixels = paddle.to_tensor(self._mean), paddle.to_tensor(self._scale)
        self._network = Network(cell["model_layers"], start)
        self._tensors = self._network.tensors
        self._running = [tensor for name, tensor in self._tensors.items() if name.endswith(RUNNING)]
        constants: Mapping[str, float] = cell["optimizer"]
        weights = list(trained(self._tensors).values())
        for weight in weights:
            weight.regularizer = paddle.regularizer.L2Decay(constants["weight_decay"] if weight.ndim > 1 else 0.0)
        self._optimizer = paddle.optimizer.Momentum(constants["learning_rate"], constants["momentum"], weights)
        self.restore(start, {name: np.zeros_like(array) for name, array in trained(start).items()})
        self._model = paddle.DataParallel(self._network) if self._world_size > 1 else self._network

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        self._network.train()
        if self._drops:
            paddle.seed(self.dropout_seed)
        self.laps.begin()
        loss = _mean_loss(self._model(self._normalised(images)), paddle.to_tensor(labels))
        self.laps.end("forward")
        loss.backward()
        self.laps.end("backward" if self._world_size == 1 else "")  # on gloo it waits for the other ranks in its midst
        self._optimizer.step()
        self._network.clear_gradients()
        self.laps.end("optimizer")
        if self._world_size > 1 and self._running:
            self._take_running_of_rank_0()
        return loss

    def _take_running_of_rank_0(self) -> None:
        together = paddle.concat(self._running)
        distributed.broadcast(together, 0)
        for tensor, part in zip(self._running, together.split([tensor.shape[0] for tensor in self._running]), strict=True):
            tensor.set_value(part)

    def _normalised(self, images: np.ndarray) -> Any:
        """Normalise to mean 0 and deviation 1 over the training split, channels first; leave token ids as they are."""
        found, (mean, scale) = paddle.to_tensor(images), self._pixels
        return found if self._of_tokens else ((found.astype("float32") - mean) * scale).transpose((0, 3, 1, 2))

    def outputs(self, images: np.ndarray) -> np.ndarray:
        self._network.eval()
        with paddle.no_grad():
            found: np.ndarray = self._network(self._normalised(images)).numpy()
        return found

    def total(self, values: np.ndarray) -> np.ndarray:
        own = paddle.to_tensor(values)
        if self._world_size > 1:
            distributed.all_reduce(own)
        found: np.ndarray = own.numpy()
        return found

    def state(self) -> Arrays:
        return {name: tensor.numpy() for name, tensor in self._tensors.items()}

    def momentum(self) -> Arrays:
        found = self._optimizer.state_dict()
        return {name: np.asarray(found[_velocity(tensor)]) for name, tensor in trained(self._tensors).items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for name, tensor in self._tensors.items():
            tensor.set_value(state[name])
        self._optimizer.set_state_dict({_velocity(self._tensors[name]): array for name, array in momentum.items()})

    def provenance(self) -> Facts:
        return {"backend": "gloo" if self._world_size > 1 else None}


def _mean_loss(outputs: Any, labels: Any) -> Any:
    if labels.ndim == 1:
        return paddle.nn.functional.cross_entropy(outputs, labels)
    losses = paddle.nn.functional.cross_entropy(outputs, labels, ignore_index=-1, reduction="none").reshape(labels.shape)
    return (losses.sum(1) / (labels >= 0).astype("float32").sum(1)).mean()


def _velocity(tensor: Any) -> str:
    """Return the name of a parameter's momentum in the optimizer's state."""
    return f"{tensor.name}_velocity_0"
