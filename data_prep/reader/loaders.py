"""Read batches in loader processes, into memory that they share with this process: only numbers travel between them."""

import contextlib
import json
import math
import mmap
import os
import pickle
import signal
import sys
import time
import traceback
import weakref
from collections import deque
from multiprocessing.connection import Connection, Pipe
from typing import Any, Deque, Dict, Generator, List, Sequence, Tuple, Type

import numpy as np

from .errors import DatasetChanged, DatumError, DecodeError, ReaderError
from .parent_process import die_with_parent

CACHE_BYTES = 32 << 20  # a ring that a processor's last cache holds is written and read twice as fast as a larger one
BATCHES_AHEAD = 4  # per loader process, at most
MAX_PROCESSES = 8
FIRST_PROCESSES = 2  # that are given batches, until this process has to wait for one
LATE = 0.05  # of the time between two batches: who waits longer gets another process
SPARE = 3  # slots beside those to be filled: the batch in use, the one before, and one that a GPU still copies
ENDLESS = 1 << 62  # batches
START_METHODS = ("fork", "spawn")
_SPAWNED = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[1]); importlib.import_module(sys.argv[2]).serve_spawned(sys.argv[3:])"
)

KINDS: Dict[str, Type[Exception]] = {kind.__name__: kind for kind in (MemoryError, DatasetChanged, DatumError, DecodeError, ReaderError)}
"""The errors of a loader process that are raised as what they are; of all others the name and the words."""

Arrays = Tuple[np.ndarray, np.ndarray]


class Slot:
    """Memory for one batch. No file is left behind, and the 64 MB that Docker gives /dev/shm do not matter. It exists once it is written,
    so slots that are not needed cost nothing."""

    def __init__(self, shape: Tuple[int, ...], dtype: Any, descriptor: int, number: int) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
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
        images = whole[: self._pixels].view(self.dtype).reshape(self.shape)
        return images, whole[self._labels : self._labels + self.shape[0] * 8].view(np.int64)

    @property
    def is_held(self) -> bool:
        """Return True while anybody has the arrays that were made last, or a part of them."""
        return self._batch() is not None


class Loaders:
    """Processes that fill slots in a given order. As many are given batches as it takes until nobody waits for them.

    `reading.fill(place, slot, coming)` reads the batch at `place` of the order into a slot, and returns samples and, of token ids, how many
    a row has; `coming` is the place that comes next to this process, or -1.

    They are forked at once, best while this process is small and has few threads. With `spawn` each is a new Python, which takes a fifth of
    a second to start and gets `reading` pickled.
    """

    def __init__(  # noqa: PLR0913
        self, reading: Any, length: int, processes: int, shape: Tuple[int, ...], dtype: Any, start_method: str = "fork"
    ) -> None:
        self._each = min(BATCHES_AHEAD, max(CACHE_BYTES // (processes * _bytes_of(shape, dtype)), 1 if processes > 1 else 2))
        self._held: List[Slot] = []
        self._length = length
        self._given = 0
        self._under_way: Deque[Tuple[_Process, Slot]] = deque()
        self._processes: List[_Process] = []
        count = self._each * processes + SPARE
        memory = os.memfd_create("slipway-batches", 0) if start_method == "spawn" else -1  # new Pythons inherit it
        try:
            if memory >= 0:
                os.ftruncate(memory, count * slot_bytes(shape, dtype))
            self.slots = [Slot(shape, dtype, memory, number) for number in range(count)]
            pickled = pickle.dumps((reading, count, shape, self.slots[0].dtype)) if memory >= 0 else b""
            for _ in range(processes):
                self._processes.append(_Process(reading, self.slots, self._processes, memory))
        finally:
            if memory >= 0:
                os.close(memory)
        if pickled:  # that may be more than a pipe holds: all of them start before one is waited for
            for process in self._processes:
                process.send(pickled)
        self._free = self.slots[::-1]  # what was used last is used next: it may still be in a cache
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
                samples, tokens = process.answer()
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
            process.send(b"%d %d %d" % (self._given, self.slots.index(slot), coming if coming < self._length else -1))
            self._under_way.append((process, slot))
            self._given += 1


class _Process:
    """A loader process, and the two pipes to and from it."""

    def __init__(self, reading: Any, slots: Sequence[Slot], others: Sequence["_Process"], memory: int) -> None:
        self._parent, self.pid = os.getpid(), 0
        orders, self._orders = Pipe(duplex=False)
        self._answers, answers = Pipe(duplex=False)
        if memory >= 0:
            numbers = (orders.fileno(), answers.fileno(), memory, self._parent)
            for descriptor in numbers[:2]:
                os.set_inheritable(descriptor, True)
            words = [sys.executable, "-c", _SPAWNED, json.dumps(sys.path), __name__] + list(map(str, numbers))
            self.pid = os.posix_spawn(sys.executable, words, os.environ, setsigmask=[signal.SIGINT])
        else:
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    for process in list(others) + [self]:  # or else the others would not see that this process has closed them
                        process.close()
                    _serve(self._parent, reading, slots, orders, answers)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
        orders.close()
        answers.close()

    def __del__(self) -> None:
        self.end()  # of batches that nobody has begun to read

    def send(self, order: bytes) -> None:
        """Let the process fill a slot: place of the batch, slot, place of its next batch or -1. A new Python gets `reading` first."""
        with contextlib.suppress(BrokenPipeError):  # `answer` finds out how it ended
            self._orders.send_bytes(order)

    def answer(self) -> Tuple[int, int]:
        """Wait for the batch that was ordered first. Raises what the process has raised, or how it ended."""
        try:
            numbers, _, error = self._answers.recv_bytes().partition(b"\n")
        except (EOFError, OSError):  # the end of the pipe, also in the midst of an answer
            raise self._how_it_ended() from None
        if error:
            names, words, trace = json.loads(error.decode())
            raise _error(names, words) from RuntimeError("in a loader process:\n" + trace)
        samples, tokens = map(int, numbers.split())
        return samples, tokens

    def end(self) -> None:
        """Kill the process, which has nothing to lose, and wait for that. It may not see that its pipe is closed: whatever this process
        forked later has the pipe too. In such a process the loader process belongs to its parent."""
        pid, self.pid = self.pid, 0  # first: what is interrupted here must not kill another process of that number
        if pid:
            self.close()
            if os.getpid() == self._parent:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):  # a program may ignore SIGCHLD, or wait for any child
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)

    def close(self) -> None:
        """Close this side of the pipes."""
        self._orders.close()
        self._answers.close()

    def _how_it_ended(self) -> Exception:
        """Return the error that says how the process has ended by itself."""
        pid, self.pid = self.pid, 0
        self.close()
        try:
            status = os.waitpid(pid, 0)[1]
        except ChildProcessError:
            advice = "its exit code is lost, since this program ignores SIGCHLD or waits for any child"
            return RuntimeError("loader process %d has ended; %s" % (pid, advice))
        if not os.WIFSIGNALED(status):
            return RuntimeError("loader process %d has ended with exit code %d" % (pid, os.WEXITSTATUS(status)))
        by = os.WTERMSIG(status)
        how = "loader process %d is killed by signal %s" % (pid, next((one.name for one in signal.Signals if one == by), by))
        if by == signal.SIGBUS:
            return DatasetChanged(how + ": a shard was cut while it was read, or its disk cannot read it; stage the dataset again")
        return RuntimeError(how)


def check_start_method(method: str) -> None:
    """Raise ValueError where loader processes cannot be started in this way."""
    if method not in START_METHODS:
        raise ValueError("start method %r is not known; valid: %s" % (method, ", ".join(START_METHODS)))
    if method == "spawn" and not (sys.executable and hasattr(os, "memfd_create")):
        words = "start method 'spawn' needs Python 3.8 or later, and its path in sys.executable, which is %r; 'fork' serves all"
        raise ValueError(words % sys.executable)


def serve_spawned(words: Sequence[str]) -> None:
    """Fill slots in a new process of Python."""
    orders, answers, memory, parent = map(int, words)
    first = Connection(orders, writable=False)
    reading, count, shape, dtype = pickle.loads(first.recv_bytes())  # what the parent pickled: no other process has its end of the pipe
    slots = [Slot(shape, dtype, memory, number) for number in range(count)]
    _serve(parent, reading, slots, first, Connection(answers, readable=False))


def _serve(parent: int, reading: Any, slots: Sequence[Slot], orders: Any, answers: Any) -> None:
    """Fill slots until the parent closes the pipe of orders, or ends."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        try:
            place, slot, coming = map(int, orders.recv_bytes().split())
        except EOFError:
            return
        try:
            answer = b"%d %d" % reading.fill(place, slots[slot], coming)
        except Exception as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            answer = b"\n" + json.dumps([names, str(error), traceback.format_exc()]).encode()
        answers.send_bytes(answer)


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
    return max(1, min(MAX_PROCESSES, len(os.sched_getaffinity(0)) // local_world_size))


def _bytes_of(shape: Sequence[int], dtype: Any) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _wait_for_copies(slot: Slot) -> None:
    for copy in slot.copies:
        copy.synchronize()
    slot.copies.clear()
