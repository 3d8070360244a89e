"""Try a directory out: may we write, does O_EXCL hold, does rename replace, do locks lock, how fast is it, what is its clock?

All of it in a hidden directory of our own that is removed at the end. It may hang where the storage does: callers limit it.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.lock import try_lock
from base.publish import create_exclusive, publish, remove_tree
from base.storage_clock import now_at
from data_prep.limits import TRIAL_DEAD_S, TRIAL_S

PREFIX: Final = ".slipway-doctor-"
BLOCK: Final = 1 << 20
MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was found. `locks` None: the file system refuses flock. Speeds are of one stream in blocks of 1 MiB, written durably."""

    exclusive: bool
    replaces: bool
    locks: bool | None
    skew_s: float
    """The file system's clock less ours."""
    num_bytes: int
    write_bytes_per_s: float
    read_bytes_per_s: float
    direct: bool
    """Whether it was read around the page cache; otherwise the figure may be that of memory."""


@contextmanager
def own_directory(parent: Path) -> Iterator[Path]:
    """A hidden directory in `parent`, removed at the end; so are those that a killed check of ours has left there."""
    for old in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = old.lstat()
            if status.st_uid == os.geteuid() and now_at(parent) - status.st_mtime > TRIAL_DEAD_S:
                remove_tree(old)
    path = parent / f"{PREFIX}{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        remove_tree(path)


def try_out(parent: Path, most_bytes: int = MOST_BYTES) -> Trial:
    """Everything, in a few seconds. Raises OSError where we may not write, or the disk is full."""
    with own_directory(parent) as directory:
        marker = directory / "marker"
        before = time.time()
        exclusive = create_exclusive(marker, b"one") and not create_exclusive(marker, b"two")
        skew = _skew(marker.stat().st_mtime, before, time.time())
        publish(marker, b"three")
        replaces = marker.read_bytes() == b"three"
        locks = _locks(marker)
        written, write_s = _write(directory / "speed", most_bytes)
        read, read_s, direct = _read(directory / "speed")
    return Trial(
        exclusive=exclusive,
        replaces=replaces,
        locks=locks,
        skew_s=skew,
        num_bytes=written,
        write_bytes_per_s=written / max(write_s, 1e-9),
        read_bytes_per_s=read / max(read_s, 1e-9),
        direct=direct,
    )


def _skew(stamp: float, before: float, after: float) -> float:
    """0 where the stamp can lie between the two moments; a file system may keep whole seconds only, or those of the last tick."""
    if stamp > after:
        return stamp - after
    return min(0.0, stamp - before + 0.02) if stamp % 1 else min(0.0, stamp + 1 - before)


def _locks(path: Path) -> bool | None:
    """Whether a second lock on the same file is refused."""
    with path.open("rb") as first, path.open("rb") as second:
        try:
            return try_lock(first.fileno()) and not try_lock(second.fileno())
        except OSError:
            return None


def _write(path: Path, most_bytes: int) -> tuple[int, float]:
    block = memoryview(secrets.token_bytes(BLOCK))  # no file system can compress it
    start = time.monotonic()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < most_bytes and time.monotonic() - start < TRIAL_S:
            written += os.write(descriptor, block[: most_bytes - written])
        os.fsync(descriptor)
        taken = time.monotonic() - start
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return written, taken


def _read(path: Path) -> tuple[int, float, bool]:
    descriptor, direct = _open_direct(path)
    try:
        with mmap.mmap(-1, BLOCK) as buffer:  # page-aligned, as O_DIRECT wants it
            start = time.monotonic()
            read = 0
            while time.monotonic() - start < TRIAL_S:
                got = os.readv(descriptor, [buffer])
                read += got
                if got < BLOCK:
                    break
            return read, time.monotonic() - start, direct
    finally:
        os.close(descriptor)


def _open_direct(path: Path) -> tuple[int, bool]:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False
