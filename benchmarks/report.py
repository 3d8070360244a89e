"""How long the report takes: collect and tables of many records in studies of several shapes, the whole report of 500 runs.

    python -m benchmarks.report [--records 100000] [--shape models] [--page] [--directory DIR]
    python -m benchmarks.report --growth [--shape models]

`--growth` makes tables and page of 3,000 and of 12,000 cells in every shape, and prints by how much the time of each grows; where it is
above 1.5 something is not linear, and the exit code is 1. Aims, from the records to the files of the tables: 10 CPU s for 100,000 records,
1 s for 10,000; the report of 500 runs <= 10 s and <= 5 MB.
"""

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from base.seal import sealed_text
from tests.workflow.report.builder import failed, make_record, plausible_records, scaling_cells, write_records, write_study
from workflow.report.analysis import Analysis, analyse
from workflow.report.collect import collect
from workflow.report.collect import write_records as write_parquet
from workflow.report.files import without_garbage_collection
from workflow.report.outputs import write_all, write_page, write_tables

Axes = Mapping[str, Sequence[Any]]
MODELS: Final = ("lenet", "alexnet", "resnet18", "resnet50")
FRAMEWORKS: Final = ("pytorch", "jax", "tensorflow", "paddle")
SHAPES: Final[dict[str, Callable[[int], Axes]]] = {
    "models": lambda cells: {"model": _names("model", cells // 8), "batch_size": [32, 64], "nodes": [1, 2, 4, 8]},
    "frameworks": lambda cells: {"framework": FRAMEWORKS, "model": _names("model", cells // 16), "nodes": [1, 2, 4, 8]},
    "batches": lambda cells: {"model": MODELS, "batch_size": range(1, cells // 16 + 1), "nodes": [1, 2, 4, 8]},
    "processes": lambda cells: {"model": MODELS, "batch_size": [32, 64], "gpus_per_node": range(1, cells // 8 + 1)},
    "rates": lambda cells: {"model": MODELS, "optimizer": [{"learning_rate": n / 1e6} for n in range(cells // 8)], "nodes": [1, 2]},
    "failed": lambda cells: {"model": _names("model", cells // 8), "batch_size": [32, 64], "nodes": [1, 2, 4, 8]},
    "superlinear": lambda cells: {"model": _names("model", cells // 4), "nodes": [1, 2, 4, 8]},
}
"""Shape of a study -> its axes, for about so many cells: which of them is long."""
MAX_GROWTH: Final = 1.5


def _names(word: str, count: int) -> list[str]:
    return [f"{word}{index:04d}" for index in range(max(1, count))]


def many_records(directory: Path, count: int, shape: str = "models", repeats: int = 3) -> Path:
    """Write a study of about `count` runs, `repeats` of each cell: one record per cell is built, its repeats differ in their number."""
    cells = scaling_cells(**SHAPES[shape](count // repeats))
    results = write_study(directory / "results" / "many", cells, repeats=repeats)
    for place, cell in enumerate(cells):
        step_s = 0.1 * (0.9 ** cell["nodes"].bit_length() if shape == "superlinear" else 1)
        marks = {"oversubscribed": True} if shape == "superlinear" else {}
        record = (
            failed(cell, last_lines=f"line {place}")
            if shape == "failed" and cell["nodes"] > 1
            else make_record(cell, step_s=step_s, **marks)
        )
        for repeat in range(1, repeats + 1):
            run = results / "runs" / f"{cell['cell_id']}-r{repeat}"
            (run / "attempts" / "1").mkdir(parents=True)
            (run / "record.json").write_bytes(sealed_text({**record, "run_id": run.name, "repeat": repeat}))
    return results


@contextmanager
def timed(what: str, count: int, used_s: dict[str, float] | None = None) -> Iterator[None]:
    """Print wall and CPU seconds, which say more on a machine that others use; or add the latter to `used_s`."""
    started, used = time.perf_counter(), time.process_time()
    yield
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - used
    if used_s is not None:
        used_s[what] = cpu_s / count
    else:
        print(f"{what:45} {seconds:7.2f} s wall {cpu_s:7.2f} s CPU  {cpu_s / count * 1e6:8.1f} us CPU/record", flush=True)


def report(results: Path, count: int, *, page: bool, used_s: dict[str, float] | None = None) -> Analysis:
    """Collect, and write the tables; with `page` also the page, without its plots, whose number of points is bounded."""
    with without_garbage_collection(), timed("all", count, used_s):
        with timed("collect", count, used_s):
            collection = collect([results])
        with timed("records.parquet", count, used_s):
            write_parquet(collection, results)
        with timed("analysis", count, used_s):
            analysis = analyse(collection)
        with timed("tables and their files", count, used_s):
            write_tables(analysis, results)
        if page:
            with timed("page", count, used_s):
                write_page(analysis, results, {})
    return analysis


def growth(directory: Path, shapes: Iterable[str]) -> list[str]:
    """Print by what factor the time of a record grows with four times the records. The parts that grow by more than MAX_GROWTH."""
    grown = []
    for shape in shapes:
        taken: list[dict[str, float]] = []
        for count in (100, 3_000, 12_000):
            used_s: dict[str, float] = {}
            place = directory / f"{shape}-{count}"
            report(many_records(place, count, shape, repeats=1), count, page=True, used_s=used_s)
            taken.append(used_s)
            shutil.rmtree(place)
        _, *taken = taken  # the first one has loaded what is loaded once
        factors = {part: after / before for (part, before), after in zip(taken[0].items(), taken[1].values(), strict=True) if before}
        grown += [f"{shape}: {part}" for part, factor in factors.items() if factor > MAX_GROWTH]
        print(f"{shape:12}" + "".join(f"{part} {factor:.2f}   " for part, factor in factors.items()), flush=True)
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--shape", choices=SHAPES, help="default: models; with --growth all")
    parser.add_argument("--page", action="store_true", help="make the page of the many records too")
    parser.add_argument("--growth", action="store_true", help="only show in every shape whether the time is linear in the records")
    parser.add_argument("--directory", type=Path, help="reuse or keep the records here")
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="slipway-report-"))
    try:
        if arguments.growth:
            grown = growth(directory, [arguments.shape] if arguments.shape else SHAPES)
            print("not linear: " + ("; ".join(grown) or "none"))
            return 1 if grown else 0
        results = directory / "results" / "many"
        if not results.exists():
            with timed("(making the records)", arguments.records):
                many_records(directory, arguments.records, arguments.shape or "models")
        report(results, arguments.records, page=arguments.page)
        print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
        cells = scaling_cells(
            model=["lenet", "alexnet", "resnet18", "resnet50"], batch_size=[16, 32, 64, 128, 256], nodes=[1, 2, 4, 8, 16, 32, 64, 128]
        )
        small = write_study(directory / "results" / "report", cells)
        write_records(small, plausible_records(cells)[:500])
        with timed("report of 500 runs, all files", 500):
            write_all([small], small)
        print(f"report.html: {(small / 'report.html').stat().st_size / 1e6:.2f} MB")
        return 0
    finally:
        if not arguments.directory:
            shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
