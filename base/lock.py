"""Lock files: one process at a time does something, and the others can read who it is.

A lock is flock's: it belongs to the open file, so the kernel frees it with the last process that has the file open, however that ends. A
cleaner of /tmp, or whoever held it before, may have taken the file away and somebody made another: so a lock counts only while the file
that is locked still has its name.
"""

import fcntl
import math
import os
import time
from pathlib import Path
from typing import Final, Self

from base.untrusted import NEVER_FOLLOW, trusted_directory

PAUSE_S: Final = 0.1
TRIES: Final = 10
HOLDER_BYTES: Final = 4096


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory if nobody else has; again is fine. Raises OSError where its file system knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_name(descriptor: int, path: Path | str, dir_fd: int | None = None) -> bool:
    """Return True if `path`, relative to the directory `dir_fd` where it is given, still is the open file. Raises OSError."""
    try:
        found = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


class LockFile:
    """The lock file `path`, made where it is not there and open until close(); it stays when nobody has it. All functions raise OSError.
    `trusted`: its directory is made with mode 0700 where it is not there, and must be one that nobody else can exchange. `mode`: of a
    new file; one with bits for a group is given to the group whatever our umask is. `descriptor` stays the same number for as long as it
    is open: a child that inherits it has the lock too."""

    def __init__(self, path: Path, mode: int = 0o600, *, trusted: bool = False) -> None:
        self.path = path
        self.held = False
        self._mode = mode
        self._trusted = trusted
        self.descriptor = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def try_take(self) -> bool:
        """Take the lock if nobody else has it."""
        while try_lock(self.descriptor):
            if has_name(self.descriptor, self.path):
                self.held = True
                return True
            fresh = self._open()
            os.dup2(fresh, self.descriptor, inheritable=False)
            os.close(fresh)
        return False

    def take(self, limit_s: float = math.inf, pause_s: float = PAUSE_S) -> bool:
        """Wait for the lock, at most `limit_s`. Return True if we have it."""
        end = time.monotonic() + limit_s
        while not self.try_take():
            if limit_s == math.inf:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            elif time.monotonic() > end:
                return False
            else:
                time.sleep(pause_s)
        return True

    def write_holder(self, text: str) -> None:
        """Write for others who has the lock; no reader finds a part of it, as long as it fits into a page."""
        content, size = text.encode(), os.fstat(self.descriptor).st_size
        os.pwrite(self.descriptor, content.ljust(size), 0)
        if size > len(content):
            os.ftruncate(self.descriptor, len(content))

    def read_holder(self) -> str:
        """Return what the last holder has written; it stays when nobody holds the lock any more."""
        return os.pread(self.descriptor, HOLDER_BYTES, 0).decode(errors="replace").strip()

    def unlock(self) -> None:
        """Let others have the lock; we may come back."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.held = False

    def close(self) -> None:
        """Give the lock up, as far as we have it: a program that was given the descriptor may hold it still."""
        os.close(self.descriptor)
        self.held = False

    def remove(self) -> None:
        """Give the lock up for good: the file goes too. Only for the holder."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _open(self) -> int:
        for left in reversed(range(TRIES)):
            try:
                if self._trusted:
                    trusted_directory(self.path.parent)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | NEVER_FOLLOW, self._mode)
                break
            except FileNotFoundError:  # a cleaner of /tmp has taken its directory between our two steps
                if not left or not self._trusted:
                    raise
        try:
            if self._mode & 0o070 and os.fstat(descriptor).st_uid == os.geteuid():
                os.fchmod(descriptor, self._mode)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
