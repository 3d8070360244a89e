"""Hold up whoever reads a file, so that a test acts while somebody is at it, however slow or fast this machine is."""

import contextlib
import ctypes
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FAN_CLASS_CONTENT, FAN_CLOEXEC, FAN_MARK_ADD, FAN_ACCESS_PERM = 0x4, 0x1, 0x1, 0x20000
AT_FDCWD = -100
LIMIT_S = 60.0
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.fanotify_mark.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]


@contextlib.contextmanager
def held_up(path: Path) -> Iterator[Callable[[], None]]:
    """Whoever reads the file `path` waits until the end of the block, or is killed; the function waits until somebody does."""
    if os.geteuid() != 0:
        pytest.skip("needs root: fanotify")
    descriptor = _LIBC.fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, os.O_RDONLY)
    if descriptor < 0 or _LIBC.fanotify_mark(descriptor, FAN_MARK_ADD, FAN_ACCESS_PERM, AT_FDCWD, os.fsencode(path)):
        pytest.skip(f"fanotify with permissions: {os.strerror(ctypes.get_errno())}")

    def wait() -> None:
        assert select.select([descriptor], [], [], LIMIT_S)[0], f"nobody has read {path} within {LIMIT_S:g} s"

    try:
        yield wait
    finally:
        os.close(descriptor)
