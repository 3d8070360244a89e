"""How long the report takes: collect and tables of many records, the whole report of 500 runs.

    python -m benchmarks.report [--records 100000] [--directory DIR]

Aims: 10^5 records into one table <= 5 s; the report of 500 runs <= 10 s and <= 5 MB.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import tempfile
import time
from pathlib import Path

from tests.report.builder import make_record, plausible_records, scaling_cells, write_records, write_study
from workflow.report.analysis import analyse
from workflow.report.collect import collect
from workflow.report.collect import write_records as write_parquet
from workflow.report.outputs import write_all
from workflow.report.tables import all_tables


def many_records(directory: Path, count: int) -> Path:
    """A study of `count` runs, 3 of each cell, as text: one record per cell is built, its repeats differ in their number."""
    models = [f"model{index:04d}" for index in range(-(-count // 24))]
    cells = scaling_cells(model=models, batch_size=[32, 64], nodes=[1, 2, 4, 8])
    results = write_study(directory / "results" / "many", cells)
    for cell in cells[: count // 3]:
        text = json.dumps(make_record(cell, 1), indent=1, sort_keys=True)
        first = f"{cell['cell_id']}-r1"
        for repeat in (1, 2, 3):
            run = results / "runs" / f"{cell['cell_id']}-r{repeat}"
            (run / "attempts" / "1").mkdir(parents=True)
            changed = text.replace(first, run.name).replace('"repeat": 1', f'"repeat": {repeat}')
            (run / "record.json").write_text(changed)
    return results


def timed(what: str, started: float, count: int) -> None:
    seconds = time.perf_counter() - started
    print(f"{what:45} {seconds:7.2f} s  {seconds / count * 1e6:8.1f} us/record", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--directory", type=Path, help="reuse or keep the records here")
    arguments = parser.parse_args()
    gc.disable()  # as the command does
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="slipway-report-"))
    try:
        results = directory / "results" / "many"
        if not results.exists():
            started = time.perf_counter()
            many_records(directory, arguments.records)
            timed("(making the records)", started, arguments.records)
        started = time.perf_counter()
        collection = collect([results])
        timed("collect", started, arguments.records)
        started = time.perf_counter()
        path = write_parquet(collection, results)
        timed(f"records.parquet ({path.stat().st_size / 1e6:.1f} MB)", started, arguments.records)
        started = time.perf_counter()
        all_tables(analyse(collection))
        timed("analysis and tables", started, arguments.records)

        cells = scaling_cells(
            model=["lenet", "alexnet", "resnet18", "resnet50"], batch_size=[16, 32, 64, 128, 256], nodes=[1, 2, 4, 8, 16, 32, 64, 128]
        )
        report = write_study(directory / "results" / "report", cells)
        write_records(report, plausible_records(cells)[:500])
        started = time.perf_counter()
        write_all([report], report)
        timed("report of 500 runs, all files", started, 500)
        print(f"report.html: {(report / 'report.html').stat().st_size / 1e6:.2f} MB")
    finally:
        if not arguments.directory:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
