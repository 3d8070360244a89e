"""The hashes of a file: one per chunk, to find a wrong byte while copying, and one of the whole, to name it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash
from blake3 import blake3

from base.chunks import CHUNK_BYTES
from base.errors import DatasetError
from base.typed import Digest, FromOne

_CHUNK = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class ChunkedFile:
    """A file as whoever copies it sees it; `name` is what people call it."""

    name: str
    bytes: FromOne
    chunk_bytes: FromOne
    chunks: tuple[str, ...]  # xxh3_128 of each chunk, hex

    def __post_init__(self) -> None:
        expected = -(-self.bytes // self.chunk_bytes)
        require(len(self.chunks) == expected, f"{self.name}: {len(self.chunks)} chunks for {self.bytes} bytes, expected {expected}")
        require(all(_CHUNK.fullmatch(chunk) for chunk in self.chunks), f"{self.name}: a hash has the wrong form")

    @property
    def path(self) -> str:
        """Relative to the directory that it belongs to."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class FileHashes:
    """What a file's bytes are: `chunks` are xxh3_128 of each `chunk_bytes`, hex."""

    bytes: FromOne
    chunk_bytes: FromOne
    chunks: tuple[str, ...]
    blake3: Digest


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def hash_file(path: Path, chunk_bytes: int = CHUNK_BYTES, on_chunk: Callable[[int], None] | None = None) -> FileHashes:
    """Read `path` once and hash it; `on_chunk(bytes)` after each chunk. Raises OSError, or DatasetError for what is not a regular file."""
    chunks: list[str] = []
    whole = blake3()
    size = 0
    buffer = bytearray(chunk_bytes)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DatasetError(f"{path} is not a regular file")
        while count := _read_full(file.readinto, memoryview(buffer)):
            chunk = memoryview(buffer)[:count]
            chunks.append(xxhash.xxh3_128_hexdigest(chunk))
            whole.update(chunk)
            size += count
            if on_chunk is not None:
                on_chunk(count)
    return FileHashes(bytes=size, chunk_bytes=chunk_bytes, chunks=tuple(chunks), blake3=whole.hexdigest())


def _read_full(read_into: Callable[[memoryview], int | None], buffer: memoryview) -> int:
    """Fill `buffer` as far as the file goes: network file systems return short reads."""
    filled = 0
    while filled < len(buffer):
        count = read_into(buffer[filled:])
        if not count:
            break
        filled += count
    return filled
