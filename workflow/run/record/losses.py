"""The losses of a record: the curve, and those of the first steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from workflow.run.record.model import RunRecord

FIRST_STEPS: Final = 5
"""So many are kept whatever the length of the run: two programs that train the same network agree in them to the rounding of sums."""


def first_losses(record: RunRecord) -> dict[int, float]:
    """Return step -> loss of the first FIRST_STEPS steps; of a record of an earlier version those that its curve has."""
    training = record.training
    pairs = (training.losses if training.first_losses is None else training.first_losses) if training is not None else None
    return {step: loss for step, loss in pairs or () if step < FIRST_STEPS}


def first_of(flat: Sequence[float] | None) -> dict[int, float] | None:
    """Return the same of a row of records.parquet, where pairs lie one after the other; None where there is none."""
    return {int(step): loss for step, loss in zip(flat[::2], flat[1::2], strict=True) if step < FIRST_STEPS} if flat else None
