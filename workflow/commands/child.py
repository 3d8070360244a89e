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
from typing import Final

from cluster.processes import die_with_parent, prepare_prctl

GRACE_S: Final = 60.0
"""In which Snakemake's runs end after an interrupt: their containers are stopped and what there is is pushed."""
BURST_S: Final = 1.0
"""So close together, signals of one kind are one: a terminal, and what passes it on, such as nsenter or a job step, send the same Ctrl-C
several times. Snakemake that hears a second one leaves its runs to themselves."""
PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Child:
    """Started by its making. A context manager: signals to us go to it while it is open, and `told` says which came, in order.

    Ctrl-C goes to its whole group, as a terminal would send it: Snakemake waits for its runs, and they end by it; what a second one does is
    up to them. SIGHUP is as Ctrl-C, since Snakemake would end by it at once and leave its temporary directory. SIGTERM
    goes to Snakemake alone, which then starts nothing more and waits for what runs; a second one is as Ctrl-C.
    """

    def __init__(self, argv: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self.told: list[int] = []
        self._passed: dict[int, float] = {}
        prepare_prctl()
        with log.open("xb") as output:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                process_group=0,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        self._descriptor = os.pidfd_open(self._process.pid)

    def __enter__(self) -> Child:
        heard = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]  # nohup's choice stands
        self._handlers = {number: signal.signal(number, self._signalled) for number in heard}
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            self._stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._descriptor)

    def wait(self, limit_s: float) -> int | None:
        """Its exit code, if it ends within `limit_s`: negative for a signal."""
        select.select([self._descriptor], [], [], limit_s)
        return self._process.poll()

    def _stop(self) -> None:
        """We leave before it has ended, by a fault of ours: its runs end as by Ctrl-C, if they can."""
        os.killpg(self._process.pid, signal.SIGINT)
        if self.wait(GRACE_S) is None:
            self._process.kill()
        self._process.wait()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._process.poll() is not None or now - self._passed.get(number, -BURST_S) < BURST_S:
            return
        self._passed[number] = now
        first = number not in self.told
        self.told.append(number)
        if number == signal.SIGTERM and first:
            os.kill(self._process.pid, number)
        else:
            os.killpg(self._process.pid, signal.SIGINT)
