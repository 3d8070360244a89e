"""Read, hash and write the chunks of a set of files, and read back what was written: what a copy consists of."""

from __future__ import annotations

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
from base.system import STORAGE_FAILS
from data_prep.cache.layout import dataset_name
from data_prep.file_set import FileSet, parse_chunk_list, parse_file_set
from data_prep.hashing import ChunkedFile
from data_prep.manifest import FILE_NAME, MAX_BYTES
from data_prep.staging.files import (
    BLOCK,
    OpenFiles,
    aligned_buffer,
    open_file,
    read_into,
    supports_direct_read,
    supports_direct_write,
    write_from,
)
from data_prep.staging.table import Chunk
from data_prep.tree.manifest import PLACE_NAME, Place, advice_of, parse_place

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

    def __init__(self, root: Path, files: Sequence[ChunkedFile], *, past_cache: bool) -> None:
        self._root, self._files, self._past_cache = root, files, past_cache
        self._buffers = threading.local()
        self._pool = ThreadPoolExecutor(THREADS)
        self._opened = OpenFiles[_File](lambda number: _File(root / files[number].path, self._direct), 64)

    @cached_property
    def _direct(self) -> bool:
        """Return whether the files are read by direct reads. Looks at the disk, which may hang: it is for the threads that read."""
        blocks = all(file.chunk_bytes % BLOCK == 0 for file in self._files)
        return self._past_cache and blocks and supports_direct_read(self._root / self._files[0].path)

    def wrong(self, chunks: Iterable[Chunk], until: float | None = None, on_bytes: Callable[[int], None] | None = None) -> list[Chunk]:
        """Return the chunks whose bytes are not the manifest's. They are checked in the given order, and none is begun after `until`
        (time.monotonic). `on_bytes(n)` is called in the caller's thread for each chunk that was checked. Several threads may call this."""
        found: list[Chunk] = []
        for batch in _batches(iter(chunks), BATCH):
            if until is not None and time.monotonic() >= until:
                break
            for chunk, right in zip(batch, self._pool.map(self.is_right, batch), strict=True):
                if not right:
                    found.append(chunk)
                if on_bytes is not None:
                    on_bytes(self.num_bytes(chunk))
        return found

    def is_right(self, where: Chunk) -> bool:
        number, chunk = where
        file = self._files[number]
        buffer, num_bytes, offset = self._buffer(min(file.chunk_bytes, file.bytes)), self.num_bytes(where), chunk * file.chunk_bytes
        with self._opened.use(number) as opened:
            count = opened.read(buffer, num_bytes, offset, self._past_cache)
        return count == num_bytes and xxhash.xxh3_128_hexdigest(buffer[:count]) == file.chunks[chunk]

    def num_bytes(self, where: Chunk) -> int:
        file = self._files[where[0]]
        return min(file.chunk_bytes, file.bytes - where[1] * file.chunk_bytes)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._opened.close()

    def _buffer(self, num_bytes: int) -> memoryview:
        found: memoryview | None = getattr(self._buffers, "buffer", None)
        if found is None or len(found) < num_bytes:
            found = self._buffers.buffer = aligned_buffer(num_bytes)
        return found


class _File:
    def __init__(self, path: Path, direct: bool) -> None:
        self._descriptor, self._direct = open_file(path, os.O_RDONLY, direct), direct

    def read(self, buffer: memoryview, num_bytes: int, offset: int, past_cache: bool) -> int:
        if past_cache and not self._direct:
            os.posix_fadvise(self._descriptor, offset, num_bytes, os.POSIX_FADV_DONTNEED)
        return read_into(self._descriptor, buffer, num_bytes, offset)

    def close(self) -> None:
        os.close(self._descriptor)


def disk_lies(path: Path, files: Sequence[ChunkedFile], wrong: Sequence[Chunk], tries: int) -> StagingError:
    """Make the error for a disk that does not keep what was written."""
    number, chunk = wrong[0]
    return StagingError(
        f"the disk of {path} does not keep what it is given: chunk {chunk} of {files[number].name} was right when it was written, and "
        f"read back it is not, {tries} times ({len(wrong)} such chunks); see the kernel's log, or set another cache.path of the site file"
    )


def _batches(chunks: Iterator[Chunk], size: int) -> Iterator[list[Chunk]]:
    while batch := list(islice(chunks, size)):
        yield batch


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
    place: Place | None = None
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
        place = _read(root / PLACE_NAME, patience_s, parse_place)
        if not Path(place.path).is_dir():
            raise StagingError(f"{place.path}, where the files of {name} lie, is not there, or is no directory; {advice_of(name[:-13])}")
        advice = f"the tree {place.path} is not what it was when it was hashed: {advice_of(name[:-13])}"
        return Source(root=root, name=name, file_set=file_set, patience_s=patience_s, advice=advice, place=place)
    advice = f"`slipway dataset verify {root}` lists all that is wrong, then build the dataset again"
    return Source(root=root, name=name, file_set=file_set, patience_s=patience_s, advice=advice)


def open_single(file: Path, patience_s: float, num_bytes: int | None = None) -> Source:
    """Open a single file and the list of its chunk hashes, which lies beside it. `num_bytes` is the length that the file must have, where
    that is known, so that an exchanged list cannot claim more room. Raises StagingError where there are no hashes."""
    path = chunks_path(file)
    file_set = _read(path, patience_s, parse_chunk_list)
    if [member.path for member in file_set.files] != [file.name]:
        raise DigestMismatch(f"{path} speaks of {file_set.files[0].name!r}, asked was {file.name!r}; remove both, and make the file again")
    if num_bytes is not None and file_set.bytes != num_bytes:
        raise DigestMismatch(f"{path} speaks of {file_set.bytes} bytes, and {file.name} has {num_bytes}: the list was changed")
    name = dataset_name(Path(f"{file.name}-{file_set.digest[:12]}"))
    advice = f"it was cut or changed on storage; remove it and {path.name}, and make it again"
    return Source(root=file.parent, name=name, file_set=file_set, patience_s=patience_s, advice=advice)


def _read(path: Path, patience_s: float, parse: Callable[[bytes, str], T]) -> T:
    with contextlib.closing(SourceFile(path, direct=False, patience_s=patience_s)) as file:
        if file.bytes > MAX_BYTES:
            raise DigestMismatch(f"{path} has {file.bytes} bytes: this is not a manifest")
        return parse(file.read_all(), str(path))


class SourceFile:
    """A file on storage that several threads read at given offsets. A failed read is tried once more with a fresh handle, since handles go
    stale when a server fails over."""

    def __init__(self, path: Path, *, direct: bool, patience_s: float) -> None:
        self.path = path
        self._direct = direct
        self._descriptor = self._patiently(lambda: open_file(path, os.O_RDONLY, direct), patience_s)
        self.bytes = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, buffer: memoryview, num_bytes: int, offset: int) -> int:
        """Read `num_bytes` from `offset`, less only at the end of the file. Raises StorageError if it fails twice."""
        try:
            return read_into(self._descriptor, buffer, num_bytes, offset)
        except OSError as error:
            if error.errno not in STORAGE_FAILS:
                raise self._failed(error) from error
        try:
            fresh = open_file(self.path, os.O_RDONLY, self._direct)
            try:
                return read_into(fresh, buffer, num_bytes, offset)
            finally:
                os.close(fresh)
        except OSError as error:
            raise self._failed(error) from error

    def read_all(self) -> bytes:
        buffer = bytearray(self.bytes)
        count = self.read(memoryview(buffer), self.bytes, 0)
        return bytes(buffer[:count])

    def forget(self, offset: int, num_bytes: int) -> None:
        """Drop these bytes from this machine's page cache: what is read again then comes from storage."""
        os.posix_fadvise(self._descriptor, offset, num_bytes, os.POSIX_FADV_DONTNEED)

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(f"{self.path} cannot be read: {error.strerror} (twice); ask the storage's people, or try again later")

    def _patiently(self, function: Callable[[], int], patience_s: float) -> int:
        """Call `function` until the file is there, at most `patience_s`. Listing the directory makes NFS look again."""
        until, pause = time.monotonic() + patience_s, 0.05
        while True:
            try:
                return function()
            except FileNotFoundError as error:
                if time.monotonic() >= until:
                    raise StagingError(f"{self.path} does not exist (looked for {patience_s:g} s): was it made and published?") from error
            except OSError as error:
                if error.errno not in STORAGE_FAILS or time.monotonic() >= until:
                    raise StorageError(f"{self.path} cannot be opened: {error.strerror}") from error
            with contextlib.suppress(OSError):
                os.listdir(self.path.parent)
            time.sleep(pause)
            pause = min(2 * pause, 2.0)


# Files in a part directory


class Target:
    """A file in a part directory that several threads write and one syncs. Its descriptors stay open until the data are synced: a failed
    write-back is reported to them only."""

    def __init__(self, part: Path, file: ChunkedFile, direct: bool) -> None:
        path = part / file.path
        self._file = open_file(path, os.O_RDWR, direct)
        self._tail = open_file(path, os.O_RDWR, False) if direct and file.bytes % BLOCK else self._file
        self._lock = threading.Lock()
        self._written = self._synced = 0

    @property
    def is_synced(self) -> bool:
        return self._written == self._synced

    def write(self, buffer: memoryview, offset: int) -> None:
        """Write a chunk's bytes; the end of a file that is no whole block goes through the page cache. Raises OSError."""
        whole = len(buffer) - len(buffer) % BLOCK if self._tail != self._file else len(buffer)
        write_from(self._file, buffer[:whole], offset)
        write_from(self._tail, buffer[whole:], offset + whole)
        with self._lock:
            self._written += 1

    def sync(self) -> None:
        """Flush everything that was written so far to the disk. Raises OSError when that may have failed."""
        written = self._written
        if written != self._synced:
            os.fdatasync(self._file)
            self._synced = written

    def close(self) -> None:
        if self._tail != self._file:
            os.close(self._tail)
        os.close(self._file)


# Verified reads


def open_source(source: Source, file: ChunkedFile, direct: bool) -> SourceFile:
    """Open a file on storage. Raises DigestMismatch when its size is not the manifest's."""
    try:
        opened = SourceFile(source.path_of(file), direct=direct, patience_s=source.patience_s)
    except StagingError as error:
        raise StagingError(f"{error}; {source.advice}") from error
    if opened.bytes == file.bytes:
        return opened
    opened.close()
    raise DigestMismatch(f"{opened.path} has {opened.bytes} bytes, its manifest says {file.bytes}; {source.advice}")


class VerifiedReader:
    """A reader that reads chunks no faster than `rate`, and each again up to `retries` times while its hash is wrong."""

    def __init__(self, source: Source, rate: Rate, retries: int) -> None:
        self._source, self._rate, self._retries = source, rate, retries

    def read(self, opened: SourceFile, file: ChunkedFile, chunk: int, buffer: memoryview) -> memoryview:
        """Read a chunk into `buffer` and return its bytes. Raises DigestMismatch, StorageError."""
        offset = chunk * file.chunk_bytes
        num_bytes = min(file.chunk_bytes, file.bytes - offset)
        for _ in range(1 + self._retries):
            self._rate.take(num_bytes)
            count = opened.read(buffer, num_bytes, offset)
            found = xxhash.xxh3_128_hexdigest(buffer[:count])
            opened.forget(offset, num_bytes)
            if found == file.chunks[chunk]:
                return buffer[:num_bytes]
        raise DigestMismatch(
            f"{opened.path}: chunk {chunk} of {len(file.chunks)} (from byte {offset} on) has the hash {found}, "
            f"the manifest says {file.chunks[chunk]}, also after {self._retries} more reads: the file on storage is "
            f"damaged; {self._source.advice}"
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
