"""Strong or weak scaling, derived from the cells: never typed, so never wrong. Pure.

A series is the cells that agree in every key but nodes, gpus_per_node and the batch (the same definition as in the tables). Beside the
baseline's cells, a cell scales *weakly* if a baseline cell has its batch per process, *strongly* if one has its global batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from workflow.study.cell import Cell

NOT_SERIES: Final = ("cell_id", "nodes", "gpus_per_node", "batch_size", "global_batch_size")


@dataclass(frozen=True, kw_only=True)
class Series:
    """`scaling`: weak, strong, mixed (cells of both kinds, or of none), or `one size` where nothing grows."""

    cells: tuple[Cell, ...]
    scaling: str
    has_baseline: bool
    unmatched: int  # cells that no baseline cell can be compared with: their speed-up is null

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Numbers of processes, ascending."""
        return tuple(sorted({cell.world_size for cell in self.cells}))


def series_of(cells: Sequence[Cell], baseline: Mapping[str, Any]) -> tuple[Series, ...]:
    """The series of a study, in the order of their first cells."""
    groups: dict[str, list[Cell]] = {}
    families: dict[str, list[Cell]] = {}
    specs: dict[int, str] = {}
    for cell in cells:
        groups.setdefault(_key(cell, (), specs), []).append(cell)
        if _is_baseline(cell, baseline):
            families.setdefault(_key(cell, baseline, specs), []).append(cell)
    return tuple(_series(tuple(group), families.get(_key(group[0], baseline, specs), []), baseline) for group in groups.values())


def _series(cells: tuple[Cell, ...], base: Sequence[Cell], baseline: Mapping[str, Any]) -> Series:
    smallest = min(cell.world_size for cell in cells)
    against = base or [cell for cell in cells if cell.world_size == smallest]
    batches = {cell.batch_size for cell in against}
    totals = {cell.global_batch_size for cell in against}
    others = [cell for cell in cells if not (_is_baseline(cell, baseline) if base else cell.world_size == smallest)]
    kinds = [(cell.batch_size in batches, cell.global_batch_size in totals) for cell in others]
    unmatched = len(others) if not base else sum(not any(kind) for kind in kinds)
    return Series(cells=cells, scaling=_scaling(kinds), has_baseline=bool(base), unmatched=unmatched)


def _scaling(kinds: Sequence[tuple[bool, bool]]) -> str:
    if not kinds:
        return "one size"
    if all(weak for weak, _ in kinds):
        return "weak"
    if all(strong for _, strong in kinds):
        return "strong"
    return "mixed"


def _is_baseline(cell: Cell, baseline: Mapping[str, Any]) -> bool:
    return all(getattr(cell, key) == value for key, value in baseline.items())


def _key(cell: Cell, without: Mapping[str, Any] | tuple[()], specs: dict[int, str]) -> str:
    """The series keys as text; a specification is shared by many cells and written once."""
    spec = specs.setdefault(id(cell.dataset_spec), json.dumps(cell.dataset_spec, sort_keys=True))
    keys = {key: value for key, value in cell.to_json().items() if key not in NOT_SERIES and key not in without and key != "dataset_spec"}
    return json.dumps([keys, spec], sort_keys=True)
