"""A few thousand runs -> one row each: the record that counts, and what its attempts took beside it.

`python -m workflow.report.chunks RUNS_DIR` does the same for a parent that has more than one core to read with (`readers.py`): names of
runs in, one JSON list on a line; out, for each line, eight bytes of length and the rows as Arrow's stream.
"""

from __future__ import annotations

import io
import json
import math
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import polars as pl

from workflow.report.records import read_rows
from workflow.run.record.reading import Found, beside, find_record

THREADS = 8
FIRST = 16
FAR_S = 0.0005  # network storage takes longer for a small file, and answers several questions at once; a disk gains nothing from threads
LENGTH_BYTES = 8
BESIDE: Final = ("prevented_s", "repeated_s", "unmeasured_s", "aside_s", "beside_gpu_s")
"""Columns: of a run's attempts beside the one that counts the prevented ones, results that it replaced, results where it cannot be read,
attempts that lie beside since another had their number; and all of these times their GPUs."""
_NO_OTHERS: Final = [0.0] * len(BESIDE)


def read_chunk(runs_dir: str, runs: Sequence[str]) -> pl.DataFrame:
    """One row per run, in order: `record` is the path of the one that counts, and null where there is none."""
    found = _found(runs_dir, runs)
    read = [record for record in found if record.content is not None]
    rows = read_rows([record.content for record in read if record.content is not None]).rename({"run_id": "said_run_id"})
    rows = rows.with_columns(pl.Series("run_id", [record.run_id for record in read], dtype=pl.String))
    place = {"run_id": list(runs), "record": [run.path for run in found], "num_attempts": [len(run.attempts) for run in found]}
    places = pl.DataFrame(place, schema={"run_id": pl.String, "record": pl.String, "num_attempts": pl.Int64})
    return places.hstack(_beside(runs_dir, found, rows)).join(rows, on="run_id", how="left", maintain_order="left")


def _found(runs_dir: str, runs: Sequence[str]) -> list[Found]:
    started = time.perf_counter()
    found = [find_record(runs_dir, run_id) for run_id in runs[:FIRST]]
    if time.perf_counter() - started <= FAR_S * FIRST:
        return found + [find_record(runs_dir, run_id) for run_id in runs[FIRST:]]
    with ThreadPoolExecutor(THREADS) as pool:
        return found + list(pool.map(lambda run_id: find_record(runs_dir, run_id), runs[FIRST:]))


def _beside(runs_dir: str, found: Sequence[Found], rows: pl.DataFrame) -> pl.DataFrame:
    """Seconds of the attempts of each run beside the one that counts, by what became of them: BESIDE. Where it is not known which one
    counts, no result was replaced by it, and none is a measurement."""
    counted = dict(zip(rows["run_id"].to_list(), rows["attempt"].to_list(), strict=True))
    took: list[list[float]] = []
    for run in found:
        attempt = counted.get(run.run_id)
        if len(run.attempts) <= (attempt is not None) and not run.aside:
            took.append(_NO_OTHERS)
            continue
        others = beside(runs_dir, run, attempt)
        kinds = ("prevented", "aside", "result")
        prevented, aside, results = (math.fsum(other.run_s for other in others if other.kind == kind) for kind in kinds)
        gpu_s = math.fsum(other.run_s * other.num_gpus for other in others)
        took.append([prevented, *((results, 0.0) if attempt is not None else (0.0, results)), aside, gpu_s])
    return pl.DataFrame(took, schema=dict.fromkeys(BESIDE, pl.Float64()), orient="row")


def main(runs_dir: str) -> None:
    """Answer until nobody asks any more. Ctrl-C is for the parent, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        content = io.BytesIO()
        read_chunk(runs_dir, json.loads(line)).write_ipc_stream(content)
        sys.stdout.buffer.write(content.tell().to_bytes(LENGTH_BYTES, "big") + content.getbuffer())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    from workflow.report.keeping import all_kept

    with all_kept():
        main(sys.argv[1])
