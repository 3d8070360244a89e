"""Watch one rank by its events: in which phase it is, how fast its steps are, when it last said something."""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path

from base.untrusted import open_file
from workflow.run.node.rank_clock import RankClock, StepLine
from workflow.run.node.window_watch import Line, WindowWatch
from workflow.run.record.events import MAX_LINE, Event, checked_event, not_trained, parse_line

logger = logging.getLogger(__name__)

READ_BYTES = 4 << 20
PARSE_LINES = 200
RECENT_STEPS = 50
STEPS_IN_LIMIT = 20
_NOT_FINITE = re.compile(rb'"loss": *(?:NaN|-?Infinity)')
OUTPUT = "output"
"""The phase of a program whose events an adapter writes, from its start to its end."""


class Beats:
    """The events file of one rank, read as it grows. Times are those of the monotonic clock, given by the caller; `clock` tells when a
    look was done, else it takes no time."""

    def __init__(self, path: Path, now: float, clock: Callable[[], float] | None = None) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._lines: list[Line] = []
        """Those of the look that is under way which tell of steps or of a time, as far as they are read."""
        self._now = clock
        self._all_before = now
        """What has come since was written after this."""
        self.clock = RankClock(now)
        self.window = WindowWatch(now)
        self.last = now
        self.phase: str | None = None
        self.step: int | None = None
        self.tokens: int | None = None
        """Of the last step."""
        self.error: Event | None = None
        self.checkpoint: int | None = None
        """The step of the last checkpoint that a run can resume from."""
        self.problem: str | None = None
        """Why its events cannot be read."""
        self.stopped = False
        """Whether run_stop was seen."""

    def poll(self, now: float) -> None:
        """Take what was written since; any line is a beat."""
        read = self._read()
        data = read or b""
        by = now if self._now is None else self._now()
        self._lines = []
        self._take_all(data, now)
        to_the_end = read is not None and len(read) < READ_BYTES
        steps = [
            StepLine(line.step, line.end_ns, line.seconds) for line in self._lines if line.step is not None and line.end_ns is not None
        ]
        self.clock.look(now, to_the_end, steps, bool(data), by)
        for line in self._lines:
            self.window.take(line, self._all_before, by)
        if to_the_end:
            self._all_before = now

    def _take_all(self, data: bytes, now: float) -> None:
        if not data:
            return
        self._offset += len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= MAX_LINE else rest[: MAX_LINE + 1]  # too long for an event, whatever follows
        if lines:
            self.last = now
        many = len(lines) > PARSE_LINES
        for index, line in enumerate(lines):
            if many and RECENT_STEPS <= index < len(lines) - RECENT_STEPS and b'"seconds"' in line and not _NOT_FINITE.search(line):
                continue  # one of very many steps: the first and the last ones tell enough
            event = checked_event(parse_line(line))
            if event is not None:
                self._take(event)

    def _read(self) -> bytes | None:
        """What has been added; nothing while there is no file. None where it cannot be read, or something is there that is none: that is
        said once, counts as silence, and nobody knows what was written by then."""
        try:
            descriptor = open_file(self._path)
            try:
                return os.pread(descriptor, READ_BYTES, self._offset)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return b""
        except OSError as error:
            if self.problem is None:
                self.problem = f"{self._path.name} cannot be read: {error.strerror}"
                logger.error("%s", self.problem)
            return None

    def _take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "step":
            seconds = event["seconds"] * max(1, event.get("steps") or 1)
            self._seconds.append(seconds)
            self.step = event["step"]
            if self.error is None and not_trained(event):
                self.error = {"event": "error", "kind": "nan", "message": f"the loss of step {self.step} is {event['loss']}"}
            self.tokens = event.get("tokens")
            first = self.step - max(1, event.get("steps") or 1) + 1
            self._lines.append(Line(self.step, event.get("monotonic_ns"), seconds, event.get("measured", False), first))
        elif kind == "phase":
            self.phase = event["phase"]
            self._lines.append(Line(None, event.get("monotonic_ns")))
        elif kind == "error":
            self.error = self.error or event
        elif kind == "checkpoint" and event.get("resumable"):
            self.checkpoint = event.get("step")
        elif kind == "run_stop":
            self.stopped = True

    def limit_s(self, beat_s: float, init_s: float) -> float:
        """How long this rank may be silent now: in train max(beat_s, 20 median steps), else `init_s`. A program that writes no events
        does not say when it evaluates or saves: in the phase output max(init_s, 20 median lines)."""
        if self.phase not in ("train", OUTPUT) or self.stopped:
            return init_s
        if not self._seconds:
            return max(beat_s, init_s)
        middle = sorted(self._seconds)[len(self._seconds) // 2]
        return max(beat_s if self.phase == "train" else init_s, STEPS_IN_LIMIT * middle)

    def next_look_s(self, now: float) -> float:
        """In how many seconds its lines should be looked at again, for its window to be known as sharply as can be."""
        return self.window.next_look_s(now, self.step is not None)

    def silent_s(self, now: float) -> float:
        """Seconds since the last line."""
        return now - self.last
