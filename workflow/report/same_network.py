"""Whether cells that differ only in their framework train the same network: their first losses, one against the other. Pure.

Same starting weights and same batches give the same losses, but for the order in which numbers are added up. Later losses tell nothing:
with a large rate the rounding alone makes them differ by percents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from base.jsonfile import canonical_json
from workflow.run.record.losses import FIRST_STEPS
from workflow.study.cell import Cell

RELATIVE: Final = 1e-5
NOT_COMPARED: Final = ("cell_id", "framework", "layout")
"""Of a cell: its name, what is compared, and how numbers lie in memory, which some frameworks do in one way only."""
REFERENCE: Final = "pytorch"

Losses = Mapping[int, float]
"""Step -> mean over ranks."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One cell of a group. `losses`: None where no run of it has finished; `differs_at`: the first step whose loss is another one."""

    cell: Cell
    losses: Losses | None
    differs_at: int | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Cells that differ only in their framework. `reference`: the one that the others are compared with; None: no run has finished."""

    reference: Compared | None
    cells: tuple[Compared, ...]


def groups_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Those of two cells and more. Programs of the study are left out: nobody knows their network."""
    found: dict[bytes, list[Cell]] = {}
    for cell in cells:
        if cell.program is None:
            keys = {key: value for key, value in cell.to_json().items() if key not in NOT_COMPARED}
            found.setdefault(canonical_json(keys), []).append(cell)
    return [group for group in found.values() if len({cell.framework for cell in group}) > 1]


def compare(cells: Sequence[Cell], losses: Mapping[str, Losses]) -> Group:
    """One group. `losses`: by cell_id, of a finished run of each."""
    finished = [cell for cell in cells if cell.cell_id in losses]
    if not finished:
        return Group(reference=None, cells=tuple(Compared(cell=cell, losses=None) for cell in cells))
    first = min(finished, key=lambda cell: (cell.framework != REFERENCE, cells.index(cell)))
    expected = losses[first.cell_id]
    return Group(
        reference=Compared(cell=first, losses=expected),
        cells=tuple(
            Compared(cell=cell, losses=found, differs_at=None if found is None else first_difference(found, expected))
            for cell in cells
            for found in [losses.get(cell.cell_id)]
        ),
    )


def first_difference(losses: Losses, expected: Losses) -> int | None:
    """The first step whose loss is another one, or is told on one side only; None: all that are compared are equal."""
    for step in range(FIRST_STEPS):
        found, other = losses.get(step), expected.get(step)
        if (found is None) != (other is None) or (found is not None and other is not None and abs(found - other) > RELATIVE * abs(other)):
            return step
    return None


def to_json(group: Group) -> dict[str, Any]:
    """For programs."""
    return {
        "reference": None if group.reference is None else group.reference.cell.cell_id,
        "cells": [
            {
                "cell_id": one.cell.cell_id,
                "framework": one.cell.framework,
                "losses": None if one.losses is None else [[step, loss] for step, loss in sorted(one.losses.items())],
                "same_network": None if one.losses is None else one.differs_at is None,
                "differs_at": one.differs_at,
            }
            for one in group.cells
        ],
    }
