"""Compute how long the mean step of a run would be if a part of it took no time on any rank. Pure.

In a step of training all ranks wait for the last one, so a step is as long as the longest own work of a rank (the critical path) and the
communication that nothing hides. A part that is removed is taken from the own work of every rank, step by step, and the longest is looked
for again: input that is slow on one rank shows as waiting on all others, and is found where it is. Overlap is left as it was: an exchange
that hid behind a longer backward may come to light, so that a what-if is the most that a removal brings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from workflow.run.record.events import Step
from workflow.run.record.model import SlowPart, WhatIf
from workflow.run.record.step_parts import OWN_PARTS

OwnPart = Callable[[Step], float | None]
COMPUTING: Final = ("forward_s", "backward_s", "optimizer_s")


def what_if(ranks: Sequence[Mapping[int, Step]], measured: Sequence[int], mode: str, straggler: int | None) -> WhatIf | None:
    """Return the what-ifs of the steps `measured`. None where several ranks train together and one does not tell how long it waited for
    the others: then nobody knows whose work a step is made of. In inference each rank goes its own way, and a step is the mean of theirs.
    """
    rows = [[rank[step] for rank in ranks] for step in measured]
    together = mode != "infer" and len(ranks) > 1
    told = all(step.exchange_s is not None for row in rows for step in row)
    if not rows or (together and not told):
        return None
    of_ranks: Callable[[list[float]], float] = max if together else _mean
    exposed_s = _mean([min(step.exchange_s or 0.0 for step in row) for row in rows])

    def without(part: OwnPart) -> float | None:
        parts = [[part(step) for step in row] for row in rows]
        if any(one is None for row in parts for one in row):
            return None
        longest = [
            of_ranks([max(0.0, own(step) - (one or 0.0)) for step, one in zip(row, found, strict=True)])
            for row, found in zip(rows, parts, strict=True)
        ]
        return _mean(longest) + exposed_s

    nothing = without(lambda _: 0.0)
    found = {"no_input_s": without(_input), "no_copy_s": without(lambda step: step.copy_s), "no_other_s": without(_other)}
    if nothing is None or (not told and all(value is None for value in found.values())):
        return None
    return WhatIf(
        step_s=nothing,
        **found,
        no_exposed_s=nothing - exposed_s if told else None,
        no_skew_s=nothing if told and not together else _even(rows, straggler) + exposed_s if told else None,
        slow_part=None if straggler is None or len(ranks) < 2 else _slow_part(rows, straggler),
    )


def _even(rows: Sequence[Sequence[Step]], straggler: int | None) -> float:
    """Return the longest own work if nobody was slower than the others: that of all but the straggler, or the mean if that is less."""
    work = [[own(step) for step in row] for row in rows]
    mean = _mean([_mean(row) for row in work])
    others = mean if straggler is None else _mean([max(seconds for rank, seconds in enumerate(row) if rank != straggler) for row in work])
    return min(mean, others)


def own(step: Step) -> float:
    """Return the seconds in which the rank did not wait for the others."""
    return max(0.0, step.seconds - (step.exchange_s or 0.0))


def _input(step: Step) -> float | None:
    """Return the wait for the batch, or what the other parts leave of the step if that is less: beside a GPU the host waits while the
    device still computes, and as far as it does that costs nothing."""
    if step.input_s is None:
        return None
    return min(step.input_s, max(0.0, own(step) - _sum(step, ("copy_s", *COMPUTING))))


def _other(step: Step) -> float | None:
    """Return what is no part of the step; None where it may be a part that was not told."""
    if step.input_s is None or any(getattr(step, name) is None for name in COMPUTING):
        return None
    return max(0.0, own(step) - _sum(step, OWN_PARTS))


def _sum(step: Step, names: Sequence[str]) -> float:
    return math.fsum(getattr(step, name) or 0.0 for name in names)


def _slow_part(rows: Sequence[Sequence[Step]], slow: int) -> SlowPart | None:
    """Return the part in which rank `slow` is slower than the mean of the others by most; None where the parts of its work are not told."""
    parts: dict[SlowPart, OwnPart] = {
        "input": _input,
        "copy": lambda step: step.copy_s or 0.0,
        "compute": lambda step: None if _other(step) is None else _sum(step, COMPUTING),
        "host": _other,
    }
    beyond: dict[SlowPart, float] = {}
    for name, part in parts.items():
        seconds = [[part(step) for step in row] for row in rows]
        if any(one is None for row in seconds for one in row):
            return None
        known = [[one or 0.0 for one in row] for row in seconds]
        beyond[name] = _mean([row[slow] - _mean([one for rank, one in enumerate(row) if rank != slow]) for row in known])
    return max(beyond, key=beyond.__getitem__)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
