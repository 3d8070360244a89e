"""Check the expression by which the steps of a program without events are found in its output. What is done with it in a run is in
lib/slipway_log.py and lib/slipway_steps.py."""

import re
import warnings
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from base import humanize, typed

GROUPS: Final = ("step", "seconds", "milliseconds", "steps", "loss", "samples", "tokens", "epoch", "epoch_steps")
"""The named groups that an expression may have."""
TELLING: Final = ("step", "seconds", "milliseconds", "loss")
"""It has one of these."""
MAX_EXPRESSION: Final = 1000
MAX_EVERY: Final = 1_000_000


def expression_fault(text: str) -> str | None:
    """Return what is wrong with an expression for lines with steps, in words that follow `found ...`; None where nothing is."""
    if not text or len(text) > MAX_EXPRESSION or not text.isprintable():
        return f"valid: a regular expression of 1 to {MAX_EXPRESSION} characters that can be printed"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = re.compile(text).groupindex
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        return f"which is no regular expression of Python's: {error}"
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        return f"in which a group is named {unknown[0]!r}; {humanize.choices(unknown[0], GROUPS)}"
    if not names.keys() & set(TELLING):
        return (
            r"which has no group that tells of a step; valid: one of (?P<step>\d+), (?P<seconds>...), (?P<milliseconds>...), (?P<loss>...)"
        )
    if ("epoch" in names) != ("epoch_steps" in names) or ("epoch" in names and "step" not in names):
        return "in which a step is to be counted on from epoch to epoch; valid: the groups step, epoch and epoch_steps together"
    return None


def every_fault(text: str, every: int) -> str | None:
    """Return what is wrong with `every` beside this expression."""
    names = re.compile(text).groupindex
    return "valid: no every, because the group step tells which step it is" if every != 1 and "step" in names else None


def reports(text: str, unit: str) -> bool:
    """Return whether lines that this expression matches can report how many samples, or tokens, they are of."""
    return unit in re.compile(text).groupindex


@dataclass(frozen=True, kw_only=True)
class StepLines(typed.Closed):
    """The lines of a program's output that tell of a step. `step`: the expression; `every`: how many steps later each such line comes,
    where it does not tell its step; `ranks`: whose output is searched."""

    step: str
    every: Annotated[int, typed.between(1, MAX_EVERY)] = 1
    ranks: Literal["first", "all"] = "first"

    def __post_init__(self) -> None:
        fault = expression_fault(self.step) or every_fault(self.step, self.every)
        if fault is not None:
            raise ValueError(f"step: found {self.step[:100]!r}, {fault}")


@dataclass(frozen=True, kw_only=True)
class LogEvents(typed.Closed):
    """The key `events` of a program whose steps are read from its output."""

    log: StepLines


Events = Literal["program", "none", "log"]
