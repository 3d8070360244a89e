"""Snakemake as a child: in a process group of its own, all it says in a file, our signals passed on, nothing left when we are gone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from base.errors import StorageError
from cluster import processes
from cluster.guard import PASSED_ON, StorageWait
from cluster.limits import SAME_INTERRUPT_S
from cluster.processes import die_with_parent, prepare_prctl

GRACE_S: Final = 60.0
"""In which Snakemake's runs end after an interrupt: their containers are stopped and what there is is pushed."""
JOBS_LOOK_S: Final = 5.0
"""How often Snakemake and all that it has started is looked at for a wait for storage."""
TO_LOG: Final = ("/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1')
"""Before the path of a log and a command. The log lies on storage: the child opens it, since we must not wait for that."""


class Child:
    """Started by its making. A context manager: signals to us go to it while it is open, and `told` says which came, in order;
    `storage_wait_s`: for how long it, or a job of it, has waited for storage, at the last look.

    Ctrl-C goes to its whole group, as a terminal would send it: Snakemake waits for its runs, and they end by it; what a second one does is
    up to them. SIGHUP is as Ctrl-C, since Snakemake would end by it at once and leave its temporary directory. SIGTERM
    goes to Snakemake alone, which then starts nothing more and waits for what runs; a second one is as Ctrl-C.
    """

    def __init__(self, argv: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self.told: list[int] = []
        self._passed: dict[int, float] = {}
        self.storage_wait_s = 0.0
        self._abandoned = False
        prepare_prctl()
        self._process = subprocess.Popen(
            [*TO_LOG, str(log), *argv],
            stdin=subprocess.DEVNULL,
            env=dict(environ),
            process_group=0,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        self._descriptor = os.pidfd_open(self._process.pid)
        self._storage_waits: dict[int, StorageWait] = {}
        self._looked = 0.0

    def __enter__(self) -> Child:
        heard = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]  # nohup's choice stands
        self._handlers = {number: signal.signal(number, self._signalled) for number in heard}
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None and not self._abandoned:
            self._stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._descriptor)

    def wait(self, limit_s: float) -> int | None:
        """Its exit code, if it ends within `limit_s`: negative for a signal."""
        select.select([self._descriptor], [], [], limit_s)
        code = self._process.poll()
        if code is None and time.monotonic() - self._looked >= JOBS_LOOK_S:
            self._looked = time.monotonic()
            pids = (self._process.pid, *processes.descendants(self._process.pid))
            self._storage_waits = {pid: self._storage_waits.get(pid) or StorageWait(pid) for pid in pids}
            self.storage_wait_s = max(wait.seconds() for wait in self._storage_waits.values())
        return code

    def is_stuck(self, grace_s: float = GRACE_S) -> bool:
        """Whether it was told to end at once, has not within `grace_s`, and it, or a process that it has started, waits for storage."""
        at_once = len(self.told) > 1 or any(number != signal.SIGTERM for number in self.told)
        if not at_once or time.monotonic() - max(self._passed.values()) < grace_s:
            return False
        states = {state.pid: state.state for state in processes.all_processes()}
        below = processes.descendants(self._process.pid, processes.all_processes())
        return any(states.get(pid) == "D" for pid in (self._process.pid, *below))

    def abandon(self) -> NoReturn:
        """Kill it and do not wait for its end, for which storage has to answer. Raises StorageError."""
        self._abandoned = True
        self._process.kill()
        raise StorageError(
            f"snakemake (process {self._process.pid}) was told to end, and it or a job of it waits for storage, which does not answer; "
            "it is killed, and what waits ends when storage answers; then the same command continues the study"
        )

    def _stop(self) -> None:
        """We leave before it has ended, by a fault of ours: its runs end as by Ctrl-C, if they can."""
        os.killpg(self._process.pid, signal.SIGINT)
        if self.wait(GRACE_S) is None:
            self._process.kill()
        self._process.wait()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._process.poll() is not None or now - self._passed.get(number, -SAME_INTERRUPT_S) < SAME_INTERRUPT_S:
            return
        self._passed[number] = now
        first = number not in self.told
        self.told.append(number)
        if number == signal.SIGTERM and first:
            os.kill(self._process.pid, number)
        else:
            os.killpg(self._process.pid, signal.SIGINT)
