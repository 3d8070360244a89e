"""What the disk gives back: chunks read from where they lie, and compared with the manifest.

What was hashed before it was written says nothing of what lies there. `past_cache`: past this machine's page cache, by direct reads, or
where the file system has none by dropping the pages before, which works for what was synced. Otherwise through it: what was right then
stays in memory, and is what a reader gets.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final

import xxhash

from base.errors import StagingError
from data_prep.hashing import ChunkedFile
from data_prep.staging.files import BLOCK, aligned_buffer, open_file, read_into, supports_direct_read
from data_prep.staging.journal import Chunk
from data_prep.staging.open_files import OpenFiles

THREADS: Final = 4


class ReadBack:
    """The files below `root`, to be closed. Raises OSError where the disk cannot read."""

    def __init__(self, root: Path, files: Sequence[ChunkedFile], *, past_cache: bool) -> None:
        self._files, self._past_cache = files, past_cache
        self._buffers = threading.local()
        blocks = all(file.chunk_bytes % BLOCK == 0 for file in files)
        direct = past_cache and bool(files) and blocks and supports_direct_read(root / files[0].path)
        self._opened = OpenFiles[_File](lambda number: _File(root / files[number].path, direct), 64)

    def wrong(self, chunks: Iterable[Chunk], until: float | None = None, on_bytes: Callable[[int], None] | None = None) -> list[Chunk]:
        """Those of `chunks` whose bytes are not the manifest's, by a few threads, in the order given. After `until` (time.monotonic) no
        more are looked at. `on_bytes(n)` for each that was, in the caller's thread."""
        found: list[Chunk] = []
        with ThreadPoolExecutor(THREADS) as pool:
            for batch in _batches(iter(chunks), 4 * THREADS):
                if until is not None and time.monotonic() >= until:
                    break
                for chunk, right in zip(batch, pool.map(self.is_right, batch), strict=True):
                    if not right:
                        found.append(chunk)
                    if on_bytes is not None:
                        on_bytes(self.num_bytes(chunk))
        return found

    def is_right(self, where: Chunk) -> bool:
        """Whether this chunk's bytes are the manifest's."""
        number, chunk = where
        file = self._files[number]
        buffer, num_bytes, offset = self._buffer(min(file.chunk_bytes, file.bytes)), self.num_bytes(where), chunk * file.chunk_bytes
        with self._opened.use(number) as opened:
            count = opened.read(buffer, num_bytes, offset, self._past_cache)
        return count == num_bytes and xxhash.xxh3_128_hexdigest(buffer[:count]) == file.chunks[chunk]

    def num_bytes(self, where: Chunk) -> int:
        """Of a chunk."""
        file = self._files[where[0]]
        return min(file.chunk_bytes, file.bytes - where[1] * file.chunk_bytes)

    def close(self) -> None:
        """Give the descriptors back."""
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
    """The error where a disk does not keep what it is given."""
    number, chunk = wrong[0]
    return StagingError(
        f"the disk of {path} does not keep what it is given: chunk {chunk} of {files[number].name} was right when it was written, and "
        f"read back it is not, {tries} times ({len(wrong)} such chunks); see the kernel's log, or set another cache.path of the site file"
    )


def _batches(chunks: Iterator[Chunk], size: int) -> Iterator[list[Chunk]]:
    while batch := list(islice(chunks, size)):
        yield batch
