"""What runs took before, by the records of all studies on this storage. Reads only; what cannot be read says nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base.errors import RecordError
from base.jsonfile import read_content
from workflow.run.record.attempts import MAX_BYTES
from workflow.run.record.model import NotBelieved
from workflow.run.record.reading import record_of
from workflow.study.cell import Cell
from workflow.study.paths import STUDY_FILE, record_path
from workflow.study.resolved import read_resolved

MAX_PER_CELL: Final = 5
MAX_RECORDS: Final = 2000
"""A plan waits for them."""
LEAST_STAGED: Final = 64 << 20
"""Bytes; the time of fewer is that of starting, not of copying."""
ALIKE: Final = ("framework", "mode", "model", "dataset_spec", "precision", "layout")
"""Runs whose cells agree in these, and which computed on the same kind of device, take times that follow from one another."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """One run that ended well, from its start: all of it (`run_s`), and its training alone."""

    cell: Cell
    device: str
    run_s: float
    training_s: float
    staged_per_s: float | None = None
    """Bytes per second that each of its nodes got of the dataset; None where too little was copied to tell."""


def past_runs(storage: Path, cells: Collection[Cell]) -> list[Past]:
    """Of cells that are among `cells`, or like one of them."""
    wanted = list({str(keys): keys for cell in cells if (keys := alike(cell))}.values())
    found: list[Past] = []
    for results in sorted(path.parent for path in (storage / "results").glob(f"*/{STUDY_FILE}")):
        for past in _of_study(results, wanted):
            found.append(past)
            if len(found) == MAX_RECORDS:
                return found
    return found


def _of_study(results: Path, wanted: Collection[Mapping[str, Any]]) -> Iterator[Past]:
    try:
        study = read_resolved(results)
    except RecordError:
        return
    cells = {cell.cell_id: cell for cell in study.cells if alike(cell) in wanted}
    read = dict.fromkeys(cells, 0)
    for run in study.runs:
        cell = cells.get(run.cell_id)
        if cell is not None and read[cell.cell_id] < MAX_PER_CELL:
            past = _past(results, run.run_id, cell)
            if past is not None:
                read[cell.cell_id] += 1
                yield past


def _past(results: Path, run_id: str, cell: Cell) -> Past | None:
    try:
        record = record_of(read_content(record_path(results, run_id), max_bytes=MAX_BYTES), run_id)
    except (RecordError, NotBelieved):
        return None
    training_s = None if record.training is None else record.training.train_s
    if record.status != "ok" or record.resumed_from is not None or training_s is None:
        return None
    copied = sum(node.stage.copied_bytes or 0 for node in record.nodes if node.stage is not None) / cell.nodes
    stage_s = record.steps_s.stage or 0.0
    rate = copied / stage_s if copied >= LEAST_STAGED and stage_s > 0 else None
    return Past(cell=cell, device=record.device, run_s=record.run_s, training_s=training_s, staged_per_s=rate)


def alike(cell: Cell) -> dict[str, Any]:
    """What two cells must have in common: ALIKE."""
    return {key: getattr(cell, key) for key in ALIKE}
