"""Whether a rank's clock goes as ours does: the time that its steps tell of, against that which went by while we watched them come.

A line that was not there when we had read to the end of the file was written after that look, and one that we have read was written before
the next. So a time between two lines that no clock in order can go below is known, however late we looked.
"""

from __future__ import annotations

from workflow.run.record.plausibility import SLACK_RATIO, SLACK_S


class RankClock:
    """Of one rank. Times `now` are those of our monotonic clock before a look, in seconds; `end_ns` is the rank's, when it wrote a step."""

    def __init__(self, now: float) -> None:
        self._before = now
        self._first: tuple[int, int] | None = None
        self._read_by: float | None = None
        self._last: tuple[int, int] | None = None
        self._least_s = 0.0

    def look(self, now: float, to_the_end: bool, newest: tuple[int, int | None] | None) -> None:
        """`newest`: number and `end_ns` of the last step that was new at this look; `to_the_end`: whether all that was there was read."""
        if self._first is not None and self._read_by is None:
            self._read_by = now
        if newest is not None and newest[1] is not None:
            told = (newest[0], newest[1])
            if self._first is None:
                self._first = told
            elif self._read_by is not None:
                self._last, self._least_s = told, self._before - self._read_by
        if to_the_end:
            self._before = now

    def problem(self) -> str | None:
        """What is wrong with the rank's clock; None where nothing is known to be."""
        if self._first is None or self._last is None:
            return None
        told_s = (self._last[1] - self._first[1]) / 1e9
        if told_s >= self._least_s * (1 - SLACK_RATIO) - SLACK_S:
            return None
        return (
            f"tells of {told_s:.3g} s from step {self._first[0]} to step {self._last[0]}, and at least {self._least_s:.3g} s went by "
            f"between these lines by Slipway's clock: its clock is wrong, or it does not write its events as they happen"
        )
