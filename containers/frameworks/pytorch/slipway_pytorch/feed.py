"""Batches from the staged dataset, read and decoded in loader processes that are forked while this process is still small."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import slipway_reader
import torch
from slipway_program.feed import inputs_and_targets, repeat_first
from slipway_program.plan import Plan
from torch.utils.data import DataLoader, Dataset

BATCHES_AHEAD = 4  # per loader process: read and decoded
ADVISED_AHEAD = 16  # per loader process: batches that the kernel is told to read from disk
ADVISED_BYTES = 16384  # smaller samples are not worth the advice
MOST_PROCESSES = 8

Batches = Iterator["tuple[torch.Tensor, torch.Tensor]"]


class _Ring:
    """Batches in memory that this process and its loader processes share, so that only numbers travel between them.

    It is anonymous: no file is left behind, and the 64 MB that Docker gives /dev/shm do not matter. Batch k lies in slot k % slots. The
    loader has at most `slots - 1` batches under way beyond the one in use, so a slot is written again only after its batch was used.
    """

    def __init__(self, slots: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.slots = slots
        self.images = _shared((slots, *shape), dtype)
        self.labels = _shared((slots, shape[0]), np.int64)
        """Labels of images; rows of token ids hold their targets themselves."""


def _shared(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)


class _Reading(Dataset[Any]):
    """The dataset of the loader processes: it fills slots, and tells the kernel what will be wanted later. What travels back is slot,
    length, and of token ids how many a row has."""

    def __init__(self, dataset: Any, plan: Plan, ring: _Ring, processes: int) -> None:
        self._splits = {name: dataset.split(name) for name in dataset.manifest["splits"]}
        self._plan = plan
        self._ring = ring
        self._processes = processes
        self._ahead = ADVISED_AHEAD * processes
        advise = dataset.manifest["bytes"] >= ADVISED_BYTES * dataset.manifest["samples"]
        self.order = plan.order()
        self._advised = 0 if advise else len(self.order)

    def __getitem__(self, place: int) -> tuple[int, int, int]:
        end = min(place + self._ahead + 1, len(self.order))
        for coming in range(max(place, self._advised), end, self._processes):  # a process meets every `processes`-th batch again
            split, indices = self._plan.share(self.order[coming])
            self._splits[split].prefetch(indices)
            self._advised = coming + self._processes
        slot = place % self._ring.slots
        found = self._plan.read(self._splits, self.order[place], out=self._ring.images[slot])
        if not isinstance(found, tuple):
            return slot, len(found), found.shape[1]
        self._ring.labels[slot, : len(found[1])] = found[1]
        return slot, len(found[1]), 0


def loader_processes(device: str, local_world_size: int) -> int:
    """Return, beside a GPU, as many as there are cores for; on the CPU one, since it shares the cores with the training."""
    if device == "cpu":
        return 1
    return max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) // local_world_size))


def computing_threads(device: str, threads: int, local_world_size: int, processes: int) -> int:
    """Return the threads of this process. Beside a GPU it only copies batches, and those of its threads that wait for one another want a
    core each: where loader processes hold them, a copy of a quarter of a megabyte takes milliseconds (H200, 16 cores, 16 threads beside 8
    processes).
    """
    if device == "cpu":
        return threads
    return max(1, min(threads, len(os.sched_getaffinity(0)) // local_world_size - processes))


def start_reading(dataset: Any, plan: Plan, processes: int) -> Batches:
    """Start the loader processes. The batches of `plan` in order, valid until the next one is asked for: images uint8 [batch, height,
    width, channels] and labels int64, or of token sequences inputs and targets, [batch, tokens] each."""
    parent = os.getpid()
    of_tokens = isinstance(dataset, slipway_reader.Sequences)
    sample, dtype = ((dataset.length + 1,), np.int32) if of_tokens else ((*dataset.size, dataset.channels), np.uint8)
    ring = _Ring(BATCHES_AHEAD * processes + 1, (plan.batch_size, *sample), dtype)
    reading = _Reading(dataset, plan, ring, processes)
    loader = DataLoader(
        reading,
        sampler=range(len(reading.order)),
        batch_size=None,
        num_workers=processes,
        collate_fn=_as_it_is,
        worker_init_fn=lambda _: slipway_reader.die_with_parent(parent),
        multiprocessing_context="fork",
        prefetch_factor=BATCHES_AHEAD,
    )
    images, labels = torch.from_numpy(ring.images), torch.from_numpy(ring.labels)
    return _rows(iter(loader), images) if of_tokens else _views(iter(loader), images, labels)


def from_memory(dataset: Any, plan: Plan) -> Batches:
    """Yield the first batch of this rank again and again."""
    for inputs, labels in repeat_first(dataset, plan):
        yield torch.from_numpy(inputs), torch.from_numpy(labels)


def to_device(batch: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the batch on `device`. To a GPU it goes through pinned memory of PyTorch's allocator, which knows when the copy is done: the
    slot is free when this returns, and nobody waits for the GPU.
    """
    return batch if device.type == "cpu" else batch.pin_memory().to(device, non_blocking=True)


def _views(filled: Iterator[tuple[int, int, int]], images: torch.Tensor, labels: torch.Tensor) -> Batches:
    for slot, length, _ in filled:
        yield images[slot, :length], labels[slot, :length]


def _rows(filled: Iterator[tuple[int, int, int]], ids: torch.Tensor) -> Batches:
    for slot, length, tokens in filled:
        yield inputs_and_targets(ids[slot, :length, :tokens])


def _as_it_is(batch: Any) -> Any:
    return batch
