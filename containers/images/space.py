"""Room on a disk, asked before the first byte; and files copied with their hash taken on the way."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

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
    """A file that is hashed as it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.bytes = 0

    def write(self, block: bytes) -> int:
        """As of a file."""
        self._hash.update(block)
        self.bytes += len(block)
        return self._file.write(block)

    def hexdigest(self) -> str:
        """Of all that was written."""
        return self._hash.hexdigest()


def copy_hashed(source: Path, target: Path, mode: int = 0o644, moved: Callable[[int], None] = lambda _bytes: None) -> tuple[str, int]:
    """Copy a file to the new name `target`; SHA-256 and bytes of what was written. `moved` is told of every block. On failure `target` is
    removed. Raises OSError."""
    try:
        with source.open("rb") as reader, os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            writer = HashingWriter(file)
            while block := reader.read(BLOCK):
                writer.write(block)
                moved(len(block))
            file.flush()
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return writer.hexdigest(), writer.bytes
