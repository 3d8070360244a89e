"""Check a rank's clock: compare the time that its steps report with the time that passed while we watched its lines appear.

A line that was not there when we had read to the end of the file was written after that look, and one that we have read was written before
the next. So a time between two lines that no clock in order can go below is known, however late we looked, and one that it cannot exceed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from workflow.run.node.limits import RANK_LOOK_EVERY_S, WINDOW_LOOK_S, WINDOW_WAIT_S, WINDOW_WAITS_S
from workflow.run.record.window_seen import CLOSE_RATIO, CLOSE_S, SLACK_RATIO, SLACK_S, WindowSeen

# The lag of a rank's lines behind the moments that they report, and whether it grows.
#
# A line is written when its step has ended or later, never before. So by a clock in order no line lies further back than by the delay of
# its writing, and of several lines one has a short delay. Where the least lag of the last third of the time is more than the least one
# before it, the rank's clock goes slow, or stands, or it no longer writes its lines as they happen.


LATE_SHARE: Final = 2 / 3
MANY_LOOKS: Final = 3
"""Where lines of the last third came at so many, not all of them are late: then CLOSE_S and CLOSE_RATIO are the slack."""
MAX_GROUPS: Final = 512


class _Group(NamedTuple):
    """Lines of some looks that followed each other. `lag_least`: what the least of their lags was at least, `lag_most`: at most; `step`:
    the last one by then."""

    after: float
    by: float
    lag_least: float
    lag_most: float
    end_s: float
    step: int
    looks: int


class Slow(NamedTuple):
    """`told_s` from the line of step `since` to that of `until`, and what went by at the least."""

    told_s: float
    since: int
    until: int
    least_s: float


class Lags:
    """Of one rank."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []

    def add(self, after: float, by: float, end_ns: int, step: int) -> None:
        """The newest line of a look: it was written between `after` and `by`, and tells `end_ns`."""
        end_s = end_ns / 1e9
        self._groups.append(_Group(after, by, after - end_s, by - end_s, end_s, step, 1))
        if len(self._groups) > MAX_GROUPS:
            pairs = zip(self._groups[::2], self._groups[1::2], strict=False)
            self._groups = [_together(*pair) for pair in pairs] + self._groups[len(self._groups) // 2 * 2 :]

    def slow(self) -> Slow | None:
        """What is told too short; None where nothing is known to be."""
        groups = self._groups
        if len(groups) < 2:
            return None
        since = groups[0].by + LATE_SHARE * (groups[-1].after - groups[0].by)
        late = [group for group in groups if group.after >= since]
        early = groups[: len(groups) - len(late)]
        if not early or not late:
            return None
        begin = min(early, key=lambda group: group.lag_most)
        missing_s = min(group.lag_least for group in late) - begin.lag_most
        least_s = groups[-1].after - begin.by
        close = sum(group.looks for group in late) >= MANY_LOOKS
        if missing_s <= (CLOSE_RATIO * least_s + CLOSE_S if close else SLACK_RATIO * least_s + SLACK_S):
            return None
        return Slow(groups[-1].end_s - begin.end_s, begin.step, groups[-1].step, least_s)


def _together(one: _Group, other: _Group) -> _Group:
    """Of the one with the least lag, which is what they are compared by, with the least of both."""
    kept = min(one, other, key=lambda group: group.lag_most)
    return kept._replace(lag_least=min(one.lag_least, other.lag_least), looks=one.looks + other.looks)


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


# The length of a rank's measured window by our clock, as exactly as the looks at its events allow.
#
# Its lines tell which step begins and ends it; when these were written lies between two looks. What went by between the line before the
# window and its begin, where a program may wait for the others, is taken as the rank tells it, less what the writing of that line may have
# taken, by the least lag of all lines. Where that line was written when the window had begun, as of a program that writes many together,
# the most is longer by that much.


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
