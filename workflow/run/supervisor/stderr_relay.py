"""The supervisor's standard error may be a file on network storage, which may hang. So another process writes it."""

from __future__ import annotations

import fcntl
import io
import os
import select
import signal
import sys
from typing import Any

PIPE_BYTES = 1 << 20
GOODBYE_S = 2.0


class _Dropping(io.TextIOBase):
    """Writes what the pipe takes; rather loses a line than waits."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        try:
            os.write(self._descriptor, text.encode(errors="replace"))
        except (BlockingIOError, BrokenPipeError):
            return 0
        return len(text)


class Relay:
    """From now on descriptor 2 is a pipe that never blocks; a child of ours writes what comes through it where it went before."""

    def __init__(self) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(writer)
            _copy(reader)
        os.close(reader)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(writer, False)
        os.dup2(writer, 2, inheritable=True)
        os.close(writer)
        sys.stderr = _Dropping(2)

    def close(self) -> None:
        """Give it a moment to write the rest, then end it."""
        descriptor = os.pidfd_open(self.pid)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 2)
        if not select.select([descriptor], [], [], GOODBYE_S)[0]:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, os.WNOHANG)


def _copy(reader: int) -> Any:
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while data := os.read(reader, 1 << 16):
            while data:
                data = data[os.write(2, data) :]
    finally:
        os._exit(0)
