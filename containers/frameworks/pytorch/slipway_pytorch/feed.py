"""Batches from the staged dataset, read and decoded in loader processes that are forked while this process is still small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import starmap
from typing import Any

import numpy as np
import slipway_reader
import torch
from slipway_program.feed import repeat_first
from slipway_program.plan import Plan
from slipway_reader.loaders import Loaders, Slot
from slipway_reader.torch import pinned

Batches = Iterator["tuple[torch.Tensor, torch.Tensor]"]


class _Reading:
    """What a loader process does: it fills slots, and reads ahead the batch that comes next where a disk has to be waited for."""

    def __init__(self, dataset: Any, plan: Plan) -> None:
        self._splits = {name: dataset.split(name) for name in dataset.manifest["splits"]}
        self._plan = plan
        self.order = plan.share_numbers()

    def fill(self, place: int, slot: Slot, coming: int) -> tuple[int, int]:
        """Read the batch at `place` of the order into a slot. Returns samples, and of token ids how many a row has."""
        if slipway_reader.waits_for_disk():
            for number in (place,) if coming < 0 else (place, coming):
                split, indices = self._plan.share(self.order[number])
                self._splits[split].prefetch(indices)
        images, labels = slot.arrays()
        found = self._plan.read(self._splits, self.order[place], out=images)
        if not isinstance(found, tuple):
            return len(found), found.shape[1]
        labels[: len(found[1])] = found[1]
        return len(found[1]), 0


def loader_processes(device: str, local_world_size: int) -> int:
    """Return how many loader processes a rank starts: on the CPU one, since it shares cores with the training."""
    return 1 if device == "cpu" else slipway_reader.loader_processes(local_world_size)


def computing_threads(device: str, threads: int, local_world_size: int, processes: int) -> int:
    """Return the threads of this process. Beside a GPU it only copies batches, and those of its threads that wait for one another want a
    core each: where loader processes hold them, a copy of a quarter of a megabyte takes milliseconds (H200, 16 cores, 16 threads beside 8
    processes).
    """
    if device == "cpu":
        return threads
    return max(1, min(threads, len(os.sched_getaffinity(0)) // local_world_size - processes))


def start_reading(dataset: Any, plan: Plan, processes: int) -> Batches:
    """Start the loader processes, and return the batches of `plan` in order: images uint8 [batch, height, width, channels] and labels,
    or of token sequences inputs and targets, [batch, tokens] each."""
    of_tokens = isinstance(dataset, slipway_reader.Sequences)
    sample, dtype = ((dataset.length + 1,), np.int32) if of_tokens else ((*dataset.size, dataset.channels), np.uint8)
    reading = _Reading(dataset, plan)
    loaders = Loaders(reading, len(reading.order), processes, (plan.batch_size, *sample), dtype)
    return starmap(_tensors, pinned(loaders))


def from_memory(dataset: Any, plan: Plan) -> Batches:
    """Yield the first batch of this rank again and again."""
    for inputs, labels in repeat_first(dataset, plan):
        yield torch.from_numpy(inputs), torch.from_numpy(labels)


def _tensors(images: np.ndarray, labels: np.ndarray, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    read = torch.from_numpy(images)
    return slipway_reader.inputs_and_targets(read[:, :tokens]) if tokens else (read, torch.from_numpy(labels))
