"""One load of an image at a time on this node: flock, which ends with the process, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from base.errors import ContainerError
from base.trusted import trusted_directory

PAUSE_S: Final = 0.2
_NOT_OURS: Final = (errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def locked(path: Path, what: str, limit_s: float) -> Iterator[None]:
    """Hold the lock `path`, made where it is not there. Raises ContainerError when another holds it for longer than `limit_s`, or when it
    cannot be made."""
    descriptor = _opened(path, what)
    try:
        end = time.monotonic() + limit_s
        while not _taken(descriptor):
            if time.monotonic() > end:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                raise ContainerError(
                    f"{what}: process {holder or '?'} of this node holds {path} for more than {limit_s:g} s; does its engine answer?"
                )
            time.sleep(PAUSE_S)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path, what: str) -> int:
    try:
        trusted_directory(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        whose = "; is it another user's? give a place of your own in the site file" if error.errno in _NOT_OURS else ""
        raise ContainerError(f"{what}: the lock {path} cannot be made: {error.strerror}{whose}") from error


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
