"""A terminal on a host of a mini-cluster, in which its user types."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from typing import Final

from tests.minicluster.cluster import Cluster
from tests.minicluster.spec import USER

LIMIT_S: Final = 240.0


class Terminal:
    """A command of the cluster's user on the login node, with a terminal."""

    def __init__(self, cluster: Cluster, argv: list[str]) -> None:
        self.said, self._heard = "", 0
        self._master, slave = pty.openpty()
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        self._process = cluster.popen("login", argv, user=USER, cwd=cluster.spec.home, start_new_session=True, **streams)
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
