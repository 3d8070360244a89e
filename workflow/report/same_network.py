"""Compare the first losses of cells that differ only in their framework: do they train the same network? Pure.

Same starting weights and same batches give the same losses, but for the order in which numbers are added up. Later losses tell nothing:
with a large rate the rounding alone makes them differ by percents. Dropout makes them differ from the first one on, because each framework
draws its own numbers for it: of such cells nothing is told, and `dropout: false` trains the same network without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from base.errors import ConfigError
from base.jsonfile import canonical_json
from containers.frameworks import load_framework
from containers.models import MODELS, has_dropout
from workflow.run.record.model import Replicas
from workflow.run.record.rate import FIRST_STEPS
from workflow.study.cell import Cell

if TYPE_CHECKING:
    from workflow.report.cells import CellResult  # which imports polars: `slipway check-frameworks` needs none

RELATIVE: Final = {"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1e-2}
"""How far losses of the same network may lie apart, by the precision of their cells. Of fp32 sums in another order differ by some 1e-7 in
these first steps. Of the others it is a few roundings of a number, which are 2^-11 of it in tf32 and fp16, and 2^-8 in bf16."""
NOT_COMPARED: Final = ("cell_id", "framework", "backend", "strategy", "reader", "layout")
"""Keys that may differ: the cell's name, what is compared, who reads, and the layout, which some frameworks have only one of."""
REFERENCE: Final = "pytorch"
MARK: Final = "losses"
DROPOUT: Final = "dropout"
"""The mark of cells for which it is not known."""

Losses = Mapping[int, float]
"""Step -> mean over ranks."""


@dataclass(frozen=True, kw_only=True)
class FirstRun:
    """What the first finished run of a cell tells. `replicas`: of its ranks' parameters at the end, None where none told of them."""

    losses: Losses
    replicas: Replicas | None = None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One cell of a group. `run`: None if none has finished; `differs_at`: the first step whose loss differs."""

    cell: Cell
    run: FirstRun | None
    differs_at: int | None = None

    @property
    def losses(self) -> Losses | None:
        return None if self.run is None else self.run.losses

    @property
    def replicas(self) -> Replicas | None:
        return None if self.run is None else self.run.replicas


@dataclass(frozen=True, kw_only=True)
class Group:
    """Cells that differ only in their framework, or in its backend, strategy or reader. `reference`: the one that the others are compared
    with; None: no run has finished."""

    reference: Compared | None
    cells: tuple[Compared, ...]

    @property
    def is_compared(self) -> bool:
        """Return True if losses say something about the network."""
        return not has_random_dropout(self.cells[0].cell)


def groups_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Group cells that differ only in their framework, without the study's own programs: nobody knows their network."""
    found: dict[bytes, list[Cell]] = {}
    for cell in cells:
        if cell.program is None:
            alike = {key: value for key, value in cell.to_json().items() if key not in NOT_COMPARED}
            found.setdefault(canonical_json(alike), []).append(cell)
    return [group for group in found.values() if len({trainer_name(cell) for cell in group}) > 1]


def has_random_dropout(cell: Cell) -> bool:
    """Return True if the losses of the cell depend on random numbers of its framework (dropout)."""
    return cell.mode == "train" and cell.dropout and cell.model in MODELS and has_dropout(cell.model)


def compare_losses(cells: Sequence[Cell], runs: Mapping[str, FirstRun]) -> Group:
    """Compare the cells of a group. `runs`: by cell_id, a finished one of each."""
    finished = [(index, cell) for index, cell in enumerate(cells) if cell.cell_id in runs]
    if not finished:
        return Group(reference=None, cells=tuple(Compared(cell=cell, run=None) for cell in cells))
    _, first = min(finished, key=lambda found: (trainer_name(found[1]) != REFERENCE, found[1].framework != REFERENCE, found[0]))
    expected = runs[first.cell_id]
    return Group(
        reference=Compared(cell=first, run=expected),
        cells=tuple(
            Compared(
                cell=cell,
                run=found,
                differs_at=None
                if found is None or has_random_dropout(cell)
                else first_difference(found.losses, expected.losses, compared_steps(cell, first), tolerance(cell)),
            )
            for cell in cells
            for found in [runs.get(cell.cell_id)]
        ),
    )


def trainer_name(cell: Cell) -> str:
    """Name what trains a cell: `pytorch`, `pytorch (fsdp2)`, `keras (jax)`, `caffe (native reader)`."""
    more = [cell.backend] if cell.backend != "auto" else []
    more += [cell.strategy] if cell.strategy != "ddp" else []
    more += [f"{cell.reader} reader"] if cell.reader != "slipway" else []
    return f"{cell.framework} ({', '.join(more)})" if more else cell.framework


def compared_steps(*cells: Cell) -> int:
    """Return how many first losses are compared: one where a framework chooses the order of its samples by itself."""
    return 1 if any(map(has_own_order, cells)) else FIRST_STEPS


def has_own_order(cell: Cell) -> bool:
    """Return True if its framework chooses the order of its samples by itself, always or by its reader."""
    if cell.reader != "slipway":
        return True
    try:
        return load_framework(cell.framework).own_order
    except ConfigError:
        return False  # of another version, or not installed here


def tolerance(cell: Cell) -> float:
    """Return the relative difference of losses that is accepted."""
    return RELATIVE.get(cell.precision, RELATIVE["fp32"])


def first_difference(losses: Losses, expected: Losses, steps: int = FIRST_STEPS, relative: float = RELATIVE["fp32"]) -> int | None:
    """Return the first step whose loss differs or stands on one side only; None if all that are compared are equal."""
    for step in range(steps):
        found, other = losses.get(step), expected.get(step)
        if (found is None) != (other is None) or (found is not None and other is not None and abs(found - other) > relative * abs(other)):
            return step
    return None


def difference_in_words(one: Compared, group: Group) -> str:
    """Describe a difference, such as `step 3, loss 2.401122, not 2.330215`; empty for a cell that does not differ."""
    if one.differs_at is None or group.reference is None:
        return ""
    ours, theirs = ((told.losses or {}).get(one.differs_at) for told in (one, group.reference))
    return f"step {one.differs_at}, loss {loss_text(ours)}, not {loss_text(theirs)}"


def loss_text(loss: float | None) -> str:
    """Format a loss with the digits that are compared."""
    return "-" if loss is None else f"{loss:.7g}"


def marked(cells: Sequence[CellResult]) -> tuple[CellResult, ...]:
    """Mark the cells with MARK where one is not the same network as another of its source, and DROPOUT where that cannot be told."""
    if len({trainer_name(cell.cell) for cell in cells}) < 2:
        return tuple(cells)
    marks: dict[tuple[str, str], str] = {}
    for source in dict.fromkeys(cell.source for cell in cells):
        told = {cell.cell_id: cell for cell in cells if cell.source == source and cell.first_losses}
        for cells_of_group in groups_of(cell.cell for cell in told.values()):
            group = compare_losses(cells_of_group, {name: FirstRun(losses=cell.first_losses or {}) for name, cell in told.items()})
            if not group.is_compared:
                marks |= {(source, one.cell.cell_id): DROPOUT for one in group.cells}
            marks |= {(source, one.cell.cell_id): MARK for one in group.cells if one.differs_at is not None}
    return tuple(replace(cell, marks=cell.marks | {mark}) if (mark := marks.get((cell.source, cell.cell_id))) else cell for cell in cells)


def to_json(group: Group) -> dict[str, Any]:
    """Return a group for programs, JSON-able."""
    return {
        "reference": None if group.reference is None else group.reference.cell.cell_id,
        "cells": [
            {
                "cell_id": one.cell.cell_id,
                "framework": one.cell.framework,
                "losses": None if one.losses is None else [[step, loss] for step, loss in sorted(one.losses.items())],
                "same_network": None if one.losses is None or not group.is_compared else one.differs_at is None,
                "differs_at": one.differs_at,
                "replicas": msgspec.to_builtins(one.replicas),
            }
            for one in group.cells
        ],
    }
