"""Loader processes, forked while this process is small, and the memory that they share with it: only numbers travel between them."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import signal
import struct
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import slipway_reader

CACHE_BYTES = 32 << 20  # a ring that a processor's last cache holds is written and read twice as fast as a larger one
BATCHES_AHEAD = 4  # per loader process, at most
FIRST_PROCESSES = 2  # that are given batches, until this process has to wait for one
LATE = 0.05  # of the time between two batches: who waits longer gets another process
_ORDER = struct.Struct("3q")  # the place of a batch in the order, its slot, the place that comes next to this process (-1: none)
_ANSWER = struct.Struct("3q")  # samples, tokens of a row (0: images), bytes of an error that follow

KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        MemoryError,
        slipway_reader.DatasetChanged,
        slipway_reader.DatumError,
        slipway_reader.DecodeError,
        slipway_reader.ReaderError,
    )
}
"""The errors of a loader process that are raised as what they are; of all others the name and the words."""

Fill = Callable[[int, "Slot", int], "tuple[int, int]"]
"""(place, where to, the place that comes next or -1) -> samples, and tokens of a row."""


class Slot:
    """Memory for one batch. It is anonymous: no file is left behind, and the 64 MB that Docker gives /dev/shm do not matter. It exists once
    it is written, so slots that are not needed cost nothing."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        pixels = math.prod(shape) * np.dtype(dtype).itemsize
        labels = -(-pixels // mmap.PAGESIZE) * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, labels + shape[0] * 8)
        self.images = np.frombuffer(self.memory, dtype, math.prod(shape)).reshape(shape)
        self.labels = np.frombuffer(self.memory, np.int64, shape[0], labels)
        """Labels of images; rows of token ids hold their targets themselves."""
        self.copies: list[Any] = []
        """CUDA events of copies from here that may not have ended."""


class Loaders:
    """Processes that fill slots in a given order. As many are given batches as it takes until nobody waits for them."""

    def __init__(self, fill: Fill, length: int, processes: int, shape: tuple[int, ...], dtype: Any) -> None:
        batch = math.prod(shape) * np.dtype(dtype).itemsize
        self._each = min(BATCHES_AHEAD, max(CACHE_BYTES // (processes * batch), 1 if processes > 1 else 2))
        self.slots = [Slot(shape, dtype) for _ in range(self._each * processes + 2)]  # one in use, one that a GPU still copies
        self._free = self.slots[::-1]  # what was used last is used next: it may still be in a cache
        self._length = length
        self._given = 0
        self._under_way: deque[tuple[_Process, Slot]] = deque()
        self._processes: list[_Process] = []
        for _ in range(processes):
            self._processes.append(_Process(fill, self.slots, self._processes))
        self.active = min(FIRST_PROCESSES, processes)
        self._give()

    def batches(self) -> Generator[tuple[Slot, int, int], None, None]:
        """Yield slot, samples and tokens of each batch in order. A slot is filled anew after the next one is asked for."""
        copying: deque[Slot] = deque()
        try:
            taken = math.inf
            while self._under_way:
                process, slot = self._under_way.popleft()
                asked = time.perf_counter()
                samples, tokens = process.answer()
                if time.perf_counter() - asked > LATE * (asked - taken) and asked > taken:
                    self.active = min(self.active + 1, len(self._processes))
                taken = time.perf_counter()
                self._give()
                yield slot, samples, tokens
                copying.append(slot)
                while copying and (len(copying) > 1 or not copying[0].copies or copying[0].copies[-1].query()):
                    self._take_back(copying.popleft())
                self._give()
        finally:
            for slot in copying:
                self._take_back(slot)
            for process in self._processes:
                process.end()

    def _take_back(self, slot: Slot) -> None:
        for copy in slot.copies:
            copy.synchronize()
        slot.copies.clear()
        self._free.append(slot)

    def _give(self) -> None:
        while self._given < self._length and len(self._under_way) < self._each * self.active and self._free:
            coming = self._given + self.active
            process, slot = self._processes[self._given % self.active], self._free.pop()
            process.order(self._given, self.slots.index(slot), coming if coming < self._length else -1)
            self._under_way.append((process, slot))
            self._given += 1


class _Process:
    """A loader process, and the two pipes to and from it."""

    def __init__(self, fill: Fill, slots: list[Slot], others: list[_Process]) -> None:
        parent = os.getpid()
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                slipway_reader.die_with_parent(parent)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                for process in [*others, self]:  # or else the others would not see that this process has closed them
                    process.close()
                _serve(fill, slots, orders, answers)
            finally:
                os._exit(0)
        os.close(orders)
        os.close(answers)

    def order(self, place: int, slot: int, coming: int) -> None:
        """Let the process fill a slot."""
        with contextlib.suppress(BrokenPipeError):  # `answer` finds out how it ended
            os.write(self._orders, _ORDER.pack(place, slot, coming))

    def answer(self) -> tuple[int, int]:
        """Wait for the batch that was ordered first. Raises what the process has raised, or how it ended."""
        samples, tokens, size = _ANSWER.unpack(self._read(_ANSWER.size))
        if size:
            names, words, trace = json.loads(self._read(size))
            kind = next((KINDS[name] for name in names if name in KINDS), None)
            error = RuntimeError(f"{names[0]}: {words}") if kind is None else kind(words)
            raise error from RuntimeError("in a loader process:\n" + trace)
        return samples, tokens

    def end(self) -> None:
        """Kill the process, which has nothing to lose, and wait for that. It may not see that its pipe is closed: whatever this process
        forked later has the pipe too."""
        if self.pid:
            self.close()
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def close(self) -> None:
        """Close this side of the pipes."""
        os.close(self._orders)
        os.close(self._answers)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = os.read(self._answers, size - len(found))
            if not part:
                pid, self.pid = self.pid, 0
                self.close()
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                how = f"is killed by signal: {signal.strsignal(-code)}" if code < 0 else f"has ended with exit code {code}"
                raise RuntimeError(f"loader process {pid} {how}")
            found += part
        return found


def _serve(fill: Fill, slots: list[Slot], orders: int, answers: int) -> None:
    while order := os.read(orders, _ORDER.size):
        place, slot, coming = _ORDER.unpack(order)
        try:
            answer = _ANSWER.pack(*fill(place, slots[slot], coming), 0)
        except Exception as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            text = json.dumps([names, str(error), traceback.format_exc()]).encode()
            answer = _ANSWER.pack(0, 0, len(text)) + text
        while answer:
            answer = answer[os.write(answers, answer) :]
