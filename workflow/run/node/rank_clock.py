"""Whether a rank's clock goes as ours does: the time that its steps tell of, against that which went by while we watched them come.

A line that was not there when we had read to the end of the file was written after that look, and one that we have read was written before
the next. So a time between two lines that no clock in order can go below is known, however late we looked, and one that it cannot exceed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from workflow.run.node.lags import Lags
from workflow.run.record.plausibility import SLACK_RATIO, SLACK_S

WATCHED_SHARE: Final = 0.5
"""Lines that we saw come over this much of the time in which they may have come were compared."""


class StepLine(NamedTuple):
    """What a line tells of time: `end_ns` of the rank's clock when it was written, `seconds` of all steps in it."""

    step: int
    end_ns: int
    seconds: float


class RankClock:
    """Of one rank. Times `now` are those of our monotonic clock before a look, in seconds."""

    def __init__(self, now: float) -> None:
        self._before = now
        """All that has come since was written after this."""
        self._silent_since: float | None = now
        """By then the lines before the first step were written; None until the next look."""
        self._silent_s = 0.0
        """How long nothing was written before the first steps came, at the least."""
        self._first: StepLine | None = None
        self._newest_first: StepLine | None = None
        """Of those that came at the first look which found any."""
        self._after = 0.0
        """The first step's line was written after this."""
        self._read_by: float | None = None
        self._last: StepLine | None = None
        self._all_by: float | None = None
        """By then all steps' lines were written; None until the next look."""
        self._least_s = 0.0
        self._told_s = 0.0
        """Seconds of the steps after the first one, as far as they were read."""
        self._lags = Lags()

    def look(self, now: float, to_the_end: bool, steps: Sequence[StepLine], any_line: bool = True, by: float | None = None) -> None:
        """`steps`: those that were new at this look; `any_line`: whether any line was; `to_the_end`: whether all that was there was
        read; `by`: when it was, where that is known."""
        if self._first is not None:
            self._read_by = now if self._read_by is None else self._read_by
            self._all_by = now if self._all_by is None else self._all_by
        elif self._silent_since is None:
            self._silent_since = now
        if steps:
            if by is not None:
                self._lags.add(self._before, by, steps[-1].end_ns, steps[-1].step)
            self._take(steps)
        elif self._first is None and any_line:
            self._silent_since = None
        if to_the_end:
            self._before = now

    def _take(self, steps: Sequence[StepLine]) -> None:
        self._told_s += sum(step.seconds for step in steps[0 if self._first else 1 :])
        if self._first is None:
            self._first, self._newest_first, self._after = steps[0], steps[-1], self._before
            self._silent_s = 0.0 if self._silent_since is None else self._before - self._silent_since
        elif self._read_by is not None:
            self._least_s = self._before - self._read_by
        self._last, self._all_by = steps[-1], None

    def problem(self) -> str | None:
        """What is wrong with the rank's clock; None where nothing is known to be."""
        first, last = self._newest_first, self._last
        if first is None or last is None or self._read_by is None:
            return None
        told_s = (last.end_ns - first.end_ns) / 1e9
        if told_s < self._least_s * (1 - SLACK_RATIO) - SLACK_S:
            return _wrong(told_s, first.step, last.step, self._least_s)
        slow = self._lags.slow()
        return None if slow is None else _wrong(*slow)

    def unwatched(self, now: float) -> str | None:
        """Why the clock could not be compared: steps that tell of more time than that in which their lines came were not written as they
        happened, and where the rank was silent before for longer than they tell, they may have taken that long. Short runs, whose steps
        come within one look, tell of less. `now`: after the last look."""
        first, last = self._first, self._last
        if first is None or last is None:
            return None
        within_s = (now if self._all_by is None else self._all_by) - self._after
        told_s = max((last.end_ns - first.end_ns) / 1e9, self._told_s)
        came_at_once = told_s > within_s * (1 + SLACK_RATIO) and self._least_s < within_s * WATCHED_SHARE
        if not came_at_once or told_s + first.seconds >= self._silent_s * (1 - SLACK_RATIO) - SLACK_S:
            return None
        return (
            f"tells of {told_s + first.seconds:.3g} s in its steps {first.step} to {last.step}, whose lines came within {within_s:.2g} s "
            f"after a silence of {self._silent_s:.3g} s: it does not write its events as they happen, so nobody could compare its clock"
        )


def _wrong(told_s: float, first: int | None, last: int | None, least_s: float) -> str:
    return (
        f"tells of {told_s:.3g} s from step {first} to step {last}, and at least {least_s:.3g} s went by "
        f"between these lines by Slipway's clock: its clock is wrong, or it does not write its events as they happen"
    )
