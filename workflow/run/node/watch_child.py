"""`python -m cluster.watching` as a child of the node program, which never waits for it: it writes its lines into memory by itself, and
what is there at the end is taken. No disk has a part in it while the run measures."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Collection, Sequence
from typing import Final

from cluster.processes import boot_id, die_with_parent, pid_namespace, prepare_prctl, wait_for_ends
from workflow.run.node.limits import WATCHER_END_S

logger = logging.getLogger(__name__)

SUPERVISOR: Final = "SLIPWAY_SUPERVISOR"
"""Environment variable of a node program: which process of which machine started it, as `who_i_am` tells."""
MAX_BYTES: Final = 16 << 20


def who_i_am() -> str:
    """This process, as another of the same machine can find it."""
    return f"{os.getpid()} {boot_id()} {pid_namespace()}"


def pid_here(who: str) -> int | None:
    """The process that `who_i_am` told of; None where that was on another machine."""
    pid, _, where = who.partition(" ")
    return int(pid) if where == f"{boot_id()} {pid_namespace()}" and pid.isdecimal() else None


def watching_argv(python: str, cores: Collection[int], mark: str, ours: Sequence[int], gpus: Sequence[str] = ()) -> tuple[str, ...]:
    """Pure: the command of a watcher of the machine, or of these GPUs."""
    argv: tuple[str, ...] = (python, "-P", "-m", "cluster.watching", "--cores", ",".join(map(str, sorted(cores))), "--mark", mark)
    argv += ("--ours", ",".join(map(str, ours))) if ours else ()
    return (*argv, "--gpus", ",".join(gpus)) if gpus else argv


class Watcher:
    """One or more watchers that write to the same place; where one cannot be started there is less to know."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        parent = os.getpid()
        prepare_prctl()
        self._lines = os.memfd_create("load", os.MFD_CLOEXEC)
        self._children: list[subprocess.Popen[bytes]] = []
        for argv in commands:
            try:
                self._children.append(
                    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self._lines, preexec_fn=lambda: die_with_parent(parent))
                )
            except (OSError, subprocess.SubprocessError) as error:
                logger.warning("this machine is not watched: %s", error)

    def finish(self) -> None:
        """Have each take a last look."""
        for child in self._children:
            child.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Give them a moment for that, then end them. One that hangs in the kernel is left to the end of all descendants."""
        self.finish()
        wait_for_ends([child.pid for child in self._children if child.poll() is None], WATCHER_END_S)
        for child in self._children:
            if child.poll() is None:
                child.kill()

    def lines(self) -> bytes:
        """What they have seen."""
        return os.pread(self._lines, MAX_BYTES, 0)
