"""One load of an image at a time on this node."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from base.errors import ContainerError
from base.lock import LockFile

_NOT_OURS: Final = (errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def locked(path: Path, what: str, limit_s: float, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock `path`, made where it is not there; `waits()` is called where another has it. Raises ContainerError when that is for
    longer than `limit_s`, or when it cannot be made."""
    with contextlib.ExitStack() as open_:
        try:
            lock = open_.enter_context(LockFile(path, trusted=True))
            taken = lock.try_take()
            if not taken:
                waits()
                taken = lock.take(limit_s)
            if taken:
                lock.say(f"{os.getpid()} ({what}, since {time.strftime('%Y-%m-%d %H:%M:%S')})")
            holder = lock.said()
        except OSError as error:
            whose = "; is it another user's? give a place of your own in the site file" if error.errno in _NOT_OURS else ""
            raise ContainerError(f"{what}: the lock {path} cannot be made: {error.strerror}{whose}") from error
        if not taken:
            raise ContainerError(
                f"{what}: process {holder or '?'} of this node holds {path} for more than {limit_s:g} s; see whether it or its engine hangs"
            )
        yield
