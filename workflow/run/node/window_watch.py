"""Watch a rank's measured window by Slipway's own clock, as exactly as the looks at its events allow.

A line was written after the last read that did not see it, and before the read that saw it. So the window has a least and a greatest
length, whatever the rank reports. The time from the line before the window to the start of the window is taken from the report of the rank,
less the least delay of all lines. If that line was written after the window had started, because a program writes several lines together,
the greatest length is longer by that delay.
"""

from typing import Final, NamedTuple

from workflow.run.node import limits
from workflow.run.record import outcome, window_check

SHARE: Final = 0.02
"""The interval of looks in the window, in parts of the time since it began: the same sharpness for short and long windows."""


class Line(NamedTuple):
    """The times in a line: `end_ns` of the rank's clock when it was written, `seconds` of all steps in it. `step`: the last of these
    steps, `first` the first, None in a line without steps."""

    step: int | None
    end_ns: int | None
    seconds: float = 0.0
    measured: bool = False
    first: int | None = None


class _Mark(NamedTuple):
    """A line, and between which moments of our clock it was written."""

    line: Line
    after: float
    by: float


class WindowWatch:
    """The measured window of one rank. All times are of our monotonic clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._any_step = False
        self._before: _Mark | None = None
        self._first: _Mark | None = None
        self._last: _Mark | None = None
        self._lag_s: float | None = None
        self._lag_most_s: float | None = None

    def take(self, line: Line, after: float, by: float) -> None:
        """Take the next line, which was written between `after` and `by`."""
        mark = _Mark(line, after, by)
        if line.end_ns is not None:
            lag_s, most_s = after - line.end_ns / 1e9, by - line.end_ns / 1e9
            self._lag_s = lag_s if self._lag_s is None else min(self._lag_s, lag_s)
            self._lag_most_s = most_s if self._lag_most_s is None else min(self._lag_most_s, most_s)
        if line.measured and line.step is not None:
            self._first, self._last = self._first or mark, mark
        elif self._first is None:
            self._before = mark

    def seen(self, rank: int, now: float | None = None) -> outcome.ObservedWindow | None:
        """Return what was seen of the window, None where there was none. Without `now` it has no begin and no end."""
        before, first, last = self._before, self._first, self._last
        if first is None or last is None or first.line.step is None or last.line.step is None:
            return None
        gap_s = _gap_s(before, first.line)
        apart_s = gap_s or 0.0
        least_s = last.after - (first if before is None or gap_s is None else before).by - apart_s
        most_s = last.by - (self._since if before is None else before.after) - max(0.0, apart_s - self._written_late_s())
        most_s += max(0.0, self._surely_late_s() - apart_s)
        begin = first.line.step if first.line.first is None else first.line.first
        found = outcome.ObservedWindow(rank, begin, last.line.step, round(max(0.0, least_s), 6), round(max(0.0, most_s), 6))
        if now is None:
            return found
        began = (first.after + first.by) / 2 - first.line.seconds if before is None else (before.after + before.by) / 2 + apart_s
        return found._replace(begin_s=round(began - now, 6), end_s=round((last.after + last.by) / 2 - now, 6))

    def problem(self) -> str | None:
        """Return the contradiction between the rank's own clock and ours, None where the window can be as long as it says."""
        first, last, seen = self._first, self._last, self.seen(0)
        if seen is None or first is None or last is None or first.line.end_ns is None or last.line.end_ns is None:
            return None
        reported_s = (last.line.end_ns - first.line.end_ns) / 1e9 + first.line.seconds
        if reported_s >= seen.least_s * (1 - window_check.SLACK_RATIO) - window_check.SLACK_S:
            return None
        return (
            f"tells of {reported_s:.3g} s from step {seen.first} to step {seen.last}, its measured window, and at least "
            f"{seen.least_s:.3g} s went by between these lines by Slipway's clock: its clock is wrong, or it does not write its events "
            "as they happen"
        )

    def _written_late_s(self) -> float:
        """Return how long after its moment the line before the window was written, at the most."""
        before = self._before
        if before is None or before.line.end_ns is None or self._lag_s is None:
            return 0.0
        return before.by - before.line.end_ns / 1e9 - self._lag_s

    def _surely_late_s(self) -> float:
        """Return how late the line before the window was written, at the least."""
        before = self._before
        if before is None or before.line.end_ns is None or self._lag_most_s is None:
            return 0.0
        return before.after - before.line.end_ns / 1e9 - self._lag_most_s

    def next_look_s(self, now: float, any_step: bool) -> float:
        if self._first is not None:
            return min(limits.RANK_LOOK_EVERY_S, max(limits.WINDOW_LOOK_S, SHARE * (now - self._first.by)))
        if any_step and not self._any_step:
            self._since, self._any_step = now, True
        return limits.WINDOW_WAIT_S if now - self._since < limits.WINDOW_WAITS_S else limits.RANK_LOOK_EVERY_S


def _gap_s(before: _Mark | None, first: Line) -> float | None:
    """Return the seconds from the line before the window to its start, by the rank's clock, None where it does not tell."""
    if before is None or before.line.end_ns is None or first.end_ns is None:
        return None
    return max(0.0, (first.end_ns - before.line.end_ns) / 1e9 - first.seconds)
