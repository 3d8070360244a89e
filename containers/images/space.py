"""Room on a disk, asked before the first byte; and files copied with their hash taken on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import xxhash

from base.chunks import ChunkHasher
from base.errors import NotEnoughSpace
from base.units import format_size

BLOCK: Final = 4 << 20
RESERVE: Final = 16 << 20


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


class HashingWriter(ChunkHasher):
    """A file that is hashed as it is written, by SHA-256 and in chunks."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(hashlib.sha256(), xxhash.xxh3_128)
        self._file = file

    def write(self, block: bytes) -> int:
        """As of a file."""
        self.update(block)
        return self._file.write(block)


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
