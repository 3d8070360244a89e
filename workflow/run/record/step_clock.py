"""Time the seven steps of a run by one monotonic clock: stage to release add up to the run's time, and login and assign come before it."""

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from cluster.schedulers.jobs import SUBMISSION

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


# The step `login`: the time from the start of the command that was typed until its study is checked and planned.


LOGIN: Final = "SLIPWAY_LOGIN_S"
"""Environment variable: seconds of login until now."""


def login_s(environ: Mapping[str, str]) -> float | None:
    """Return the seconds of login until now, or None where nobody counted them.

    They travel in the environment as a sum of durations, so that clocks of two machines are never compared. All runs of one start have the
    same. `slipway run` and Snakemake count their own time until the plan is made; `slipway submit` until it hands its job over, and
    `slipway remote` counts before that from its own start on the laptop, with logging in and sending. What the job of `slipway submit`
    plans once more is no login.
    """
    try:
        found = float(environ.get(LOGIN, ""))
    except ValueError:
        return None
    return found if 0 <= found < math.inf else None


def with_login(environ: Mapping[str, str], age_s: float) -> dict[str, str]:
    """Return the environment variable for the next command, with `age_s` seconds of this one added."""
    return {LOGIN: f"{(login_s(environ) or 0.0) + max(0.0, age_s):.3f}"}


def planned(environ: Mapping[str, str], age_s: float) -> dict[str, str]:
    """Return the environment variable for the next command of a Snakemake that has made its plan."""
    is_over = SUBMISSION in environ and login_s(environ) is not None
    return {} if is_over else with_login(environ, age_s)
