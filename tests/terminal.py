"""A command with a terminal, in which its user types."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

LIMIT_S: Final = 240.0


class Terminal:
    """`start`: as subprocess.Popen, but for the streams."""

    def __init__(self, start: Callable[..., subprocess.Popen[Any]]) -> None:
        self.said, self._heard = "", 0
        self._master, slave = pty.openpty()
        self._process = start(stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, pattern: str) -> None:
        """That was said, behind what was waited for before."""
        end = time.monotonic() + LIMIT_S
        while (found := re.compile(pattern).search(self.said, self._heard)) is None:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"not within {LIMIT_S:g} s: {pattern!r}: {self.said}"
            try:
                self.said += os.read(self._master, 1 << 16).decode(errors="replace")
            except OSError as error:  # the last one that had it open has ended
                raise AssertionError(self.said) from error
        self._heard = found.end()

    def ended(self) -> int:
        """Its exit code."""
        return self._process.wait(LIMIT_S)

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._master)
