"""One process at a time stages, leases or removes a dataset on this node: flock, which ends with the process, however it ends.

The holder writes what it does and how far it is into the lock file. A holder that is alive but frozen keeps the flock; who waits sees that
nothing moves and is told so.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from data_prep.cache.holder import this_process

_BEAT_S = 0.2


class Lock:
    """Use as a context manager: leaving it lets go, if it was held. `what` is what the holder does: stage, lease, remove, space."""

    def __init__(self, path: Path, what: str, mode: int) -> None:
        self.path = path
        self.what = what
        self.held = False
        self._last_beat = 0.0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        if os.fstat(self._descriptor).st_uid == os.geteuid():
            os.fchmod(self._descriptor, mode)  # our group must be able to open it whatever our umask is

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._descriptor)
        self.held = False

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.held = True
        self._write({**this_process(), "what": self.what, "done": 0, "total": 0})
        return True

    def acquire(self, stall_s: float, on_wait: Callable[[dict[str, Any]], None] | None = None) -> bool:
        """Wait for the lock as long as its holder gets on; False when nothing has moved for `stall_s`."""
        seen: bytes | None = None
        since, pause = time.monotonic(), 0.01
        while not self.try_acquire():
            now, found = time.monotonic(), self._read()
            if found != seen:
                seen, since = found, now
                if on_wait is not None:
                    on_wait(self.holder())
            elif now - since > stall_s:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25, max(stall_s / 4, 0.01))
        return True

    def beat(self, done: int, total: int) -> None:
        """Show those who wait that we get on. Cheap: writes five times a second at most."""
        now = time.monotonic()
        if self.held and (now - self._last_beat > _BEAT_S or done == total):
            self._last_beat = now
            self._write({**self.holder(), "done": done, "total": total, "beat": time.monotonic_ns()})

    def doing(self, what: str) -> None:
        """Say that the holder does something else now."""
        self.what = what
        if self.held:
            self._write({**self.holder(), "what": what})

    def holder(self) -> dict[str, Any]:
        """What the holder wrote last: {"pid", ..., "what", "done", "total"}, or {} if that cannot be read at this moment."""
        try:
            found = json.loads(self._read())
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _read(self) -> bytes:
        return os.pread(self._descriptor, 4096, 0).rstrip()

    def _write(self, content: dict[str, Any]) -> None:
        os.pwrite(self._descriptor, json.dumps(content).encode().ljust(512), 0)
