"""How many steps a run was asked for, and whether its ranks told of so many. Pure.

What a run did is what its events tell: a program that ends well without its steps has measured nothing, and is no `ok`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from workflow.run.record.events import MAX_STEPS, RankEvents
from workflow.run.record.steps_source import largest_together

MOST_WARMUP_OF_EPOCHS: Final = 10
MOST_CAUSES: Final = 3
"""Warnings about the lines of the output, such as that the expression was too slow for them, that a reason repeats."""


class StepsAsked(NamedTuple):
    """Of each rank: steps in all, and how many of them in the measured window."""

    total: int
    measured: int


def steps_asked(cell: Mapping[str, Any], train_samples: int, first: int = 0) -> StepsAsked:
    """What is left from step `first` on, of `steps` {warmup, measured, total?} or of `epochs` of so many samples. After a resume the
    warm-up comes again, and as much of the window as there is room for. Of more than is kept of a rank's events as much as is kept."""
    if cell["epochs"] is not None:
        total = cell["epochs"] * (train_samples // cell["global_batch_size"])
        warmup = min(MOST_WARMUP_OF_EPOCHS, total // 5)
        measured = total - warmup
    else:
        warmup, measured = cell["steps"]["warmup"], cell["steps"]["measured"]
        total = cell["steps"].get("total") or warmup + measured
    left = min(max(0, total - first), MAX_STEPS)
    return StepsAsked(left, min(measured, max(0, left - warmup)))


def most_steps(cell: Mapping[str, Any], asked: StepsAsked | None) -> int:
    """Return how many steps of a rank are kept: all that the cell asks for, also after a resume; of `epochs` those that are `asked`."""
    if cell["epochs"] is None:
        return steps_asked(cell, 0).total
    return MAX_STEPS if asked is None else asked.total


def too_few_lines(events: Mapping[int, RankEvents], asked: StepsAsked) -> str | None:
    """The same of ranks whose steps are read from their output: lines that tell of several steps need not begin and end where the window
    does."""
    for rank, entry in sorted(events.items()):
        causes = "; ".join(entry.warnings[:MOST_CAUSES])
        if not entry.steps:
            told = "no line of its output (`slipway logs RUN` shows it) told of a step"
            return f"rank {rank} ended well, and {told}: {causes or 'the expression under events matched none'}"
        measured, reached = sum(step.measured for step in entry.steps.values()), max(entry.steps) + 1
        together = largest_together({rank: entry}) if measured else max(step.together for step in entry.steps.values())
        if measured < max(min(1, asked.measured), asked.measured - 2 * together) or reached < asked.total - together:
            told = f"its output told of {measured} of the {asked.measured} measured steps that were asked"
            told += f", up to step {reached} of {asked.total}, {together} to a line"
            return f"rank {rank} ended well, and {told}{causes and f': {causes}'}"
    return None


def too_few_steps(events: Mapping[int, RankEvents], asked: StepsAsked) -> str | None:
    """The first rank that tells of fewer steps than were asked of it, measured ones first; None where there is none. How many samples they
    hold, and whether all ranks measure the same steps, are warnings of the record."""
    for rank, entry in sorted(events.items()):
        measured = sum(step.measured for step in entry.steps.values())
        if measured < asked.measured:
            return f"rank {rank} ended well, and wrote {measured} of the {asked.measured} measured steps that were asked"
        if len(entry.steps) < asked.total:
            return f"rank {rank} ended well, and wrote {len(entry.steps)} of the {asked.total} steps that were asked"
    return None
