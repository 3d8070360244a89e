"""Compute the parts of the mean step of a run from the events of its ranks, and how long it would be without one of them. Pure.

Communication is told apart from waiting for a slower rank as follows. In a step of training all ranks leave the exchange of gradients at
the same time, and what a rank waits there is its `exchange_s`. The rank that came last waits for the exchange alone, so the least
`exchange_s` of a step is exposed communication, which nothing hides, and what a rank waits beyond that is skew. What no part tells of is
`other_s`, and over the step it is the residual.
"""

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Final, Literal, NamedTuple

from workflow.run.record.events import Step
from workflow.run.record.model import SlowPart, StepParts, WhatIf

OwnPart = Literal["input_s", "copy_s", "forward_s", "backward_s", "optimizer_s"]
OWN_PARTS: Final[tuple[OwnPart, ...]] = ("input_s", "copy_s", "forward_s", "backward_s", "optimizer_s")
"""The parts that are of a rank alone, under the names of the event."""


def parts_of(ranks: Sequence[Mapping[int, Step]], measured: Sequence[int]) -> StepParts | None:
    """Return the parts of the mean step over all ranks and the steps `measured`, in seconds. None where no part is told of all of them.

    Of lines that report several steps at once, the least `exchange_s` is that of their means.
    """
    steps = [[rank[step] for rank in ranks] for step in measured]
    told = {name: _mean([getattr(step, name) for row in steps for step in row]) for name in OWN_PARTS}
    waited = _mean([step.exchange_s for row in steps for step in row])
    exposed = None if waited is None else _mean([min(step.exchange_s or 0.0 for step in row) for row in steps])
    skew = None if waited is None or exposed is None else max(0.0, waited - exposed)  # 0 but for rounding
    known = [part for part in (*told.values(), exposed, skew) if part is not None]
    step_s = _mean([step.seconds for row in steps for step in row])
    if not known or step_s is None:
        return None
    return StepParts(**told, exposed_s=exposed, skew_s=skew, other_s=step_s - math.fsum(known), step_s=step_s)


def without_exchange(steps: Mapping[int, Step]) -> dict[int, Step]:
    """Return the steps of a rank that trains alone: it exchanges nothing, and what it calls so belongs to its backward."""
    return {
        number: step._replace(
            exchange_s=None if step.exchange_s is None else 0.0,
            backward_s=None if step.backward_s is None else step.backward_s + (step.exchange_s or 0.0),
        )
        for number, step in steps.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None unless all are known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


# What if a part took no time on any rank: how long would the mean step be?
#
# In a step of training all ranks wait for the last one, so a step is as long as the longest own work of a rank (the critical path) and the
# communication that nothing hides. A part that is removed is taken from the own work of every rank, step by step, and the longest is looked
# for again: input that is slow on one rank shows as waiting on all others, and is found where it is. Overlap is left as it was: an exchange
# that hid behind a longer backward may come to light, so that a what-if is the most that a removal brings.


SLOW_PARTS: Final[tuple[SlowPart, ...]] = ("input", "copy", "compute", "host")
REMOVED: Final[dict[str, SlowPart]] = {"input": "input", "copy": "copy", "other": "host"}


class Work(NamedTuple):
    """What a rank did in a step while it did not wait for the others: `own` seconds, and their parts; None: not told.

    `input` is the wait for the batch, or what the other parts leave of the step if that is less: beside a GPU the host waits while the
    device still computes, and as far as it does that costs nothing. `host` is what is no part.
    """

    own: float
    input: float | None
    copy: float | None
    compute: float | None
    host: float | None


def work_of(step: Step) -> Work:
    """Return the work of a rank in a step."""
    own = max(0.0, step.seconds - (step.exchange_s or 0.0))
    known = (step.forward_s or 0.0) + (step.backward_s or 0.0) + (step.optimizer_s or 0.0)
    compute = None if step.forward_s is None or step.backward_s is None or step.optimizer_s is None else known
    rest = max(0.0, own - known - (step.copy_s or 0.0))
    waited = None if step.input_s is None else min(step.input_s, rest)
    return Work(own, waited, step.copy_s, compute, None if waited is None or compute is None else rest - waited)


def what_if(ranks: Sequence[Mapping[int, Step]], measured: Sequence[int], mode: str, straggler: int | None) -> WhatIf | None:
    """Return the what-ifs of the steps `measured`. None where several ranks train together and one does not tell how long it waited for
    the others: then nobody knows whose work a step is made of. In inference each rank goes its own way, and a step is the mean of theirs.
    """
    steps = [[rank[number] for rank in ranks] for number in measured]
    together = mode != "infer" and len(ranks) > 1
    told = all(step.exchange_s is not None for row in steps for step in row)
    if not steps or (together and not told):
        return None
    rows = [[work_of(step) for step in row] for row in steps]
    exposed_s = fmean([min(step.exchange_s or 0.0 for step in row) for row in steps])
    found = {f"no_{name}_s": _without(rows, part, together=together) for name, part in REMOVED.items()}
    if not told and all(value is None for value in found.values()):
        return None
    step_s = fmean([_longest([work.own for work in row], together) for row in rows]) + exposed_s
    return WhatIf(
        step_s=step_s,
        **{name: None if work_s is None else work_s + exposed_s for name, work_s in found.items()},
        no_exposed_s=step_s - exposed_s if told else None,
        no_skew_s=(_even(rows, straggler) + exposed_s if together else step_s) if told else None,
        slow_part=None if straggler is None or len(ranks) < 2 else _slow_part(rows, straggler),
    )


def _longest(seconds: Sequence[float], together: bool) -> float:
    return max(seconds) if together else fmean(seconds)


def _without(rows: Sequence[Sequence[Work]], part: SlowPart, *, together: bool) -> float | None:
    """Return the mean of the steps' longest own work without a part; None unless all ranks tell it of all steps."""
    seconds = _seconds_of(rows, part)
    if seconds is None:
        return None
    left = [[max(0.0, work.own - one) for work, one in zip(row, found, strict=True)] for row, found in zip(rows, seconds, strict=True)]
    return fmean([_longest(row, together) for row in left])


def _seconds_of(rows: Sequence[Sequence[Work]], part: SlowPart) -> list[list[float]] | None:
    take = attrgetter(part)
    found = [list(map(take, row)) for row in rows]
    return None if any(None in row for row in found) else found


def _even(rows: Sequence[Sequence[Work]], straggler: int | None) -> float:
    """Return the longest own work if nobody was slower than the others: that of all but the straggler, or the mean if that is less."""
    mean = fmean([work.own for row in rows for work in row])
    if straggler is None:
        return mean
    return min(mean, fmean([max(work.own for rank, work in enumerate(row) if rank != straggler) for row in rows]))


def _slow_part(rows: Sequence[Sequence[Work]], slow: int) -> SlowPart | None:
    """Return the part in which rank `slow` is slower than the mean of the others by most; None where the parts of its work are not told."""
    beyond: dict[SlowPart, float] = {}
    for part in SLOW_PARTS:
        seconds = _seconds_of(rows, part)
        if seconds is not None:
            beyond[part] = fmean([row[slow] - (math.fsum(row) - row[slow]) / (len(row) - 1) for row in seconds])
        elif part != "copy":
            return None
    return max(beyond, key=beyond.__getitem__)
