"""Measure how fast the samples of a dataset are read where they lie, in the order of an epoch."""

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

import numpy as np

from base.errors import DatasetError
from base.humanize import format_size
from data_prep import limits
from data_prep.manifest import Manifest, Shard
from data_prep.mounts import Mount, nearest_mount
from data_prep.reader import ReaderError, open_dataset, shards
from data_prep.reader.memory import free_memory
from data_prep.reader.sampling import samples_at
from data_prep.sequences.manifest import SequenceManifest, SequenceShard

RANDOM: Final = "random"
READER: Final = "reader"
COLD: Final = "cold"
WARM: Final = "warm"
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
PROBES: Final = 64
"""How many pages are looked at after all were dropped from memory."""
DROPS: Final = 5
"""How often pages are dropped until they are gone. On a busy machine the kernel keeps some, or all, for some milliseconds."""
BATCH: Final = 64


class Piece(NamedTuple):
    """A part of a file that is read at once: the number of the file, where the part begins, and its length."""

    file: int
    offset: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a measurement. One pass reads at most `bytes`, and ends after `seconds`."""

    bytes: int = 1 << 30
    seconds: float = 3.0
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
    """Read samples of the split `train`, else of the largest one, in each way, cold and then warm.

    Raises DatasetError where a shard is not what the manifest says.
    """
    split = "train" if "train" in manifest.splits else max(manifest.splits, key=lambda name: manifest.splits[name].samples)
    chosen = [manifest.shards[index] for index in manifest.splits[split].shards]
    samples = sum(shard.samples for shard in chosen)
    if not samples:
        raise DatasetError(f"{root}: split {split!r} has no samples to read")
    sample_bytes = manifest.bytes / manifest.samples
    free = free_memory()
    count = max(1, min(samples, int(min(options.bytes, free // 4) / sample_bytes)))
    _, mount = nearest_mount(root)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    notes: dict[str, None] = {}
    done, total = 0, 2 * 2 * options.repeats
    width = manifest.id_bytes if isinstance(manifest, SequenceManifest) else 0
    with _opened(root, chosen) as files:
        for repeat in range(options.repeats):
            indices = samples_at(0, repeat, samples, np.arange(count, dtype=np.int64))
            pieces = _sample_pieces(root, chosen, indices, width)
            for access in (RANDOM, READER):
                is_cold, note = _drop_and_check(files, pieces, mount)
                notes |= dict.fromkeys(filter(None, [note]))
                for memory in (COLD, WARM):
                    if access == RANDOM:
                        read = _read(files, pieces, options)
                        pieces = pieces[: read.pieces]
                        rates = read.bytes / read.seconds, read.pieces / read.seconds
                    else:
                        rate = _read_as_training(root, split, indices, options.seconds)
                        rates = rate * sample_bytes, rate
                    if is_cold or memory == WARM:  # else it only brings into memory what the next pass reads from there
                        found.setdefault((access, memory), []).append(rates)
                    progress(done := done + 1, total)
            shards.close_all()  # LMDB opens a file once in a process
    measured = tuple(
        Rate(access=access, memory=memory, bytes_per_s=tuple(by[0] for by in each), samples_per_s=tuple(by[1] for by in each))
        for (access, memory), each in found.items()
    )
    return ReadRates(sample_bytes=sample_bytes, mount=mount, rates=measured, notes=(*notes, *_notes(manifest.bytes, free, mount)))


def _notes(num_bytes: int, free: int, mount: Mount | None) -> Iterator[str]:
    if mount is not None and mount.kind == "memory":
        return
    if mount is not None and mount.kind == "network":
        yield "cold is of this machine: the server of the network storage may hold in its memory what was read before"
    fits, epochs = ("is smaller than", "only the first epoch reads") if num_bytes < free else ("is larger than", "every epoch reads")
    yield f"the dataset {fits} the free memory of this machine, {format_size(free)}: {epochs} at the cold rate"


@contextmanager
def _opened(root: Path, chosen: Sequence[Shard]) -> Iterator[list[int]]:
    """Open the files for reads of exactly the asked bytes. Raises DatasetError for one whose size is not that of the manifest, and for what
    the reader finds in them meanwhile."""
    with ExitStack() as stack:
        files = []
        for shard in chosen:
            files.append(os.open(root / shard.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
            stack.callback(os.close, files[-1])
            if (size := os.fstat(files[-1]).st_size) != shard.bytes:
                raise DatasetError(
                    f"{root / shard.path} has {size} bytes, its manifest says {shard.bytes}: `slipway dataset verify {root}`"
                )
            os.fdatasync(files[-1])  # pages that the disk does not have yet are not dropped
            os.posix_fadvise(files[-1], 0, 0, os.POSIX_FADV_RANDOM)  # no read ahead: the threads ask for what is wanted
        try:
            yield files
        except ReaderError as error:
            raise DatasetError(str(error)) from error


def _sample_pieces(root: Path, chosen: Sequence[Shard], indices: np.ndarray, width: int) -> list[Piece]:
    """Return the pages of these samples, in their order: of a value, or of a row in a value of token sequences with ids of `width` bytes.
    Only LMDB's inner pages are read, shard after shard, since not all may be open at a time."""
    starts = list(accumulate((shard.samples for shard in chosen), initial=0))
    pieces = {}
    for index in sorted(indices.tolist()):
        number = bisect_right(starts, index) - 1
        shard, sample = chosen[number], index - starts[number]
        value, row = divmod(sample, shard.rows) if isinstance(shard, SequenceShard) else (sample, 0)
        start, size = shards.position((str(root / shard.name), shard.bytes, b"%08d" % value))
        if isinstance(shard, SequenceShard):
            size = (shard.length + 1) * width
            start += row * size
        first, end = start // PAGE * PAGE, -(-(start + size) // PAGE) * PAGE
        pieces[index] = Piece(number, first, min(end, shard.bytes) - first)
    return [pieces[index] for index in indices.tolist()]


# Cold: what memory holds of the files is dropped, which needs no root, and looked at.


def _drop_and_check(files: Sequence[int], pieces: Sequence[Piece], mount: Mount | None) -> tuple[bool, str]:
    """Drop the pages, and return whether memory holds none of them any more, and what is to be said of that."""
    if mount is not None and mount.kind == "memory":
        return False, f"no cold rate: {mount.type} is memory"
    shards.close_all()  # pages that are mapped are not dropped
    pages = list(dict.fromkeys((piece.file, piece.offset) for piece in pieces))  # many small samples share a page, which a look may read
    for _ in range(DROPS):
        _drop_pages(files)
        seen = _in_memory(files, pages[:: max(1, len(pages) // PROBES)])
        if seen is None:
            return True, "whether memory held a part of what is called cold cannot be seen on this file system"
        if seen <= 0.05:
            _drop_pages(files)  # to look at a page may have read it
            return True, ""
        time.sleep(limits.DROP_PAUSE_S)
    return False, f"no cold rate: {seen:.0%} of the pages stayed in memory, since another process has them mapped; repeat it when none does"


def _drop_pages(files: Sequence[int]) -> None:
    for file in files:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _in_memory(files: Sequence[int], pages: Sequence[tuple[int, int]]) -> float | None:
    """Return the part of the pages, by file and offset, that is in memory; None where the file system does not tell."""
    buffer, seen = bytearray(1), 0
    for file, offset in pages:
        try:
            seen += os.preadv(files[file], [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        except OSError:
            return None
    return seen / len(pages)


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
    """Return the samples per second of one process that reads as a training program does: by the reader itself, decoding included; whole
    batches, and the next one ahead, unless their samples differ in size or length."""
    dataset = open_dataset(str(root))
    found = dataset.split(split)
    batches = [indices[start : start + BATCH] for start in range(0, len(indices), BATCH)]
    out = None if found.shape is None else np.empty((BATCH, *found.shape), found.dtype)
    start, count = time.perf_counter(), 0
    for number, batch in enumerate(batches):
        if out is not None:
            for coming in batches[number : number + 2]:
                found.prefetch(coming)
            found.read_many(batch, out=out)
        else:
            for index in batch:
                found.read(int(index))
        count += len(batch)
        if time.perf_counter() - start > seconds:
            break
    return count / (time.perf_counter() - start)
