"""Copy the missing chunks of a set of files into a part directory: read, hash, compare, write, by a few threads that wait for two disks.

What was written is synced, read back and compared while the next is copied: only then the journal lists it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from base.many import each
from data_prep.hashing import ChunkedFile
from data_prep.staging.files import BLOCK, aligned_buffer, supports_direct_read, supports_direct_write
from data_prep.staging.journal import Chunk, Journal
from data_prep.staging.rate import Rate
from data_prep.staging.readback import ReadBack, disk_lies
from data_prep.staging.source import Source
from data_prep.staging.target import Target
from data_prep.staging.verified import VerifiedReader, open_source

MAX_CHUNK_BYTES = 64 << 20
DIRECT_FROM_BYTES = 256 << 20  # smaller datasets go through the page cache: the first epoch reads them from there
_MAX_OPEN = 64


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """How to copy. `direct` None: past the page cache for large datasets, where both file systems can."""

    threads: int = 4
    retries: int = 3
    sync_bytes: int = 64 << 20
    bytes_per_s: float | None = None
    direct: bool | None = None


class _OpenFile:
    """A file being copied; `left` chunks are to come."""

    def __init__(self, source: Source, part: Path, file: ChunkedFile, direct: tuple[bool, bool], left: int) -> None:
        self.file, self.left = file, left
        self.source = open_source(source, file, direct[0])
        self.target = Target(part, file, direct[1])

    def close(self) -> None:
        self.source.close()
        self.target.close()


class ChunkCopy:
    """One copy of all chunks that `journal` lacks. `on_bytes(n)` is called by the caller's thread after each; it may raise to stop."""

    def __init__(self, source: Source, part: Path, journal: Journal, options: CopyOptions, on_bytes: Callable[[int], None]) -> None:
        self._source, self._part, self._journal, self._options, self._on_bytes = source, part, journal, options, on_bytes
        self._reader = VerifiedReader(source, Rate(options.bytes_per_s), options.retries)
        self._buffers = threading.local()
        self._open: list[_OpenFile] = []
        self._unsynced: list[Chunk] = []
        self._unsynced_bytes = 0
        self._read_back = ReadBack(part, source.file_set.files, past_cache=True)
        self._checker = ThreadPoolExecutor(1)
        self._checks: deque[tuple[list[Chunk], Future[list[Chunk]]]] = deque()
        self._right = set(journal.done)

    def run(self) -> int:
        """Copy; returns the bytes read from storage. All data are synced then, and were read back.

        Raises DigestMismatch for bytes that stay wrong, StorageError where storage cannot be read, OSError where the node's disk fails,
        StagingError where it gives back something else again and again.
        """
        direct = direct_io(self._source, self._part, self._options.direct)
        copied = 0
        try:
            for _ in range(1 + self._options.retries):
                copied += self._copy_missing(direct)
                self._take_checks(wait=True)
                wrong = self._missing()
                if not wrong:
                    return copied
                self._on_bytes(-sum(self._read_back.num_bytes(chunk) for chunk in wrong))
        finally:
            self._checker.shutdown(wait=True)
            self._take_checks(wait=False)
            self._read_back.close()
        raise disk_lies(self._part, self._source.file_set.files, wrong, 1 + self._options.retries)

    def _copy_missing(self, direct: tuple[bool, bool]) -> int:
        copied = 0
        flight: deque[Future[tuple[_OpenFile, Chunk, int]]] = deque()
        pool = ThreadPoolExecutor(self._options.threads)
        try:
            for number, file in enumerate(self._source.file_set.files):
                missing = [chunk for chunk in range(len(file.chunks)) if (number, chunk) not in self._right]
                if not missing:
                    continue
                opened = _OpenFile(self._source, self._part, file, direct, len(missing))
                self._open.append(opened)
                for chunk in missing:
                    flight.append(pool.submit(self._copy_chunk, opened, (number, chunk)))
                    if len(flight) > 2 * self._options.threads:
                        copied += self._collect(flight.popleft())
            while flight:
                copied += self._collect(flight.popleft())
            self._sync()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for opened in self._open:
                opened.close()
            self._open.clear()
        return copied

    def _collect(self, future: Future[tuple[_OpenFile, Chunk, int]]) -> int:
        opened, chunk, num_bytes = future.result()
        opened.left -= 1
        self._take_checks(wait=False)
        self._unsynced.append(chunk)
        self._unsynced_bytes += num_bytes
        if self._unsynced_bytes >= self._options.sync_bytes or len(self._open) > _MAX_OPEN:
            self._sync()
        self._on_bytes(num_bytes)
        return num_bytes

    def _sync(self) -> None:
        """First the data; they are read back meanwhile; then, later, the journal's lines about them."""
        each(lambda opened: opened.target.sync(), self._open)
        if self._unsynced:
            self._checks.append((self._unsynced, self._checker.submit(self._read_back.wrong, self._unsynced)))
        self._unsynced, self._unsynced_bytes = [], 0
        self._take_checks(wait=False)
        for opened in [opened for opened in self._open if opened.left == 0]:
            self._open.remove(opened)
            opened.close()

    def _missing(self) -> list[Chunk]:
        """What is not known to lie on the disk as it should."""
        files = enumerate(self._source.file_set.files)
        return [chunk for number, file in files for chunk in zip(repeat(number), range(len(file.chunks))) if chunk not in self._right]

    def _take_checks(self, *, wait: bool) -> None:
        """Note what was found right; what was not is missing still."""
        while self._checks and (wait or self._checks[0][1].done()):
            chunks, future = self._checks.popleft()
            wrong = set(future.result())
            right = [chunk for chunk in chunks if chunk not in wrong]
            self._journal.add(right)
            self._right.update(right)

    def _copy_chunk(self, opened: _OpenFile, where: Chunk) -> tuple[_OpenFile, Chunk, int]:
        """In a thread of the pool: bring one chunk over, verified."""
        file, (_, chunk) = opened.file, where
        content = self._reader.read(opened.source, file, chunk, self._buffer(file.chunk_bytes))
        opened.target.write(content, chunk * file.chunk_bytes)
        return opened, where, len(content)

    def _buffer(self, num_bytes: int) -> memoryview:
        """This thread's own."""
        found: memoryview | None = getattr(self._buffers, "buffer", None)
        if found is None or len(found) < num_bytes:
            found = self._buffers.buffer = aligned_buffer(num_bytes)
        return found


def direct_io(source: Source, part: Path, wanted: bool | None) -> tuple[bool, bool]:
    """Whether to read and to write past the page cache. `wanted` None: for large datasets."""
    files = source.file_set
    if wanted is None:
        wanted = files.bytes >= DIRECT_FROM_BYTES
    if not wanted or not files.files or any(file.chunk_bytes % BLOCK for file in files.files):
        return False, False
    first = source.path_of(files.files[0])
    return supports_direct_read(first), supports_direct_write(part)
