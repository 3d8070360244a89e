"""Room on a disk, asked before the first byte; and files copied with their hash taken on the way."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

import xxhash

from base.chunks import CHUNK_BYTES, SCHEMA
from base.errors import NotEnoughSpace
from base.units import format_size

BLOCK: Final = 4 << 20
RESERVE: Final = 16 << 20
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the disk of `path`, which may not exist yet, or not be ours to look into."""
    status = os.statvfs(_visible(path))
    return status.f_bavail * status.f_frsize


def disk_of(path: Path) -> int:
    """The same number for places on one disk."""
    return _visible(path).stat().st_dev


def _visible(path: Path) -> Path:
    while True:
        try:
            path.stat()
        except OSError:
            if path == path.parent:
                raise
            path = path.parent
        else:
            return path


def require(needs: dict[Path, int], doing: str) -> None:
    """Raise NotEnoughSpace unless all of `needs` (place -> bytes) fit at the same time; places on one disk add up."""
    disks: dict[int, list[Path]] = {}
    for place in needs:
        disks.setdefault(disk_of(place), []).append(place)
    for places in disks.values():
        need, free = sum(needs[place] for place in places) + RESERVE, free_bytes(places[0])
        if need > free:
            raise not_enough(places[0], need, doing)


def not_enough(place: Path, need: int, doing: str) -> NotEnoughSpace:
    """The error, with what is free now."""
    return NotEnoughSpace(
        f"{doing}: {need} bytes ({format_size(need)}) are needed, {free_bytes(place)} ({format_size(free_bytes(place))}) are free in "
        f"{place}; make room there, then run again"
    )


class HashingWriter:
    """A file that is hashed as it is written, as a whole and in chunks."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._chunk = xxhash.xxh3_128()
        self._chunks: list[str] = []
        self.bytes = 0

    def write(self, block: bytes) -> int:
        """As of a file."""
        self._hash.update(block)
        rest = memoryview(block)
        while rest:
            piece = rest[: CHUNK_BYTES - self.bytes % CHUNK_BYTES]
            self._chunk.update(piece)
            self.bytes += len(piece)
            rest = rest[len(piece) :]
            if self.bytes % CHUNK_BYTES == 0:
                self._chunks.append(self._chunk.hexdigest())
                self._chunk.reset()
        return self._file.write(block)

    def hexdigest(self) -> str:
        """Of all that was written."""
        return self._hash.hexdigest()

    def chunk_list(self, name: str) -> dict[str, Any]:
        """What base/chunks.py describes, of all that was written."""
        last = [self._chunk.hexdigest()] if self.bytes % CHUNK_BYTES else []
        return {"schema": SCHEMA, "name": name, "bytes": self.bytes, "chunk_bytes": CHUNK_BYTES, "chunks": [*self._chunks, *last]}


def copy_hashed(source: Path, target: Path, moved: Callable[[int], None] = lambda _done: None) -> HashingWriter:
    """Copy a file to the new name `target`; `moved` is told the bytes so far. On failure `target` is removed. Raises OSError."""
    try:
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            return _hashed(source, file, moved)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def hash_file(source: Path) -> HashingWriter:
    """Read a file and keep nothing but its hashes. Raises OSError."""
    with open(os.devnull, "wb") as nowhere:
        return _hashed(source, nowhere)


def _hashed(source: Path, target: IO[bytes], moved: Callable[[int], None] = lambda _done: None) -> HashingWriter:
    writer = HashingWriter(target)
    with source.open("rb") as reader:
        while block := reader.read(BLOCK):
            writer.write(block)
            moved(writer.bytes)
    return writer
