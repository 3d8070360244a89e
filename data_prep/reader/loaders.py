"""Read batches in loader processes, into memory that they share with this process: only numbers travel between them."""

import contextlib
import json
import math
import mmap
import os
import pickle
import signal
import struct
import sys
import time
import traceback
import weakref
from collections import deque
from typing import Any, Deque, Dict, Generator, List, Sequence, Tuple, Type

import numpy as np

from .errors import DatasetChanged, DatumError, DecodeError, ReaderError
from .parent_process import die_with_parent

CACHE_BYTES = 32 << 20  # a ring that a processor's last cache holds is written and read twice as fast as a larger one
BATCHES_AHEAD = 4  # per loader process, at most
MOST_PROCESSES = 8
FIRST_PROCESSES = 2  # that are given batches, until this process has to wait for one
LATE = 0.05  # of the time between two batches: who waits longer gets another process
SPARE = 3  # slots beside those to be filled: the batch in use, the one before, and one that a GPU still copies
ENDLESS = 1 << 62  # batches
START_METHODS = ("fork", "spawn")
_ORDER = struct.Struct("3q")  # the place of a batch in the order, its slot, the place that comes next to this process (-1: none)
_ANSWER = struct.Struct("3q")  # samples, tokens of a row (0: images), bytes of an error that follow
_SPAWNED = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[1]); importlib.import_module(sys.argv[2]).serve_spawned(sys.argv[3:])"
)

KINDS: Dict[str, Type[Exception]] = {kind.__name__: kind for kind in (MemoryError, DatasetChanged, DatumError, DecodeError, ReaderError)}
"""The errors of a loader process that are raised as what they are; of all others the name and the words."""

Arrays = Tuple[np.ndarray, np.ndarray]


class Slot:
    """Memory for one batch. No file is left behind, and the 64 MB that Docker gives /dev/shm do not matter. It exists once it is written,
    so slots that are not needed cost nothing."""

    def __init__(self, shape: Tuple[int, ...], dtype: Any, descriptor: int = -1, number: int = 0) -> None:
        self._shape, self._dtype = shape, dtype
        self._pixels = _bytes_of(shape, dtype)
        self._labels = _whole_pages(self._pixels)
        self.bytes = slot_bytes(shape, dtype)
        self.memory = mmap.mmap(descriptor, self.bytes, offset=0 if descriptor < 0 else number * self.bytes)
        self._batch: Any = None
        self.copies: List[Any] = []
        """CUDA events of copies from here that may not have ended."""
        self.addresses: List[int] = [array.ctypes.data for array in self.arrays()]

    def arrays(self) -> Arrays:
        """Return the memory as new arrays: images, and labels of images. Rows of token ids hold their targets themselves."""
        whole = np.frombuffer(self.memory, np.uint8)  # views of views refer to this one
        self._batch = weakref.ref(whole)
        images = whole[: self._pixels].view(self._dtype).reshape(self._shape)
        return images, whole[self._labels : self._labels + self._shape[0] * 8].view(np.int64)

    @property
    def is_held(self) -> bool:
        """Return True while anybody has the arrays that were made last, or a part of them."""
        return self._batch() is not None


class Loaders:
    """Processes that fill slots in a given order. As many are given batches as it takes until nobody waits for them.

    `reading.fill(place, slot, coming)` reads the batch at `place` of the order into a slot, and returns samples and, of token ids, how many
    a row has; `coming` is the place that comes next to this process, or -1. `reading.check_files()` raises DatasetChanged for a cut file.

    They are forked at once, best while this process is small and has few threads. With `spawn` each is a new Python, which takes a fifth of
    a second to start and gets `reading` pickled.
    """

    def __init__(  # noqa: PLR0913
        self, reading: Any, length: int, processes: int, shape: Tuple[int, ...], dtype: Any, start_method: str = "fork"
    ) -> None:
        self._each = min(BATCHES_AHEAD, max(CACHE_BYTES // (processes * _bytes_of(shape, dtype)), 1 if processes > 1 else 2))
        count = self._each * processes + SPARE
        start = _Start(start_method, reading, count, shape, dtype)
        self.slots = start.slots
        self._free = self.slots[::-1]  # what was used last is used next: it may still be in a cache
        self._held: List[Slot] = []
        self._reading, self._length = reading, length
        self._given = 0
        self._under_way: Deque[Tuple[_Process, Slot]] = deque()
        self._processes: List[_Process] = []
        with start:
            for _ in range(processes):
                self._processes.append(_Process(start, self._processes))
        self.active = min(FIRST_PROCESSES, processes)
        self._give()

    def batches(self) -> Generator[Tuple[np.ndarray, np.ndarray, int], None, None]:
        """Yield images, labels and tokens of each batch in order. A slot is filled anew when nobody has its arrays any more and no GPU
        copies them. Who keeps many batches gets copies."""
        try:
            taken = math.inf
            while self._under_way:
                process, slot = self._under_way.popleft()
                asked = time.perf_counter()
                samples, tokens = self._answer(process)
                if time.perf_counter() - asked > LATE * (asked - taken) and asked > taken:
                    self.active = min(self.active + 1, len(self._processes))
                taken = time.perf_counter()
                self._take_back()
                self._give()
                yield self._arrays(slot, samples, tokens)
                self._take_back()
                self._give()
        finally:
            for process in self._processes:
                process.end()
            for slot in self.slots:
                _wait_for_copies(slot)

    def _answer(self, process: "_Process") -> Tuple[int, int]:
        try:
            return process.answer()
        except _Killed as error:
            if error.by == signal.SIGBUS:
                self._reading.check_files()  # of a file that was cut while it was mapped
            raise

    def _arrays(self, slot: Slot, samples: int, tokens: int) -> Tuple[np.ndarray, np.ndarray, int]:
        images, labels = (array[:samples] for array in slot.arrays())
        if len(self._held) >= SPARE:
            self._free.append(slot)
            return images.copy(), labels.copy(), tokens
        self._held.append(slot)
        return images, labels, tokens

    def _take_back(self) -> None:
        for slot in [slot for slot in self._held if not slot.is_held]:
            if len(self._held) == SPARE or not slot.copies or slot.copies[-1].query():
                _wait_for_copies(slot)
                self._held.remove(slot)
                self._free.append(slot)

    def _give(self) -> None:
        while self._given < self._length and len(self._under_way) < self._each * self.active and self._free:
            coming = self._given + self.active
            process, slot = self._processes[self._given % self.active], self._free.pop()
            process.order(self._given, self.slots.index(slot), coming if coming < self._length else -1)
            self._under_way.append((process, slot))
            self._given += 1


class _Start:
    """What processes are started with: slots and, for `spawn`, the file in memory that has them, and behind them the pickled reading."""

    def __init__(self, method: str, reading: Any, count: int, shape: Tuple[int, ...], dtype: Any) -> None:
        if method not in START_METHODS:
            raise ValueError("start method %r is not known; valid: %s" % (method, ", ".join(START_METHODS)))
        self.reading, self.memory = reading, -1
        if method == "spawn":
            if not hasattr(os, "memfd_create"):
                raise ValueError("start method 'spawn' needs Python 3.8 or later; 'fork' serves all")
            self.memory = os.memfd_create("slipway-batches")
            self.pickled_at = count * slot_bytes(shape, dtype)
            os.ftruncate(self.memory, self.pickled_at)
            with open(self.memory, "r+b", closefd=False) as file:
                file.seek(self.pickled_at)
                pickle.dump((reading, count, shape, np.dtype(dtype).str), file)
        self.slots = [Slot(shape, dtype, self.memory, number) for number in range(count)]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        if self.memory >= 0:
            os.close(self.memory)

    def serve(self, orders: int, answers: int) -> None:
        """Fill slots in this process, which was just forked."""
        if self.memory < 0:
            _serve(self.reading, self.slots, orders, answers)
            return
        numbers = (orders, answers, self.memory, self.pickled_at)
        for descriptor in numbers[:3]:
            os.set_inheritable(descriptor, True)
        os.execv(sys.executable, [sys.executable, "-c", _SPAWNED, json.dumps(sys.path), __name__, *map(str, numbers)])


def serve_spawned(words: Sequence[str]) -> None:
    """Fill slots in a new process of Python."""
    orders, answers, memory, pickled_at = map(int, words)
    with open(memory, "rb", closefd=False) as file:
        file.seek(pickled_at)
        reading, count, shape, dtype = pickle.load(file)
    _serve(reading, [Slot(shape, dtype, memory, number) for number in range(count)], orders, answers)


class _Killed(RuntimeError):
    """A loader process was killed, `by` a signal."""

    def __init__(self, pid: int, by: int) -> None:
        super().__init__("loader process %d is killed by signal %s" % (pid, signal.Signals(by).name))
        self.by = by


class _Process:
    """A loader process, and the two pipes to and from it."""

    def __init__(self, start: _Start, others: Sequence["_Process"]) -> None:
        self._parent, self.pid = os.getpid(), 0
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with_parent(self._parent)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                for process in list(others) + [self]:  # or else the others would not see that this process has closed them
                    process.close()
                start.serve(orders, answers)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(orders)
        os.close(answers)

    def __del__(self) -> None:
        self.end()  # of batches that nobody has begun to read

    def order(self, place: int, slot: int, coming: int) -> None:
        """Let the process fill a slot."""
        with contextlib.suppress(BrokenPipeError):  # `answer` finds out how it ended
            os.write(self._orders, _ORDER.pack(place, slot, coming))

    def answer(self) -> Tuple[int, int]:
        """Wait for the batch that was ordered first. Raises what the process has raised, or how it ended."""
        samples, tokens, size = _ANSWER.unpack(self._read(_ANSWER.size))
        if size:
            names, words, trace = json.loads(self._read(size).decode())
            raise _error(names, words) from RuntimeError("in a loader process:\n" + trace)
        return samples, tokens

    def end(self) -> None:
        """Kill the process, which has nothing to lose, and wait for that. It may not see that its pipe is closed: whatever this process
        forked later has the pipe too. In such a process the loader process belongs to its parent."""
        pid, self.pid = self.pid, 0  # first: what is interrupted here must not close again a descriptor that has become another file's
        if pid:
            self.close()
            if os.getpid() == self._parent:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):  # a program may ignore SIGCHLD, or wait for any child
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)

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
                try:
                    status = os.waitpid(pid, 0)[1]
                except ChildProcessError:
                    advice = "its exit code is lost, since this program ignores SIGCHLD or waits for any child"
                    raise RuntimeError("loader process %d has ended; %s" % (pid, advice)) from None
                if not os.WIFSIGNALED(status):
                    raise RuntimeError("loader process %d has ended with exit code %d" % (pid, os.WEXITSTATUS(status)))
                raise _Killed(pid, os.WTERMSIG(status))
            found += part
        return found


def _serve(reading: Any, slots: Sequence[Slot], orders: int, answers: int) -> None:
    while True:
        order = os.read(orders, _ORDER.size)
        if not order:
            return
        place, slot, coming = _ORDER.unpack(order)
        try:
            answer = _ANSWER.pack(*reading.fill(place, slots[slot], coming), 0)
        except Exception as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            text = json.dumps([names, str(error), traceback.format_exc()]).encode()
            answer = _ANSWER.pack(0, 0, len(text)) + text
        while answer:
            answer = answer[os.write(answers, answer) :]


def _error(names: Sequence[str], words: str) -> Exception:
    """Make the error again from the names of its class and of those above it."""
    kind = next((KINDS[name] for name in names if name in KINDS), None)
    return RuntimeError("%s: %s" % (names[0], words)) if kind is None else kind(words)


def slot_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Return how many bytes the slot of a batch has: two areas of whole pages."""
    return _whole_pages(_bytes_of(shape, dtype)) + _whole_pages(8 * shape[0])


def loader_processes(local_world_size: int) -> int:
    """Return how many loader processes a rank may start: there are cores for so many. How many of them get batches is a matter of how long
    the training waits."""
    return max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) // local_world_size))


def _bytes_of(shape: Sequence[int], dtype: Any) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _wait_for_copies(slot: Slot) -> None:
    for copy in slot.copies:
        copy.synchronize()
    slot.copies.clear()
