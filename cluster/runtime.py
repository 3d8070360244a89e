"""Our directory for locks and sockets on this machine: under /tmp, so it must be ours alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from base.errors import AllocationError

RUNTIME_DIRECTORY: Final = "/tmp/slipway-{uid}"  # noqa: S108 - made with mode 0700 and checked


def runtime_directory(pattern: str = RUNTIME_DIRECTORY) -> Path:
    """Made if it is not there. Raises AllocationError when it is not a directory that only we can enter."""
    directory = pattern.format(uid=os.getuid())
    try:
        Path(directory).mkdir(0o700)
    except FileExistsError:
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise AllocationError(f"{directory} must be a directory of yours with mode 0700, and is not: remove it") from None
    return Path(directory)
