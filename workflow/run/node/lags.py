"""How far the moments that a rank tells lie behind those at which its lines came, and whether that grows.

A line is written when its step has ended or later, never before. So by a clock in order no line lies further back than by the delay of its
writing, and of several lines one has a short delay. Where the least lag of the last third of the time is more than the least one before it,
the rank's clock goes slow, or stands, or it no longer writes its lines as they happen.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from workflow.run.record.plausibility import CLOSE_RATIO, CLOSE_S, SLACK_RATIO, SLACK_S

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
