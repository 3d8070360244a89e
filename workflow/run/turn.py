"""One measuring run at a time, where runs would share cores: a lock file that the kernel frees however we end."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from workflow.run.calls import Call
from workflow.run.loop import Loop

LONGEST_WAIT_S: Final = 30 * 86400.0


class Turn:
    """The lock of one supervisor; taken with `take`, given back with `give` or by our end."""

    def __init__(self, loop: Loop, path: Path) -> None:
        self._loop = loop
        self._path = path
        self._descriptor = self._open()

    def _open(self) -> int:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._loop.private.append(descriptor)  # a child that hangs must not keep the lock
        return descriptor

    def _close(self) -> None:
        self._loop.private.remove(self._descriptor)
        os.close(self._descriptor)

    def try_take(self) -> bool:
        """Take it if it is free."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return self._is_current()

    def _is_current(self) -> bool:
        """Whether what we locked still has the name: a cleaner of /tmp may have removed it."""
        try:
            found, ours = self._path.stat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            found = None
        if found is not None and (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
            return True
        self._close()
        self._descriptor = self._open()
        return False

    def take(self) -> None:
        """Take it, waiting in the loop: the lock belongs to the open file, so a child can wait for it in our name."""
        while not self.try_take():
            waiting = Call(self._loop, "turn", _wait, self._descriptor, timeout_s=LONGEST_WAIT_S, keep=(self._descriptor,))
            try:
                waiting.wait()
            finally:
                waiting.abandon()  # nothing, if it has ended; the run may have, while it waits
            if self._is_current():
                return

    def sign(self, text: str) -> None:
        """Say in the file who has it."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def signature(self) -> str:
        """Who has it, as far as is known."""
        return os.pread(self._descriptor, 200, 0).decode(errors="replace")

    def give(self) -> None:
        """The next may measure."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()


def _wait(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
