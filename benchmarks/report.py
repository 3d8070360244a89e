"""How long the report takes: collect and tables of many records, the whole report of 500 runs. Idle is best; CPU seconds count children.

    python -m benchmarks.report [--records 100000] [--directory DIR]

Aims: 10^5 records into one table <= 5 s; the report of 500 runs <= 10 s and <= 5 MB. The first is not reached: on two cores that others
used too, 10^5 records took 30 CPU s to read, by two processes, and 17 CPU s to compare and write, by one; 1.1 GB and twice 0.25 GB.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from base.seal import sealed_text
from tests.workflow.report.builder import make_record, plausible_records, scaling_cells, write_records, write_study
from workflow.report.analysis import analyse
from workflow.report.collect import collect
from workflow.report.collect import write_records as write_parquet
from workflow.report.keeping import all_kept
from workflow.report.outputs import write_all, write_tables


def many_records(directory: Path, count: int) -> Path:
    """A study of `count` runs, 3 of each cell, as text: one record per cell is built, its repeats differ in their number."""
    models = [f"model{index:04d}" for index in range(-(-count // 24))]
    cells = scaling_cells(model=models, batch_size=[32, 64], nodes=[1, 2, 4, 8])
    results = write_study(directory / "results" / "many", cells)
    for cell in cells[: count // 3]:
        record = make_record(cell, 1)
        for repeat in (1, 2, 3):
            run = results / "runs" / f"{cell['cell_id']}-r{repeat}"
            (run / "attempts" / "1").mkdir(parents=True)
            (run / "record.json").write_bytes(sealed_text({**record, "run_id": run.name, "repeat": repeat}))
    return results


def _cpu_s() -> float:
    """Of this process and the children that have ended."""
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


@contextmanager
def timed(what: str, count: int) -> Iterator[None]:
    """Prints wall and CPU seconds: the latter say more on a machine that others use."""
    started, used = time.perf_counter(), _cpu_s()
    yield
    seconds, cpu_s = time.perf_counter() - started, _cpu_s() - used
    print(f"{what:45} {seconds:7.2f} s wall {cpu_s:7.2f} s CPU  {cpu_s / count * 1e6:8.1f} us CPU/record", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--directory", type=Path, help="reuse or keep the records here")
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="slipway-report-"))
    try:
        results = directory / "results" / "many"
        if not results.exists():
            with timed("(making the records)", arguments.records):
                many_records(directory, arguments.records)
        with all_kept():
            with timed("collect", arguments.records):
                collection = collect([results])
            with timed("records.parquet", arguments.records):
                write_parquet(collection, results)
            with timed("analysis, tables, their files", arguments.records):
                write_tables(analyse(collection), results)
        most = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        print(f"largest memory: {most[0]:.0f} MiB, of a process that reads records {most[1]:.0f} MiB")
        cells = scaling_cells(
            model=["lenet", "alexnet", "resnet18", "resnet50"], batch_size=[16, 32, 64, 128, 256], nodes=[1, 2, 4, 8, 16, 32, 64, 128]
        )
        report = write_study(directory / "results" / "report", cells)
        write_records(report, plausible_records(cells)[:500])
        with timed("report of 500 runs, all files", 500):
            write_all([report], report)
        print(f"report.html: {(report / 'report.html').stat().st_size / 1e6:.2f} MB")
    finally:
        if not arguments.directory:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
