"""Read, hash and write the chunks of a set of files, and read back what was written: what a copy consists of."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import xxhash

from base.chunks import chunks_path
from base.errors import DigestMismatch, StagingError, StorageError
from data_prep.cache.layout import dataset_name
from data_prep.file_set import FileSet, parse_chunk_list, parse_file_set
from data_prep.hashing import ChunkedFile
from data_prep.manifest import FILE_NAME, MAX_BYTES
from data_prep.sources.files import retried
from data_prep.staging.chunk_journal import ChunkTable
from data_prep.staging.files import (
    BLOCK,
    Buffers,
    open_file,
    opened,
    read_into,
    supports_direct_read,
    supports_direct_write,
)
from data_prep.tree.manifest import LOCATION_NAME, TreeLocation, advice_of, parse_location

# Rate limit


class Rate:
    """A token bucket of bytes per second that the threads of one copy share. It holds a quarter of a second; None means no limit."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def set(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s

    def take(self, num_bytes: int) -> None:
        rate = self._bytes_per_s
        if rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 0.25) + num_bytes / rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


# Read back from the disk


THREADS: Final = 4
BATCH: Final = 4 * THREADS
"""Chunks that are compared between two looks at the clock."""


class ReadBack:
    """A reader that compares chunks on the disk with the manifest, in a few threads of its own, to be closed after use.

    With `past_cache` the page cache is bypassed, by direct reads or by dropping the pages of synced data before. Otherwise what was found
    right stays in memory for later readers. Raises OSError where the disk cannot read.
    """

    def __init__(self, root: Path, table: ChunkTable, *, past_cache: bool) -> None:
        self._root, self._table, self._past_cache = root, table, past_cache
        self._buffers = Buffers(table.largest)
        self._pool = ThreadPoolExecutor(THREADS)

    @cached_property
    def _direct(self) -> bool:
        """Return whether the files are read by direct reads. Looks at the disk, which may hang: it is for the threads that read."""
        files = self._table.files
        blocks = all(file.chunk_bytes % BLOCK == 0 for file in files)
        return self._past_cache and blocks and supports_direct_read(self._root / files[0].path)

    def wrong(self, chunks: Iterable[int], until: float | None = None, on_bytes: Callable[[int], None] | None = None) -> list[int]:
        """Return the chunks whose bytes are not the manifest's. They are checked in the given order, and none is begun after `until`
        (time.monotonic). `on_bytes(n)` is called in the caller's thread for each chunk that was checked. Several threads may call this."""
        found: list[int] = []
        left = iter(chunks)
        while (batch := list(islice(left, BATCH))) and (until is None or time.monotonic() < until):
            for chunk, right in zip(batch, self._pool.map(self._is_right, batch), strict=True):
                if not right:
                    found.append(chunk)
                if on_bytes is not None:
                    on_bytes(self._table.num_bytes(chunk))
        return found

    def _is_right(self, chunk: int) -> bool:
        file, offset, num_bytes = self._table.span(chunk)
        buffer = self._buffers.mine()
        with opened(self._root / self._table.files[file].path, os.O_RDONLY, self._direct) as descriptor:
            if self._past_cache and not self._direct:
                os.posix_fadvise(descriptor, offset, num_bytes, os.POSIX_FADV_DONTNEED)
            count = read_into(descriptor, buffer, num_bytes, offset)
        return count == num_bytes and xxhash.xxh3_128_hexdigest(buffer[:count]) == self._table.hash(chunk)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def disk_error(path: Path, table: ChunkTable, wrong: Sequence[int], tries: int) -> StagingError:
    """Make the error for a disk that does not keep what was written."""
    return StagingError(
        f"the disk of {path} does not keep what it is given: {table.describe(wrong[0])} was right when it was written, and read back it is "
        f"not, {tries} times ({len(wrong)} such chunks); see the kernel's log, or set another cache.path of the site file"
    )


# Files on storage


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The dataset or single file on storage that is copied.

    `name` is its directory's name in a cache; `advice` tells people what to do about a damaged file.

    Attribute caches show new files late, so a missing file is looked for again during `patience_s`.
    """

    root: Path
    name: str
    file_set: FileSet
    patience_s: float
    advice: str
    place: TreeLocation | None = None
    """The place of the files of a tree; None for other datasets."""

    def path_of(self, file: ChunkedFile) -> Path:
        return self.root / file.path if self.place is None else self.place.of(file)


def open_dataset(root: Path, patience_s: float) -> Source:
    """Open the dataset in the directory `root`. Raises StagingError where it has no manifest, DigestMismatch where the manifest does not
    match the directory's name."""
    name, path = dataset_name(root), root / FILE_NAME
    file_set = _read(path, patience_s, parse_file_set)
    if file_set.kind != "dataset":
        raise StagingError(f"{path} lists the chunks of a single file: this is not a dataset")
    if not name.endswith(f"-{file_set.digest[:12]}"):
        raise DigestMismatch(
            f"{path} has the digest {file_set.digest[:12]}, the directory's name promises {name[-12:]}: it was changed after it was "
            "published; remove that directory and build the dataset again"
        )
    if file_set.in_place:
        place = _read(root / LOCATION_NAME, patience_s, parse_location)
        if not Path(place.path).is_dir():
            raise StagingError(f"{place.path}, where the files of {name} lie, is not there, or is no directory; {advice_of(name[:-13])}")
        advice = f"the tree {place.path} is not what it was when it was hashed: {advice_of(name[:-13])}"
        return Source(root=root, name=name, file_set=file_set, patience_s=patience_s, advice=advice, place=place)
    advice = f"`slipway dataset verify {root}` lists all that is wrong, then build the dataset again"
    return Source(root=root, name=name, file_set=file_set, patience_s=patience_s, advice=advice)


def open_single(file: Path, patience_s: float) -> Source:
    """Open a single file and the list of its chunk hashes, which lies beside it. Raises StagingError where there are no hashes."""
    path = chunks_path(file)
    file_set = _read(path, patience_s, parse_chunk_list)
    if [member.path for member in file_set.files] != [file.name]:
        raise DigestMismatch(
            f"{path} lists chunks of {file_set.files[0].name!r}, expected {file.name!r}; remove both, and make the file again"
        )
    name = dataset_name(Path(f"{file.name}-{file_set.digest[:12]}"))
    advice = f"it was cut or changed on storage; remove it and {path.name}, and make it again"
    return Source(root=file.parent, name=name, file_set=file_set, patience_s=patience_s, advice=advice)


def _read(path: Path, patience_s: float, parse: Callable[[bytes, str], T]) -> T:
    def content() -> bytes:
        with _stored_file(path, False, patience_s) as descriptor:
            num_bytes = os.fstat(descriptor).st_size
            if num_bytes > MAX_BYTES:
                raise DigestMismatch(f"{path} has {num_bytes} bytes: this is not a manifest")
            buffer = memoryview(bytearray(num_bytes))
            return bytes(buffer[: read_into(descriptor, buffer, num_bytes, 0)])

    return parse(_from_storage(path, content), str(path))


def _from_storage(path: Path, read: Callable[[], T]) -> T:
    """Return what `read` returns, each time by a fresh handle: handles go stale when a server fails over. Raises StorageError."""
    try:
        return retried(str(path), read)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def _stored_file(path: Path, direct: bool, patience_s: float, advice: str = "") -> Iterator[int]:
    """Open a file on storage as soon as it is there, within `patience_s`. Listing the directory makes NFS look again. Raises StagingError
    where it is not there, with `advice`, and OSError."""
    until, pause = time.monotonic() + patience_s, 0.05
    while True:
        try:
            descriptor = open_file(path, os.O_RDONLY, direct)
            break
        except FileNotFoundError as error:
            if time.monotonic() >= until:
                raise StagingError(f"{path} does not exist (looked for {patience_s:g} s): was it made and published?{advice}") from error
        with contextlib.suppress(OSError):
            os.listdir(path.parent)
        time.sleep(pause)
        pause = min(2 * pause, 2.0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# Verified reads


def read_chunk(source: Source, where: tuple[int, int], buffer: memoryview, rate: Rate, *, retries: int, direct: bool) -> memoryview:
    """Read a chunk from storage into `buffer`, no faster than `rate`, again up to `retries` times while its hash is wrong, and return its
    bytes. `where`: number of the file, and of the chunk in it. Raises DigestMismatch, StorageError, and StagingError for a missing file."""
    file, chunk = source.file_set.files[where[0]], where[1]
    path, advice = source.path_of(file), source.advice
    offset = chunk * file.chunk_bytes
    num_bytes = min(file.chunk_bytes, file.bytes - offset)

    def read_once() -> int:
        rate.take(num_bytes)
        with _stored_file(path, direct, source.patience_s, f"; {advice}") as descriptor:
            if (size := os.fstat(descriptor).st_size) != file.bytes:
                raise DigestMismatch(f"{path} has {size} bytes, its manifest says {file.bytes}; {advice}")
            count = read_into(descriptor, buffer, num_bytes, offset)
            os.posix_fadvise(descriptor, offset, num_bytes, os.POSIX_FADV_DONTNEED)  # what is read again comes from storage
        return count

    for _ in range(1 + retries):
        found = xxhash.xxh3_128_hexdigest(buffer[: _from_storage(path, read_once)])
        if found == file.chunks[chunk]:
            return buffer[:num_bytes]
    raise DigestMismatch(
        f"{path}: chunk {chunk} of {len(file.chunks)} (from byte {offset} on) has the hash {found}, "
        f"the manifest says {file.chunks[chunk]}, also after {retries} more reads: the file on storage is damaged; {advice}"
    )


MAX_CHUNK_BYTES = 64 << 20
DIRECT_FROM_BYTES = 256 << 20  # smaller datasets go through the page cache: the first epoch reads them from there


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """The options of a copy. `direct` None bypasses the page cache for large datasets where both file systems can."""

    threads: int = 4
    retries: int = 3
    sync_bytes: int = 32 << 20
    bytes_per_s: float | None = None
    direct: bool | None = None


def direct_io(source: Source, part: Path, wanted: bool | None) -> tuple[bool, bool]:
    """Return whether to bypass the page cache for reads and for writes. `wanted` None means for large datasets."""
    files = source.file_set
    if wanted is None:
        wanted = files.bytes >= DIRECT_FROM_BYTES
    if not wanted or not files.files or any(file.chunk_bytes % BLOCK for file in files.files):
        return False, False
    first = source.path_of(files.files[0])
    return supports_direct_read(first), supports_direct_write(part)
