"""The steps of BigDL, from the line that its optimizer prints for each: it tells nobody else while it trains."""

import math
import os
import re
import sys
import threading
import time
from typing import Any, Optional

from slipway_events import EventFile
from slipway_program.plan import Steps

LINE = re.compile(
    r"\[Iteration (?P<step>\d+)\].*?Trained (?P<samples>[\d.]+) records in (?P<seconds>[\d.]+) seconds"
    r".*?Loss is (?P<loss>[\d.eE+-]*\d|NaN|-?Infinity)"
)
MAX_BYTES = 1 << 16


class Lines:
    """The lines between the JVM and the log of this rank: every line goes on, and one that tells of a step becomes an event. It begins with
    the loss of the first batch of the cell, which is compared; what BigDL tells is of batches of its own order."""

    def __init__(self, events: EventFile, steps: Steps) -> None:
        self._events, self._steps = events, steps
        self.first_loss = 0.0
        self._last: Optional[float] = None
        self.told = 0
        self._changed = threading.Condition()
        self.window = [0.0, 0.0]
        self.measured_s = 0.0
        self.not_finite: Optional[int] = None
        self._log = os.dup(2)
        ours, theirs = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(theirs, 1)
        os.dup2(theirs, 2)
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=(os.fdopen(ours, "rb"),), daemon=True)
        self._reader.start()

    def _read(self, lines: Any) -> None:
        for line in iter(lambda: lines.readline(MAX_BYTES), b""):
            os.write(self._log, line)
            found = LINE.search(line.decode("utf-8", "replace"))
            if found is not None:
                self._tell(time.perf_counter(), **found.groupdict())

    def _tell(self, now: float, step: str, samples: str, seconds: str, loss: str) -> None:
        number = int(step) - 1
        if number != self.told or number >= self._steps.total:
            return
        if number in (0, self._steps.first_measured):
            self._events.phase("train" if number == self._steps.first_measured else "warmup")
        with self._changed:
            self.told += 1
            self._changed.notify()
        took = float(seconds) if self._last is None else now - self._last
        self._last = now
        measured = self._steps.first_measured <= number < self._steps.end_measured
        if number in (self._steps.first_measured - 1, self._steps.end_measured - 1):
            self.window[number == self._steps.end_measured - 1] = now
        self.measured_s += took if measured else 0.0
        if not math.isfinite(float(loss)):
            self.not_finite = number if self.not_finite is None else self.not_finite
            return
        value = self.first_loss if number == 0 else float(loss)
        told = {"seconds": took, "samples": int(float(samples)), "measured": measured, "loss": value, "loss_scope": "global"}
        self._events.emit("step", step=number, **told)

    def wait(self, until: float) -> None:
        """Wait until all steps are told, or it is this late: the optimizer may have returned before its last line was read."""
        with self._changed:
            self._changed.wait_for(lambda: self.told >= self._steps.total, max(0.0, until - time.monotonic()))
