"""Measure how fast the shards of a dataset are read where they lie: from end to end, and sample by sample in the order of an epoch."""

from __future__ import annotations

import os
import statistics
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import numpy as np

from base.errors import DatasetError
from base.humanize import format_size
from cluster.machine import memory_bytes
from data_prep.manifest import Manifest, Shard
from data_prep.mounts import Mount, place_of
from data_prep.reader import open_dataset, shards
from data_prep.reader.sampling import samples_at
from data_prep.sequences.manifest import SequenceManifest, SequenceShard

SEQUENTIAL: Final = "sequential"
RANDOM: Final = "random"
READER: Final = "reader"
COLD: Final = "cold"
WARM: Final = "warm"
FILLING: Final = "filling"
"""The memory of a pass that is not counted: it only brings into memory what the next one reads from there."""
SEQUENTIAL_BYTES: Final = 4 << 20
"""The size of one read of a file from end to end, as staging reads."""
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
LOOKS: Final = 64
"""How many pages are looked at after they were dropped from memory."""
BATCH: Final = 64
AHEAD: Final = 8
"""Batches that the reader asks the kernel for before it needs them."""


class Piece(NamedTuple):
    """A part of a file that is read at once: the number of the file, where the part begins, and its length."""

    file: int
    offset: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a measurement. One pass reads at most `bytes`, and ends after `seconds`."""

    bytes: int = 1 << 30
    seconds: float = 5.0
    repeats: int = 3
    threads: int = 8


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What one way to read gave, in each repeat. Bytes are those of whole pages, which is what a disk reads."""

    access: str
    memory: str
    bytes_per_s: tuple[float, ...]
    samples_per_s: tuple[float, ...]

    @property
    def samples(self) -> float:
        """Return the median of the repeats, in samples per second."""
        return statistics.median(self.samples_per_s)


@dataclass(frozen=True, kw_only=True)
class ReadRates:
    """What a place gives of the samples of a dataset. `sample_bytes`: of a sample as it is stored. `notes`: what the figures do not say."""

    sample_bytes: float
    mount: Mount | None
    rates: tuple[Rate, ...]
    notes: tuple[str, ...]

    @property
    def supply(self) -> Rate:
        """Return the rate that feeds training as long as memory does not hold the dataset: random reads, cold where that was possible."""
        return next(rate for memory in (COLD, WARM) for rate in self.rates if (rate.access, rate.memory) == (RANDOM, memory))


def measure_reads(root: Path, manifest: Manifest | SequenceManifest, options: Options, progress: Callable[[int, int], None]) -> ReadRates:
    """Read parts of the shards of the split `train`, else of the largest one, in each way, cold and then warm.

    Raises DatasetError where a shard is not what the manifest says.
    """
    split = "train" if "train" in manifest.splits else max(manifest.splits, key=lambda name: manifest.splits[name].samples)
    chosen = [manifest.shards[index] for index in manifest.splits[split].shards]
    samples = sum(shard.samples for shard in chosen)
    if not samples:
        raise DatasetError(f"{root}: split {split!r} has no samples to read")
    sample_bytes = manifest.bytes / manifest.samples
    free = memory_bytes(key="MemAvailable") or options.bytes
    most = min(options.bytes, free // 4)
    count = max(1, min(samples, int(most / sample_bytes)))
    _, mount = place_of(root)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    notes: dict[str, None] = {}
    done, total = 0, 2 * 3 * options.repeats
    with _opened(root, chosen) as files:
        for repeat in range(options.repeats):
            indices = samples_at(0, repeat, samples, np.arange(count, dtype=np.int64))
            ways = {SEQUENTIAL: _sequential(chosen, repeat, most), RANDOM: _of_samples(root, manifest, chosen, indices)}
            for access, pieces in ways.items():
                cold = _forget(files, pieces, mount)
                notes |= dict.fromkeys(filter(None, [cold.note]))
                for memory in (COLD if cold.is_cold else FILLING, WARM):
                    read = _read(files, pieces, options)
                    pieces = pieces[: read.pieces]
                    per_sample = sample_bytes if access == SEQUENTIAL else read.bytes / read.pieces
                    rate = read.bytes / read.seconds
                    found.setdefault((access, memory), []).append((rate, rate / per_sample))
                    progress(done := done + 1, total)
            cold = _forget(files, ways[RANDOM], mount)
            for memory in (COLD if cold.is_cold else FILLING, WARM):
                rate = _read_as_training(root, split, indices, options.seconds)
                found.setdefault((READER, memory), []).append((rate * sample_bytes, rate))
                progress(done := done + 1, total)
            shards.close_all()  # LMDB opens a file once in a process
    rates = [
        Rate(access=access, memory=memory, bytes_per_s=tuple(by[0] for by in each), samples_per_s=tuple(by[1] for by in each))
        for (access, memory), each in found.items()
        if memory != FILLING
    ]
    return ReadRates(sample_bytes=sample_bytes, mount=mount, rates=tuple(rates), notes=(*notes, *_notes(manifest.bytes, free, mount)))


def _notes(num_bytes: int, free: int, mount: Mount | None) -> Iterator[str]:
    if mount is not None and mount.kind == "memory":
        return
    if mount is not None and mount.kind == "network":
        yield "cold is of this machine: the server of the network storage may hold in its memory what was read before"
    fits, epochs = ("is smaller than", "only the first epoch reads") if num_bytes < free else ("is larger than", "every epoch reads")
    yield f"the dataset {fits} the free memory of this machine, {format_size(free)}: {epochs} at the cold rate"


@contextmanager
def _opened(root: Path, chosen: Sequence[Shard]) -> Iterator[list[int]]:
    """Open the files for reads of exactly the asked bytes. Raises DatasetError for one whose size is not that of the manifest."""
    with ExitStack() as stack:
        files = []
        for shard in chosen:
            files.append(os.open(root / shard.path, os.O_RDONLY | os.O_CLOEXEC))
            stack.callback(os.close, files[-1])
            if (size := os.fstat(files[-1]).st_size) != shard.bytes:
                raise DatasetError(
                    f"{root / shard.path} has {size} bytes, its manifest says {shard.bytes}: `slipway dataset verify {root}`"
                )
            os.fdatasync(files[-1])  # pages that the disk does not have yet are not dropped
            os.posix_fadvise(files[-1], 0, 0, os.POSIX_FADV_RANDOM)  # no read ahead: the threads ask for what is wanted
        yield files


def _sequential(chosen: Sequence[Shard], first: int, most: int) -> list[Piece]:
    """Return the files from end to end, up to `most` bytes, each time from another one on."""
    pieces: list[Piece] = []
    left = most
    for number in (*range(first % len(chosen), len(chosen)), *range(first % len(chosen))):
        for offset in range(0, min(left, chosen[number].bytes), SEQUENTIAL_BYTES):
            pieces.append(Piece(number, offset, min(SEQUENTIAL_BYTES, chosen[number].bytes - offset)))
        left -= chosen[number].bytes
        if left <= 0:
            break
    return pieces


def _of_samples(root: Path, manifest: Manifest | SequenceManifest, chosen: Sequence[Shard], indices: np.ndarray) -> list[Piece]:
    """Return the pages of these samples, in their order. Only LMDB's inner pages are read."""
    starts = list(accumulate((shard.samples for shard in chosen), initial=0))
    rows = sorted((int(index), row) for row, index in enumerate(indices))
    pieces: list[Piece] = [Piece(0, 0, 0)] * len(rows)
    width = manifest.id_bytes if isinstance(manifest, SequenceManifest) else 0
    shown, last = None, -1
    with ExitStack() as stack:
        for index, row in rows:
            number = bisect_right(starts, index) - 1
            if number != last:
                stack.close()
                shown, last = stack.enter_context(_places(root / chosen[number].name, chosen[number].bytes)), number
            assert shown is not None
            pieces[row] = _piece(number, index - starts[number], chosen[number], width, shown)
    return pieces


def _piece(number: int, sample: int, shard: Shard, width: int, place: Callable[[bytes], tuple[int, int]]) -> Piece:
    """Return the pages of a sample: those of its value, or of its row in a value of token sequences with ids of `width` bytes."""
    if isinstance(shard, SequenceShard):
        each = (shard.length + 1) * width
        start, _ = place(b"%08d" % (sample // shard.rows))
        start, size = start + sample % shard.rows * each, each
    else:
        start, size = place(b"%08d" % sample)
    first, end = start // PAGE * PAGE, -(-(start + size) // PAGE) * PAGE
    return Piece(number, first, min(end, shard.bytes) - first)


@contextmanager
def _places(directory: Path, num_bytes: int) -> Iterator[Callable[[bytes], tuple[int, int]]]:
    """Open a shard; yield a function from a key to where its value begins in the file, and its length. It reads no large value."""
    with (
        lmdb.open(
            str(directory), readonly=True, create=False, lock=False, readahead=False, map_size=num_bytes, lib_version=0
        ) as environment,
        environment.begin(buffers=True) as transaction,
    ):
        base = None

        def place(key: bytes) -> tuple[int, int]:
            nonlocal base
            value = transaction.get(key)
            if value is None:
                raise DatasetError(f"{directory} has no sample {key.decode()}: `slipway dataset verify {directory.parent}`")
            address = int(np.frombuffer(value, np.uint8).__array_interface__["data"][0])
            base = _map_start(address) if base is None else base
            return address - base, len(value)

        yield place


def _map_start(address: int) -> int:
    """Return where in memory byte 0 of the file lies that is mapped around `address`."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset = line.split()[:3]
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return start - int(offset, 16)
    raise DatasetError(f"the kernel does not tell which file is mapped at {address:#x}")


# Cold: what memory holds of the files is dropped, which needs no root, and looked at.


class Forgotten(NamedTuple):
    """The result of dropping pages: whether memory holds none of them any more, and what is to be said of that."""

    is_cold: bool
    note: str = ""


def _forget(files: Sequence[int], pieces: Sequence[Piece], mount: Mount | None) -> Forgotten:
    if mount is not None and mount.kind == "memory":
        return Forgotten(is_cold=False, note=f"no cold rate: {mount.type} is memory")
    shards.close_all()  # pages that are mapped are not dropped
    _drop(files)
    seen = _in_memory(files, pieces[:: max(1, len(pieces) // LOOKS)])
    if seen is None:
        return Forgotten(is_cold=True, note="whether memory held a part of what is called cold cannot be seen on this file system")
    if seen > 0.05:
        note = f"no cold rate: {seen:.0%} of the pages stayed in memory, since another process has them mapped; repeat it when none does"
        return Forgotten(is_cold=False, note=note)
    _drop(files)  # to look at a page may have read it
    return Forgotten(is_cold=True)


def _drop(files: Sequence[int]) -> None:
    for file in files:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _in_memory(files: Sequence[int], pieces: Sequence[Piece]) -> float | None:
    """Return the part of the pieces whose first page is in memory; None where the file system does not tell."""
    buffer, seen = bytearray(1), 0
    for piece in pieces:
        try:
            seen += os.preadv(files[piece.file], [buffer], piece.offset, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        except OSError:
            return None
    return seen / len(pieces)


# Reading


class _Done(NamedTuple):
    """The pieces that were read, which are the first of all, their bytes, and the seconds that they took."""

    pieces: int
    bytes: int
    seconds: float


def _read(files: Sequence[int], pieces: Sequence[Piece], options: Options) -> _Done:
    """Read the pieces in threads that take turns, until they end or the time is over."""
    largest = max(piece.bytes for piece in pieces)
    threads = min(options.threads, len(pieces))
    ready = threading.Barrier(threads + 1)

    def read(first: int) -> int:
        buffer = memoryview(bytearray(largest))
        ready.wait()
        end = time.perf_counter() + options.seconds
        for count, (file, offset, size) in enumerate(pieces[first::threads]):
            if os.preadv(files[file], [buffer[:size]], offset) != size:
                raise DatasetError(f"{Path(f'/proc/self/fd/{files[file]}').readlink()} became shorter while it was read")
            if time.perf_counter() > end:
                return count + 1
        return len(pieces[first::threads])

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(read, first) for first in range(threads)]
        ready.wait()
        start = time.perf_counter()
        counts = [one.result() for one in running]
        seconds = time.perf_counter() - start
    done = min(len(pieces), min(counts) * threads) if sum(counts) < len(pieces) else len(pieces)
    num_bytes = sum(piece.bytes for first, count in enumerate(counts) for piece in pieces[first::threads][:count])
    whole = sum(piece.bytes for piece in pieces[:done])
    return _Done(done, whole, seconds * whole / num_bytes)


def _read_as_training(root: Path, split: str, indices: np.ndarray, seconds: float) -> float:
    """Return the samples per second of one process that reads as a training program does, decoding included, by the reader itself."""
    dataset = open_dataset(str(root))
    found = dataset.split(split)
    batches = [indices[start : start + BATCH] for start in range(0, len(indices), BATCH)]
    size = getattr(found, "size", None)
    out = None if size is None else np.empty((BATCH, *size, found.channels), np.uint8)
    start, count = time.perf_counter(), 0
    for number, batch in enumerate(batches):
        for ahead in batches[number + AHEAD : number + AHEAD + 1] if number else batches[:AHEAD]:
            found.prefetch(ahead)
        if out is not None:
            found.read_many(batch, out=out)
        else:
            for index in batch:
                found.read(int(index))
        count += len(batch)
        if time.perf_counter() - start > seconds:
            break
    return count / (time.perf_counter() - start)
