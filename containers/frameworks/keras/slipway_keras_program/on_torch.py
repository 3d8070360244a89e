"""Training in Keras on PyTorch: a Keras model is a module of PyTorch, whose gradients DistributedDataParallel averages, and the optimizer
is Keras'. Keras has no distribution of its own there; this is the way that its guide shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import slipway_parts
import torch
import torch.distributed as dist
from slipway_program.parameters import Arrays, Cell, Facts
from slipway_program.torch_group import join_group, leave_group, provenance_of
from slipway_program.trainer import Trainer
from torch.nn.parallel import DistributedDataParallel

from .network import KerasModel, mean_loss


class OnTorch(KerasModel, Trainer):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel, for which Keras' are no buffers."""

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        torch.set_num_threads(cell["threads"])
        self._place = join_group(cell)
        self.device = str(self._place)
        self._pixels = torch.tensor(self._mean, device=self._place), torch.tensor(self._scale, device=self._place)
        self._make(cell)
        self.restore(start, {name: np.zeros_like(start[name]) for name in self._variables})
        self._averaged = DistributedDataParallel(self._model, device_ids=None if self.device == "cpu" else [self._place.index])
        slipway_parts.part_exchange(self._averaged, self.laps.end)

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        """Train on one batch. Weight decay is of weights only and goes through the momentum, unlike Keras' own."""
        self._dropout_seed.seed = self.dropout_seed
        if self.device == "cpu":  # on a GPU its parts are not those of the program
            self.laps.begin()
        self._model.zero_grad()
        self.laps.end("optimizer")
        outputs = self._averaged(self._normalised(images), training=True)
        loss = mean_loss(torch.from_numpy(labels).to(self._place), outputs)
        self.laps.end("forward")
        loss.backward()
        self.laps.end_backward()
        weights = self._model.trainable_variables
        with torch.no_grad():
            found = ((weight.value.grad, weight.value) for weight in weights)
            decayed = [gradient.add(value, alpha=self._decay) if value.ndim > 1 else gradient for gradient, value in found]
            self._optimizer.apply(decayed, weights)
            self.laps.end("optimizer")
            if self._running:
                self._take_running_of_rank_0()
                self.laps.end("exchange")
        return loss.detach()

    def _take_running_of_rank_0(self) -> None:
        together = torch.cat([variable.value for variable in self._running.values()])
        dist.broadcast(together, 0)
        parts = together.split([variable.shape[0] for variable in self._running.values()])
        for variable, part in zip(self._running.values(), parts, strict=True):
            variable.assign(part)

    def _normalised(self, images: np.ndarray) -> torch.Tensor:
        """Normalise to mean 0 and deviation 1 over the training split; leave token ids as they are."""
        found, (mean, scale) = torch.from_numpy(images).to(self._place), self._pixels
        return found if self._of_tokens else (found.to(torch.float32) - mean) * scale

    def outputs(self, images: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = self._model(self._normalised(images), training=False).cpu().numpy()
        return found

    def total(self, values: np.ndarray) -> np.ndarray:
        summed = torch.tensor(values, dtype=torch.float64, device=self._place)
        dist.all_reduce(summed)
        found: np.ndarray = summed.cpu().numpy()
        return found

    def leave(self) -> None:
        super().leave()
        leave_group(self._place)

    def memory(self) -> tuple[int, str]:
        return super().memory() if self.device == "cpu" else (torch.cuda.max_memory_allocated(self._place), "cuda_allocator")

    def state(self) -> Arrays:
        return {name: self._layouts.to_canonical(name, variable.value.detach().cpu().numpy()) for name, variable in self._all.items()}

    def momentum(self) -> Arrays:
        return self._as_others_keep({name: variable.value.cpu().numpy() for name, variable in self._momentums().items()})

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for name, variable in self._all.items():
            variable.assign(np.ascontiguousarray(self._layouts.to_keras(name, state[name])))
        for name, variable in self._momentums().items():
            variable.assign(self._as_keras_keeps(name, momentum[name]))

    def provenance(self) -> Facts:
        return {**provenance_of(self._place), "keras_backend": keras.backend.backend()}
