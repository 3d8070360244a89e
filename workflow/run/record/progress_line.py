"""How far training is, as a line for people now and then: `train: step 120 of 200, 1,480 samples/s, 3.1 s left`."""

from __future__ import annotations

import re
from typing import Final

from base.units import format_duration

OFTEN_S: Final = 2.0
SELDOM_S: Final = 10.0
BEGINNING_S: Final = 60.0
"""Who has just started a study looks at it; the log of a run of days is not to be filled."""
UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, " s": 1.0}
_LEFT: Final = re.compile(r", (?P<left>[\d.]+(?: s|[smhd])(?:\d+[smhd])?) left$")
_PART: Final = re.compile(r"([\d.]+)( s|[smhd])")


def seconds_left(line: str) -> float | None:
    """Pure: the seconds that a line of ProgressLine says are left; None where it does not."""
    said = _LEFT.search(line)
    if said is None:
        return None
    return sum(float(number) * UNITS[unit] for number, unit in _PART.findall(said["left"]))


class ProgressLine:
    """The line that is due, from the step that all ranks have done. `batch`: samples of a step; None where tokens are counted, which ranks
    alone know. Times are those of the monotonic clock, given by the caller."""

    def __init__(self, batch: int | None, steps: int | None, now: float) -> None:
        self._batch, self._steps = batch, steps
        self._begun = now
        self._due = now
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def due(self, step: int, now: float, tokens: int | None = None) -> str | None:
        """The line of the step with the number `step`, counted from 0; None while none is due. The rate is since the line before, the time
        left by the rate since the first: nothing else of what is to come is known. `tokens`: of one step, as all ranks tell."""
        if now < self._due or (self._last is not None and step + 1 == self._last[1]):
            return None
        self._due = now + (OFTEN_S if now - self._begun < BEGINNING_S else SELDOM_S)
        done = step + 1
        told = f"train: step {done:,}" + ("" if self._steps is None else f" of {self._steps:,}")
        if self._last is not None and self._first is not None and done > self._last[1]:
            each, unit = (tokens, "tokens") if self._batch is None else (self._batch, "samples")
            if each is not None:
                told += f", {each * (done - self._last[1]) / (now - self._last[0]):,.0f} {unit}/s"
            if self._steps is not None and done < self._steps:
                told += f", {format_duration((self._steps - done) * (now - self._first[0]) / (done - self._first[1]))} left"
        self._first = self._first or (now, done)
        self._last = (now, done)
        return told
