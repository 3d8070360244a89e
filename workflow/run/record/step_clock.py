"""Time the seven steps of a run by one monotonic clock: stage to release add up to the run's time, and login and assign come before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

STEPS = ("login", "assign", "stage", "train", "result", "push", "release")
BESIDE = ("login", "assign")


class Clock:
    """The time since the supervisor process began, by step. Waiting for this machine's turn counts as `assign`, beside the sum, as a
    queue's would."""

    def __init__(self, age_s: float, now: Callable[[], float] = time.monotonic, wall: datetime | None = None) -> None:
        self._now = now
        self._begun = now() - age_s
        self._step = "stage"
        self._spent: dict[str, float] = {}
        self._mark = self._begun
        self.start = (wall or datetime.now(UTC)) - timedelta(seconds=age_s)

    def enter(self, step: str) -> None:
        """Begin `step`, which may be entered again; the time until now belongs to the step before."""
        if step not in STEPS:
            raise ValueError(f"step must be one of {', '.join(STEPS)}, found {step!r}")
        now = self._now()
        self._spent[self._step] = self._spent.get(self._step, 0.0) + now - self._mark
        self._mark = now
        self._step = step

    def note(self, step: str, seconds: float | None) -> None:
        """Add the duration of a step that was over before this clock began, as the scheduler reports it."""
        if seconds is not None:
            self._spent[step] = self._spent.get(step, 0.0) + seconds

    def steps_s(self) -> dict[str, float | None]:
        """Return the seconds of each step until now, None for those not reached."""
        self.enter(self._step)
        return {step: round(self._spent[step], 6) if step in self._spent else None for step in STEPS}

    def end(self) -> datetime:
        """Return the wall clock's time now, by the monotonic clock from the start: never before it."""
        return self.start + timedelta(seconds=self._now() - self._begun)


def run_s(steps: Mapping[str, float | None]) -> float:
    """Return the seconds of a run from its `steps_s`: their sum without those beside it."""
    return round(sum(seconds or 0.0 for step, seconds in steps.items() if step not in BESIDE), 6)
