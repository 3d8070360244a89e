"""Hash a file: each chunk, to find a wrong byte while copying, and the whole, to name it."""

import io
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash
from blake3 import blake3

from base.chunks import CHUNK_BYTES, ChunkHasher
from base.errors import DatasetError
from base.typed import Digest, FromOne

CHUNK = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class ChunkedFile:
    """A file and its chunks. `name` is shown to people."""

    name: str
    """name of the file"""
    bytes: FromOne
    """its size"""
    chunk_bytes: FromOne
    """bytes of a chunk, 4194304"""
    chunks: tuple[str, ...]
    """xxh3_128 of each chunk, in hex"""

    def __post_init__(self) -> None:
        expected = -(-self.bytes // self.chunk_bytes)
        require(len(self.chunks) == expected, f"{self.name}: {len(self.chunks)} chunks for {self.bytes} bytes, expected {expected}")
        require(all(CHUNK.fullmatch(chunk) for chunk in self.chunks), f"{self.name}: a hash has the wrong form")

    @property
    def path(self) -> str:
        """Return the path relative to the directory that the file belongs to."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class FileHashes:
    """The hashes of a file. `chunks` are the xxh3_128 of each `chunk_bytes`, in hex."""

    bytes: FromOne
    chunk_bytes: FromOne
    chunks: tuple[str, ...]
    blake3: Digest


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def new_hasher(chunk_bytes: int = CHUNK_BYTES) -> ChunkHasher:
    """Create a hasher for data that are read or written in pieces."""
    return ChunkHasher(blake3(), xxhash.xxh3_128, chunk_bytes)


def hash_file(
    path: Path, chunk_bytes: int = CHUNK_BYTES, on_piece: Callable[[int], None] | None = None, *, stored: bool = False
) -> FileHashes:
    """Read `path` once and hash it; `on_piece(bytes)` as it goes. `stored`: from where it lies, rather than from this machine's memory.
    Raises OSError, or DatasetError for what is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DatasetError(f"{path} is not a regular file")
        if stored:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return hash_open(file, chunk_bytes, on_piece)


def hash_open(file: io.FileIO, chunk_bytes: int = CHUNK_BYTES, on_piece: Callable[[int], None] | None = None) -> FileHashes:
    """Hash an open file from its position to its end. Raises OSError."""
    hasher = new_hasher(chunk_bytes)
    buffer = memoryview(bytearray(chunk_bytes))
    while count := file.readinto(buffer):
        hasher.update(buffer[:count])
        if on_piece is not None:
            on_piece(count)
    return FileHashes(bytes=hasher.bytes, chunk_bytes=chunk_bytes, chunks=hasher.chunks, blake3=hasher.hexdigest())
