"""What the operating system answers where a disk is full or network storage fails, and the time by a file system's own clock."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Final

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""No room, or no quota."""
FULL_WORDS: Final = tuple(os.strerror(number) for number in DISK_FULL)
"""The messages of the errors in DISK_FULL."""
STORAGE_FAILS: Final = (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENODEV)
"""Storage fails for now, and so does not say what it holds: asked again it may answer rightly."""


def now_at(directory: Path) -> float:
    """Return the time of last change that a file made in `directory` gets now: its servers have their own clock, and only that one can be
    compared with the times of its files. Raises OSError."""
    with tempfile.TemporaryFile(dir=directory) as fresh:
        return os.fstat(fresh.fileno()).st_mtime
