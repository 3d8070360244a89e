"""The supervisor's standard error may be a file on network storage, which may hang. So another process writes it.

Where that file is the log of a run, which every supervisor of the run is started to append to, only who holds the run begins it anew: what
comes before that is known is kept back, and who is refused because another one has the run, or waits for that one's end, says it in a file
beside that one's log.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import select
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any, Final

from base.untrusted import directory, open_regular
from workflow.run.supervisor.limits import LOG_REST_S, LOG_UNDECIDED_S
from workflow.study.paths import REFUSED

PIPE_BYTES = 1 << 20
MOST_KEPT = 1 << 20
ANEW: Final = b"n"
"""The run is ours: its log begins anew."""
BEHIND: Final = b"a"
"""There is nothing to do: that is said behind what is there."""
BESIDE: Final = b"r"
"""Another one has the run, and its log: what we say is kept beside it."""


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
    """From now on descriptor 2 is a pipe that never blocks; a child of ours writes what comes through it where it went before.

    `log`: the log of the run that descriptor 2 appends to; None: some other place, where nothing is kept back.
    """

    def __init__(self, log: str | None = None) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        orders, self._orders = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(writer)
            os.close(self._orders)
            _copy(reader, orders, log)
        os.close(reader)
        os.close(orders)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(writer, False)
        os.dup2(writer, 2, inheritable=True)
        os.close(writer)
        sys.stderr = _Dropping(2)

    def go(self, order: bytes) -> None:
        """It is known now where our log goes: ANEW, BEHIND, or BESIDE, and then for who waits one of the others."""
        with contextlib.suppress(OSError):
            os.write(self._orders, order)

    def close(self) -> None:
        """Give it a moment to write the rest, then end it."""
        descriptor = os.pidfd_open(self.pid)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 2)
        if not select.select([descriptor], [], [], LOG_REST_S)[0]:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, os.WNOHANG)


def _copy(reader: int, orders: int, log: str | None) -> Any:
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        place = _Place(log)
        heard = [reader] if log is None else [orders, reader]
        data = b"" if log is None else _keep_back(reader, orders, place)
        while True:
            if data:
                place.come_back()
            while data:
                data = data[os.write(2, data) :]
            ready = select.select(heard, [], [])[0]
            if orders in ready:
                if order := os.read(orders, 1):
                    place.go(order)
                else:
                    heard.remove(orders)  # the supervisor has ended, and what it has started may write still
            if reader in ready and not (data := os.read(reader, 1 << 16)):
                break
    finally:
        os._exit(0)


def _keep_back(reader: int, orders: int, place: _Place) -> bytes:
    """What came until it was decided where it goes; descriptor 2 is that then."""
    kept = b""
    give_up = time.monotonic() + LOG_UNDECIDED_S
    while len(kept) < MOST_KEPT and (left := give_up - time.monotonic()) > 0:
        ready = select.select([orders, reader], [], [], left)[0]
        if orders in ready:
            place.go(os.read(orders, 1))
            break
        if reader in ready:
            data = os.read(reader, 1 << 16)
            kept += data
            if not data:
                break
    return kept


class _Place:
    """Where descriptor 2 leads: to the log of the run, which it does at first, or to the file beside it."""

    def __init__(self, log: str | None) -> None:
        self._log, self._own = log, os.dup(2)
        self._is_own = True

    def go(self, order: bytes) -> None:
        """A log that cannot be had otherwise is appended to, also where something else than a file has the name of the other one."""
        with contextlib.suppress(OSError):
            os.dup2(self._own, 2)
            self._is_own = order != BESIDE
            if order == ANEW:
                os.ftruncate(2, 0)
            elif order == BESIDE and self._log is not None:
                self._open(f"{self._log.removesuffix('.log')}{REFUSED}", os.O_TRUNC)

    def come_back(self) -> None:
        """Another Snakemake that is started for the same run has removed its log, as it removes all files of a job before it: what was in
        it is written anew, where network storage has not forgotten it."""
        if self._log is None or not self._is_own:
            return
        with contextlib.suppress(OSError):
            try:
                before = os.fstat(2)
                if before.st_nlink or not stat.S_ISREG(before.st_mode):
                    return
                with open("/proc/self/fd/2", "rb") as file:
                    said = file.read(MOST_KEPT)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                said = b""
            self._open(self._log, os.O_APPEND)
            os.dup2(2, self._own)
            while said:
                said = said[os.write(2, said) :]

    def _open(self, name: str, how: int) -> None:
        """As descriptor 2."""
        path = Path(name)
        with directory(path.parent) as parent:
            other = open_regular(parent, path.name, os.O_WRONLY | os.O_CREAT | how, 0o666)
        os.dup2(other, 2)
        os.close(other)
