"""What the operating system answers where a disk is full, or network storage fails."""

from __future__ import annotations

import errno
import os
from typing import Final

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""No room, or no quota."""
FULL_WORDS: Final = tuple(os.strerror(number) for number in DISK_FULL)
"""The messages of the errors in DISK_FULL."""
STORAGE_FAILS: Final = (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENODEV)
"""Storage fails for now, and so does not say what it holds: asked again it may answer rightly."""
