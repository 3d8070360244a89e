"""How long a rank's measured window took by our clock, as well as the looks at its events can tell.

Its lines tell which step begins and ends it; when these were written lies between two looks. What went by between the line before the
window and its begin, where a program may wait for the others, is taken as the rank tells it, less what the writing of that line may have
taken, by the least lag of all lines. Where that line was written when the window had begun, as of a program that writes many together, the
most is longer by that much.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from workflow.run.node.limits import RANK_LOOK_EVERY_S, WINDOW_LOOK_S, WINDOW_WAIT_S, WINDOW_WAITS_S
from workflow.run.record.window_seen import WindowSeen

SHARE: Final = 0.02
"""In the window looks are so far apart, in parts of the time since it began: the same sharpness for short and long windows."""


class Line(NamedTuple):
    """What a line tells of time: `end_ns` of the rank's clock when it was written, `seconds` of all steps in it. `step`: the last of these
    steps, `first` the first, None of a line that tells of none."""

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
    """Of one rank. All times are of our monotonic clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._any_step = False
        self._before: _Mark | None = None
        self._first: _Mark | None = None
        self._last: _Mark | None = None
        self._lag_s: float | None = None
        self._lag_most_s: float | None = None

    def take(self, line: Line, after: float, by: float) -> None:
        """The next line, which was written between `after` and `by`."""
        mark = _Mark(line, after, by)
        if line.end_ns is not None:
            lag_s, most_s = after - line.end_ns / 1e9, by - line.end_ns / 1e9
            self._lag_s = lag_s if self._lag_s is None else min(self._lag_s, lag_s)
            self._lag_most_s = most_s if self._lag_most_s is None else min(self._lag_most_s, most_s)
        if line.measured and line.step is not None:
            self._first, self._last = self._first or mark, mark
        elif self._first is None:
            self._before = mark

    def seen(self, rank: int, now: float | None = None) -> WindowSeen | None:
        """None where no window was seen; without `now` nothing is said of when it was."""
        before, first, last = self._before, self._first, self._last
        if first is None or last is None or first.line.step is None or last.line.step is None:
            return None
        told_s = _told_between(before, first.line)
        apart_s = told_s or 0.0
        least_s = last.after - (first if before is None or told_s is None else before).by - apart_s
        most_s = last.by - (self._since if before is None else before.after) - max(0.0, apart_s - self._written_late_s())
        most_s += max(0.0, self._surely_late_s() - apart_s)
        begin = first.line.step if first.line.first is None else first.line.first
        found = WindowSeen(rank, begin, last.line.step, round(max(0.0, least_s), 6), round(max(0.0, most_s), 6))
        if now is None:
            return found
        began = (first.after + first.by) / 2 - first.line.seconds if before is None else (before.after + before.by) / 2 + apart_s
        return found._replace(begin_s=round(began - now, 6), end_s=round((last.after + last.by) / 2 - now, 6))

    def _written_late_s(self) -> float:
        """How long after its moment the line before the window was written, at the most."""
        before = self._before
        if before is None or before.line.end_ns is None or self._lag_s is None:
            return 0.0
        return before.by - before.line.end_ns / 1e9 - self._lag_s

    def _surely_late_s(self) -> float:
        """The same, at the least."""
        before = self._before
        if before is None or before.line.end_ns is None or self._lag_most_s is None:
            return 0.0
        return before.after - before.line.end_ns / 1e9 - self._lag_most_s

    def next_look_s(self, now: float, any_step: bool) -> float:
        """In how many seconds it should be looked again."""
        if self._first is not None:
            return min(RANK_LOOK_EVERY_S, max(WINDOW_LOOK_S, SHARE * (now - self._first.by)))
        if any_step and not self._any_step:
            self._since, self._any_step = now, True
        return WINDOW_WAIT_S if now - self._since < WINDOW_WAITS_S else RANK_LOOK_EVERY_S


def _told_between(before: _Mark | None, first: Line) -> float | None:
    """Seconds from the line before the window to its begin, by the rank's clock; None where it does not tell: there may be any."""
    if before is None or before.line.end_ns is None or first.end_ns is None:
        return None
    return max(0.0, (first.end_ns - before.line.end_ns) / 1e9 - first.seconds)
