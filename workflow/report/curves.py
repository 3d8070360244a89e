"""Read the curves of single runs, thinned for the page: the time of each step with its evaluations and checkpoints, and the losses.

They stand in the events and the record of each run, not in records.parquet.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from base.errors import RecordError
from base.jsonfile import read_content
from base.untrusted import open_file
from workflow.report.analysis import Analysis
from workflow.run.record.events import RankEvents, bounded_lines, parse_events
from workflow.run.record.model import NotBelieved
from workflow.run.record.parquet_columns import UNREADABLE
from workflow.run.record.reading import read_record

MAX_EVENT_BYTES: Final = 24 << 20
"""The most that is read of the events of all runs together: a second or two."""
MAX_POINTS: Final = 60
MAX_PLACES: Final = 40
"""The most evaluations, and the most checkpoints, that are shown of a run."""
PRECISION: Final = 3
Curves = dict[str, Any]
"""`steps`: number of steps; `warmup`: those before the window; `ms`: the time of each step, or the median of each bunch of steps, whose
longest is in `most_ms`; `evaluations`: step and seconds; `checkpoints`: steps; `losses`: step and loss. What is not known is left out."""


def curves_of(analysis: Analysis) -> Iterator[tuple[tuple[str, str], Curves]]:
    """Yield source, run and curves of each run that has any: of every cell its first run, then of every cell its second."""
    roots = {source.label: source.directory / "runs" for source in analysis.sources}
    names = ("source", "run_id", "record", "attempt")
    rows = analysis.frame.filter(pl.col("record").is_not_null() & (pl.col("status") != UNREADABLE))
    left = MAX_EVENT_BYTES
    for source, run_id, record, attempt in rows.sort("repeat", maintain_order=True).select(names).iter_rows():
        events, size = _events(roots[source] / run_id / "attempts" / str(attempt) / "events-0.jsonl", left)
        left -= size
        found = _steps(events) if events is not None else {}
        if losses := _thinned(losses_of(roots[source] / record), MAX_POINTS):
            found["losses"] = [[step, _short(loss)] for step, loss in losses]
        if found:
            yield (source, run_id), found


def _events(path: Path, most_bytes: int) -> tuple[RankEvents | None, int]:
    """Return the events of rank 0 and the size of their file; None where there is none, or it is too large."""
    try:
        descriptor = open_file(path)
    except OSError:
        return None, 0
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        return (parse_events(bounded_lines(file)), size) if size <= most_bytes else (None, 0)


def _steps(events: RankEvents) -> Curves:
    steps = list(events.steps.values())
    if not steps:
        return {}
    each = -(-len(steps) // MAX_POINTS)
    bunches = [[1000 * step.seconds for step in steps[start : start + each]] for start in range(0, len(steps), each)]
    found: Curves = {"steps": len(steps), "ms": [_short(statistics.median(bunch)) for bunch in bunches]}
    found["warmup"] = next((place for place, step in enumerate(steps) if step.measured), 0)
    if each > 1:
        found["most_ms"] = [_short(max(bunch)) for bunch in bunches]
    first = next(iter(events.steps))
    evaluations = [[pause.step - first, _short((pause.end_ns - pause.begin_ns) / 1e9)] for pause in events.pauses]
    checkpoints = [one.step - first for one in events.checkpoints if one.step is not None and one.step >= first]
    places = {"evaluations": _thinned(evaluations, MAX_PLACES), "checkpoints": _thinned(checkpoints, MAX_PLACES)}
    return found | {name: values for name, values in places.items() if values}


def losses_of(path: Path) -> Sequence[tuple[int, float]]:
    """Read the losses of a record; none if it was removed or changed after it was collected."""
    try:
        training = read_record(read_content(path)).training
    except (RecordError, NotBelieved):
        return ()
    return (training.losses or ()) if training is not None else ()


def _thinned(values: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many of the values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def _short(value: float) -> float:
    return float(f"{value:.{PRECISION}g}")
