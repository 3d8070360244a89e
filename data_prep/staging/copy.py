"""Copy the missing chunks of a dataset into a part directory: read, hash, compare, write, by a few threads that wait for two disks."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import xxhash

from base.errors import DigestMismatch
from data_prep.manifest import DATA_NAME, Shard
from data_prep.staging.files import BLOCK, aligned_buffer, open_file, supports_direct_read, supports_direct_write, write_from
from data_prep.staging.journal import Chunk, Journal
from data_prep.staging.rate import Rate
from data_prep.staging.source import Source, SourceFile

MAX_CHUNK_BYTES = 64 << 20
DIRECT_FROM_BYTES = 256 << 20  # smaller datasets go through the page cache: the first epoch reads them from there
_MAX_OPEN = 64


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """How to copy. `direct` None: past the page cache for large datasets, where both file systems can."""

    threads: int = 4
    retries: int = 3
    sync_bytes: int = 256 << 20
    bytes_per_s: float | None = None
    direct: bool | None = None


class _OpenShard:
    """A shard being copied. The descriptors stay open until its data are synced: a failed write-back is reported to them only."""

    def __init__(self, source: Source, part: Path, shard: Shard, direct: tuple[bool, bool]) -> None:
        self.shard = shard
        self.left = 0
        target = part / shard.name / DATA_NAME
        self.source = SourceFile(source.root / shard.name / DATA_NAME, direct=direct[0], patience_s=source.patience_s)
        if self.source.bytes != shard.bytes:
            self.source.close()
            raise DigestMismatch(
                f"{self.source.path} has {self.source.bytes} bytes, its manifest says {shard.bytes}: build the dataset again "
                f"(slipway dataset verify {source.root} lists all that is wrong)"
            )
        self.target = open_file(target, os.O_RDWR, direct[1])
        self.tail = open_file(target, os.O_RDWR, False) if direct[1] and shard.bytes % BLOCK else self.target

    def sync(self) -> None:
        os.fdatasync(self.target)

    def close(self) -> None:
        self.source.close()
        if self.tail != self.target:
            os.close(self.tail)
        os.close(self.target)


class ChunkCopy:
    """One copy of all chunks that `journal` lacks. `on_bytes(n)` is called by the caller's thread after each; it may raise to stop."""

    def __init__(self, source: Source, part: Path, journal: Journal, options: CopyOptions, on_bytes: Callable[[int], None]) -> None:
        self._source, self._part, self._journal, self._options, self._on_bytes = source, part, journal, options, on_bytes
        self._rate = Rate(options.bytes_per_s)
        self._buffers = threading.local()
        self._open: list[_OpenShard] = []
        self._unsynced: list[Chunk] = []
        self._unsynced_bytes = 0

    def run(self) -> int:
        """Copy; returns the bytes read from storage. All data are synced then.

        Raises DigestMismatch for bytes that stay wrong, StorageError where storage cannot be read, OSError where the node's disk fails.
        """
        direct = self._direct()
        copied = 0
        flight: deque[Future[tuple[_OpenShard, Chunk, int]]] = deque()
        pool = ThreadPoolExecutor(self._options.threads)
        try:
            for number, shard in enumerate(self._source.manifest.shards):
                missing = [chunk for chunk in range(len(shard.chunks)) if (number, chunk) not in self._journal.done]
                if not missing:
                    continue
                opened = _OpenShard(self._source, self._part, shard, direct)
                opened.left = len(missing)
                self._open.append(opened)
                for chunk in missing:
                    flight.append(pool.submit(self._copy_chunk, opened, (number, chunk)))
                    if len(flight) > 2 * self._options.threads:
                        copied += self._collect(flight.popleft())
            while flight:
                copied += self._collect(flight.popleft())
            for opened in self._open:
                opened.sync()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for opened in self._open:
                opened.close()
        return copied

    def _direct(self) -> tuple[bool, bool]:
        """Whether to read and to write past the page cache."""
        manifest, wanted = self._source.manifest, self._options.direct
        if wanted is None:
            wanted = manifest.bytes >= DIRECT_FROM_BYTES
        if not wanted or not manifest.shards or any(shard.chunk_bytes % BLOCK for shard in manifest.shards):
            return False, False
        first = self._source.root / manifest.shards[0].name / DATA_NAME
        return supports_direct_read(first), supports_direct_write(self._part)

    def _collect(self, future: Future[tuple[_OpenShard, Chunk, int]]) -> int:
        opened, chunk, num_bytes = future.result()
        opened.left -= 1
        self._unsynced.append(chunk)
        self._unsynced_bytes += num_bytes
        if self._unsynced_bytes >= self._options.sync_bytes or len(self._open) > _MAX_OPEN:
            self._sync()
        self._on_bytes(num_bytes)
        return num_bytes

    def _sync(self) -> None:
        """First the data, then the journal's lines about them."""
        for opened in self._open:
            opened.sync()
        self._journal.add(self._unsynced)
        self._unsynced.clear()
        self._unsynced_bytes = 0
        for opened in [opened for opened in self._open if opened.left == 0]:
            self._open.remove(opened)
            opened.close()

    def _copy_chunk(self, opened: _OpenShard, where: Chunk) -> tuple[_OpenShard, Chunk, int]:
        """In a thread of the pool: bring one chunk over, verified."""
        shard, (_, chunk) = opened.shard, where
        offset = chunk * shard.chunk_bytes
        num_bytes = min(shard.chunk_bytes, shard.bytes - offset)
        buffer = self._buffer(shard.chunk_bytes)
        for _ in range(1 + self._options.retries):
            self._rate.take(num_bytes)
            count = opened.source.read(buffer, num_bytes, offset)
            found = xxhash.xxh3_128_hexdigest(buffer[:count])
            opened.source.forget(offset, num_bytes)
            if found == shard.chunks[chunk]:
                break
        else:
            raise DigestMismatch(
                f"{opened.source.path}: chunk {chunk} of {len(shard.chunks)} (from byte {offset} on) has the hash {found}, "
                f"the manifest says {shard.chunks[chunk]}, also after {self._options.retries} more reads: the file on storage is "
                f"damaged; `slipway dataset verify {self._source.root}` lists all that is wrong, then build the dataset again"
            )
        whole = num_bytes - num_bytes % BLOCK if opened.tail != opened.target else num_bytes
        write_from(opened.target, buffer[:whole], offset)
        write_from(opened.tail, buffer[whole:num_bytes], offset + whole)
        return opened, where, num_bytes

    def _buffer(self, num_bytes: int) -> memoryview:
        """This thread's own."""
        found: memoryview | None = getattr(self._buffers, "buffer", None)
        if found is None or len(found) < num_bytes:
            found = self._buffers.buffer = aligned_buffer(num_bytes)
        return found
