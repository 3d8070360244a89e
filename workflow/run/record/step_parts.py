"""Compute the parts of the mean step of a run from the events of its ranks. Pure.

Communication is told apart from waiting for a slower rank as follows. In a step of training all ranks leave the exchange of gradients at
the same time, and what a rank waits there is its `exchange_s`. The rank that came last waits for the exchange alone, so the least
`exchange_s` of a step is exposed communication, which nothing hides, and what a rank waits beyond that is skew. What no part tells of is
`other_s`, and over the step it is the residual.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from workflow.run.record.events import Step
from workflow.run.record.model import StepParts

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
