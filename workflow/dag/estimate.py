"""What runs will take, by what runs took before: an estimate, which no limit is checked against. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from workflow.dag.past_runs import Past, alike
from workflow.study.cell import Cell, Run
from workflow.study.site import Site, device_of


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds of one run of a cell, and the cell whose runs it is made of: its own, or one of another size."""

    seconds: float
    from_cell: str


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What some runs will take together: `runs` of them by their own cell, by another one, or nobody knows."""

    own: int
    scaled: int
    unknown: int
    run_s: float
    gpu_hours: float
    process_hours: float


def estimate_of(cell: Cell, device: str, pasts: Iterable[Past]) -> Estimate | None:
    """By the mean of the cell's own runs; else of those of the cell that is nearest in size, whose training is scaled by the work."""
    fitting = [past for past in pasts if past.device == device and alike(past.cell) == alike(cell)]
    own = [past.run_s for past in fitting if past.cell.cell_id == cell.cell_id]
    if own:
        return Estimate(seconds=fmean(own), from_cell=cell.cell_id)
    scalable = [(distance, past) for past in fitting if (distance := _distance(past.cell, cell)) is not None]
    if not scalable:
        return None
    _, nearest = min(scalable, key=lambda pair: (pair[0], pair[1].cell.cell_id))
    same = [past for _, past in scalable if past.cell.cell_id == nearest.cell.cell_id]
    beside, training = fmean(past.run_s - past.training_s for past in same), fmean(past.training_s for past in same)
    return Estimate(seconds=beside + training * _work(cell)[1] / _work(nearest.cell)[1], from_cell=nearest.cell.cell_id)


def outlook_of(runs: Sequence[Run], site: Site, estimates: dict[str, Estimate | None]) -> Outlook:
    """Of `runs`; those of which nothing is known are counted, and not in the sums."""
    known = [(run, found) for run in runs if (found := estimates[run.cell.cell_id]) is not None]
    hours = {"cuda": 0.0, "cpu": 0.0}
    for run, found in known:
        hours[device_of(run.cell.device, site)] += found.seconds * run.cell.world_size / 3600
    own = sum(found.from_cell == run.cell.cell_id for run, found in known)
    return Outlook(
        own=own,
        scaled=len(known) - own,
        unknown=len(runs) - len(known),
        run_s=sum(found.seconds for _, found in known),
        gpu_hours=hours["cuda"],
        process_hours=hours["cpu"],
    )


def _work(cell: Cell) -> tuple[str, float]:
    """Samples of a process; with epochs, parts of the training split."""
    if cell.steps is not None:
        return "samples", float(cell.steps["total"] * cell.batch_size)
    return "epochs", float(cell.epochs or 1) / cell.world_size


def _distance(past: Cell, cell: Cell) -> tuple[float, float] | None:
    """How far two cells are apart: in processes, then in work; None where the work of one does not tell that of the other."""
    (unit, before), (wanted, now) = _work(past), _work(cell)
    return None if unit != wanted else (abs(math.log(past.world_size / cell.world_size)), abs(math.log(before / now)))
