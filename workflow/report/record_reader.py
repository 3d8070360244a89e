"""Read the records of runs into rows. One bad record of 10^5 is one row that says so."""

import math
import signal
import time
from collections.abc import Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Final

import polars as pl

from base.errors import RecordError
from workflow.run.record.model import RunRecord
from workflow.run.record.parquet_columns import FIELDS, MACHINES, row_of, values_of
from workflow.run.record.reading import FoundRecord, beside, find_record, record_of
from workflow.study.cell import SIZES, WORDS, Cell

ROW_SCHEMA: Final[dict[str, pl.DataType]] = {name: stored.dtype for name, stored in {**FIELDS, **MACHINES}.items() if name != "schema"}
_SAME: Final = (*SIZES, *(name for name in WORDS if name != "dataset"), "seed")
"""Keys of a cell that the record of its run must have, too. A dataset may have been renamed."""


def read_rows(found: Sequence[FoundRecord], cells: Mapping[str, Cell], study: str | None = None) -> pl.DataFrame:
    """Return one row per record, in order; `problem` says why it is not believed: then the row holds nothing else. `cells`: by run id, as
    the study has them."""
    rows: list[tuple[Any, ...]] = []
    problems: dict[int, str] = {}
    for place, one in enumerate(found):
        try:
            rows.append(row_of(_checked(one, cells[one.run_id], study)))  # at once, while it is in the cache of the processor
        except RecordError as error:
            problems[place] = str(error)
    values = values_of(rows)
    frame = pl.DataFrame([pl.Series(name, values[name], dtype=dtype) for name, dtype in ROW_SCHEMA.items()])
    if not problems:
        return frame.with_columns(problem=pl.lit(None, pl.String()))
    read = pl.Series("place", [place for place in range(len(found)) if place not in problems], dtype=pl.Int64())
    reasons = pl.DataFrame({"place": range(len(found)), "problem": [problems.get(place) for place in range(len(found))]})
    joined = reasons.join(frame.with_columns(read), on="place", how="left", maintain_order="left")
    return joined.select(*ROW_SCHEMA, "problem")


def _checked(found: FoundRecord, cell: Cell, study: str | None) -> RunRecord:
    """Return the record. Raises RecordError, also where it is not of the run, the attempt and the cell that it should be of."""
    attempt = (found.path or "").rpartition("/attempts/")[2].partition("/")[0]
    record = record_of(found.content or b"", found.run_id, int(attempt) if attempt.isdecimal() else None, study)
    differing = [key for key in _SAME if (own := getattr(record.cell, key)) is not None and own != getattr(cell, key)]
    if differing:
        raise RecordError(f"its cell differs from the study's cell of the same run: {', '.join(differing)}")
    return record


# The record of each run that counts, and what its attempts took beside it.


THREADS = 8
FIRST = 16
SLOW_STORAGE_S = 0.0005
"""A small file takes longer on network storage, which answers several questions at once; a disk gains nothing from threads."""
BESIDE: Final = ("prevented_s", "repeated_s", "unmeasured_s", "aside_s", "beside_gpu_s")
"""Columns: the seconds of the attempts that do not count: prevented ones, replaced results, results while the record that counts cannot be
read, attempts whose number another one had; and all of them times their GPUs."""
_NO_OTHERS: Final = [0.0] * len(BESIDE)


def read_chunk(runs_dir: str, cells: Mapping[str, Cell], study: str | None = None) -> pl.DataFrame:
    """Read one row per run, in order: `record` is the path of the one that counts, and null where there is none."""
    runs = list(cells)
    found = _find_records(runs_dir, runs)
    read = [record for record in found if record.content is not None]
    rows = (
        read_rows(read, cells, study).drop("repeat").with_columns(pl.Series("run_id", [record.run_id for record in read], dtype=pl.String))
    )
    place = {"run_id": runs, "record": [run.path for run in found], "num_attempts": [len(run.attempts) for run in found]}
    places = pl.DataFrame(place, schema={"run_id": pl.String, "record": pl.String, "num_attempts": pl.Int64})
    return places.hstack(_beside(runs_dir, found, rows)).join(rows, on="run_id", how="left", maintain_order="left")


def _find_records(runs_dir: str, runs: Sequence[str]) -> list[FoundRecord]:
    started = time.perf_counter()
    found = [find_record(runs_dir, run_id) for run_id in runs[:FIRST]]
    if time.perf_counter() - started <= SLOW_STORAGE_S * FIRST:
        return found + [find_record(runs_dir, run_id) for run_id in runs[FIRST:]]
    signal.siginterrupt(signal.SIGINT, True)  # polars lets the kernel go on with the wait for the threads after Ctrl-C
    with ThreadPool(THREADS) as pool:  # an executor waits at its end for a thread that silent storage holds
        return found + pool.map(lambda run_id: find_record(runs_dir, run_id), runs[FIRST:])


def _beside(runs_dir: str, found: Sequence[FoundRecord], rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the seconds of the attempts of each run beside the one that counts, by how they ended: BESIDE.

    If it is not known which one counts, no result was replaced by it, and none is a measurement.
    """
    counted = dict(zip(rows["run_id"].to_list(), rows["attempt"].to_list(), strict=True))
    took: list[list[float]] = []
    for run in found:
        attempt = counted.get(run.run_id)
        if len(run.attempts) <= (attempt is not None) and not run.aside:
            took.append(_NO_OTHERS)
            continue
        others = beside(runs_dir, run, attempt)
        kinds = ("prevented", "aside", "result")
        prevented, aside, results = (math.fsum(record.run_s for of, record in others if of == kind) for kind in kinds)
        gpu_s = math.fsum(record.run_s * sum(len(node.gpus) for node in record.nodes) for _, record in others)
        took.append([prevented, *((results, 0.0) if attempt is not None else (0.0, results)), aside, gpu_s])
    return pl.DataFrame(took, schema=dict.fromkeys(BESIDE, pl.Float64()), orient="row")


CHUNK = 4096


def read_runs(runs_dir: Path, cells: Mapping[str, Cell], study: str | None = None, chunk: int = CHUNK) -> pl.DataFrame:
    """Read one row per run, in the order of `cells`, which are by run id, `chunk` of them at a time."""
    runs = list(cells)
    parts = (runs[start : start + chunk] for start in range(0, max(1, len(runs)), chunk))
    return pl.concat([read_chunk(str(runs_dir), {run: cells[run] for run in part}, study) for part in parts])
