"""Strong or weak scaling, derived from the cells: never typed, so never wrong. Pure.

A series is the cells that agree in every key but nodes, gpus_per_node and the batch, and what the baseline names of `optimizer`, `steps`
and `epochs` (the same definition as in the tables). Beside the
baseline's cells, a cell scales *weakly* if a baseline cell has its batch per process, *strongly* if one has its global batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workflow.study.baseline_keys import baselines, comparable, is_named, joined_series, obstacle
from workflow.study.cell import Cell


@dataclass(frozen=True, kw_only=True)
class Series:
    """`scaling`: weak, strong, mixed (cells of both kinds, or of none), or `one size` where nothing grows."""

    cells: tuple[Cell, ...]
    scaling: str
    has_baseline: bool
    unmatched: int  # cells that no baseline cell can be compared with: their speed-up is null
    narrowed: bool = False  # all cells have what the baseline names, and only the smallest are the baseline
    obstacle: str = ""  # without baseline cells: which key stands in the way

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Numbers of processes, ascending."""
        return tuple(sorted({cell.world_size for cell in self.cells}))


def series_of(cells: Sequence[Cell], baseline: Mapping[str, Any]) -> tuple[Series, ...]:
    """The series of a study, in the order of their first cells."""
    groups: dict[str, list[Cell]] = {}
    families: dict[str, list[Cell]] = {}
    specs: dict[int, str] = {}
    values = [cell.to_json() for cell in cells]
    for cell, keys, name in zip(cells, values, joined_series(values, baseline), strict=True):
        groups.setdefault(name or _key(keys, {}, specs), []).append(cell)
        families.setdefault(_key(keys, baseline, specs), []).append(cell)
    bases = {key: baselines(family, baseline, Cell.to_json) for key, family in families.items()}
    found = [_series(tuple(group), bases[_key(group[0].to_json(), baseline, specs)], baseline) for group in groups.values()]
    named = list({_key(keys, {}, specs): keys for keys in values if is_named(keys, baseline)}.values())
    return tuple(one if one.has_baseline else replace(one, obstacle=obstacle(one.cells[0].to_json(), named, baseline)) for one in found)


def _series(cells: tuple[Cell, ...], base: Sequence[Cell], baseline: Mapping[str, Any]) -> Series:
    smallest = min(cell.world_size for cell in cells)
    against = base or [cell for cell in cells if cell.world_size == smallest]
    batches = {cell.batch_size for cell in against}
    totals = {cell.global_batch_size for cell in against}
    chosen = {cell.cell_id for cell in against}
    others = [cell for cell in cells if cell.cell_id not in chosen]
    kinds = [(cell.batch_size in batches, cell.global_batch_size in totals) for cell in others]
    unmatched = len(others) if not base else sum(not any(kind) for kind in kinds)
    narrowed = bool(base) and any(is_named(cell.to_json(), baseline) for cell in others)
    return Series(cells=cells, scaling=_scaling(kinds), has_baseline=bool(base), unmatched=unmatched, narrowed=narrowed)


def _scaling(kinds: Sequence[tuple[bool, bool]]) -> str:
    if not kinds:
        return "one size"
    if all(weak for weak, _ in kinds):
        return "weak"
    if all(strong for _, strong in kinds):
        return "strong"
    return "mixed"


def _key(keys: Mapping[str, Any], baseline: Mapping[str, Any], specs: dict[int, str]) -> str:
    """The keys in which cells must agree, as text; a specification is shared by many cells and written once."""
    spec = keys["dataset_spec"]
    text = specs.setdefault(id(spec), json.dumps(spec, sort_keys=True))
    rest = comparable({key: value for key, value in keys.items() if key != "dataset_spec"}, baseline)
    return json.dumps([rest, text], sort_keys=True)
