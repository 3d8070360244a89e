"""Batches from the staged dataset, read and decoded in loader processes that are forked while this process is still small."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import slipway_reader
import torch
from slipway_program.feed import inputs_and_targets, repeat_first
from slipway_program.plan import Plan

from .loaders import Loaders, Slot

MOST_PROCESSES = 8

Batches = Iterator["tuple[torch.Tensor, torch.Tensor]"]


class _Reading:
    """What a loader process does: it fills slots, and reads ahead the batch that comes next where a disk has to be waited for."""

    def __init__(self, dataset: Any, plan: Plan) -> None:
        self._splits = {name: dataset.split(name) for name in dataset.manifest["splits"]}
        self._plan = plan
        self.order = plan.order()

    def fill(self, place: int, slot: Slot, coming: int) -> tuple[int, int]:
        """Read the batch at `place` of the order into a slot. Returns samples, and of token ids how many a row has."""
        if slipway_reader.waits_for_disk():
            for number in (place,) if coming < 0 else (place, coming):
                split, indices = self._plan.share(self.order[number])
                self._splits[split].prefetch(indices)
        found = self._plan.read(self._splits, self.order[place], out=slot.images)
        if not isinstance(found, tuple):
            return len(found), found.shape[1]
        slot.labels[: len(found[1])] = found[1]
        return len(found[1]), 0


class _Pinned:
    """The slots whose memory is registered with CUDA, so that the GPU copies from them, without another copy in between. Where CUDA refuses
    one, no other is tried."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self._registered: set[int] = set()
        self._refused = False

    def add(self, slots: list[Slot]) -> None:
        """Let the slots be registered when they are first copied to a GPU."""
        for slot in slots:
            self._slots.update({_address(slot.images): slot, _address(slot.labels): slot})

    def copy(self, batch: torch.Tensor, device: torch.device) -> torch.Tensor | None:
        """Copy from a slot to a GPU, and note the copy in the slot, whose loader waits for it. Returns None for a batch in no such slot."""
        slot = self._slots.get(batch.data_ptr())
        if slot is None or not batch.is_contiguous() or not self._register(slot, device):
            return None
        copied = batch.to(device, non_blocking=True)
        slot.copies.append(torch.cuda.current_stream(device).record_event())
        return copied

    def remove(self, slots: list[Slot]) -> None:
        """Forget the slots. No copy from them is under way."""
        for slot in slots:
            for array in (slot.images, slot.labels):
                self._slots.pop(_address(array), None)
            if _address(slot.images) in self._registered:
                self._registered.remove(_address(slot.images))
                torch.cuda.cudart().cudaHostUnregister(_address(slot.images))

    def _register(self, slot: Slot, device: torch.device) -> bool:
        address = _address(slot.images)
        if address not in self._registered and not self._refused:
            if int(torch.cuda.cudart().cudaHostRegister(address, len(slot.memory), 0)) == 0:
                self._registered.add(address)
            else:
                self._refused = True
                # CUDA would blame the next kernel for this refusal: let it be one that does nothing.
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device=device)
        return address in self._registered


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


_pinned = _Pinned()


def loader_processes(device: str, local_world_size: int) -> int:
    """Return how many loader processes a rank starts: beside a GPU as many as there are cores for; on the CPU one, since it shares cores
    with the training. How many of them get batches is a matter of how long the training waits."""
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
    """Start the loader processes, and return the batches of `plan` in order, each valid until the next one is asked for: images uint8
    [batch, height, width, channels] and labels int64, or of token sequences inputs and targets, [batch, tokens] each."""
    of_tokens = isinstance(dataset, slipway_reader.Sequences)
    sample, dtype = ((dataset.length + 1,), np.int32) if of_tokens else ((*dataset.size, dataset.channels), np.uint8)
    reading = _Reading(dataset, plan)
    loaders = Loaders(reading.fill, len(reading.order), processes, (plan.batch_size, *sample), dtype)
    return _tensors(loaders)


def from_memory(dataset: Any, plan: Plan) -> Batches:
    """Yield the first batch of this rank again and again."""
    for inputs, labels in repeat_first(dataset, plan):
        yield torch.from_numpy(inputs), torch.from_numpy(labels)


def to_device(batch: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the batch on `device`, without waiting for the GPU. One that lies in no slot goes through pinned memory of PyTorch's
    allocator, which knows when the copy is done.
    """
    if device.type == "cpu":
        return batch
    copied = _pinned.copy(batch, device)
    return batch.pin_memory().to(device, non_blocking=True) if copied is None else copied


def _tensors(loaders: Loaders) -> Batches:
    _pinned.add(loaders.slots)
    try:
        with contextlib.closing(loaders.batches()) as batches:
            for slot, samples, tokens in batches:
                images = torch.from_numpy(slot.images)[:samples]
                yield inputs_and_targets(images[:, :tokens]) if tokens else (images, torch.from_numpy(slot.labels)[:samples])
    finally:
        _pinned.remove(loaders.slots)
