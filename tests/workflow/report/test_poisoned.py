"""Hostile records through collect, tables, plots and page: never a traceback, never a number that nobody measured."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from base.errors import RecordError
from tests.workflow.report.builder import analysed, failed, make_record, scaling_cells, sealed_bytes, write_records, write_study
from tests.workflow.report.poison import LONG, paths, poisoned, with_value
from tests.workflow.run.valid import validate_record
from workflow.report.analysis import Analysis
from workflow.report.collect import collect, read_records
from workflow.report.collect import write_records as write_parquet
from workflow.report.formats import FORMATS
from workflow.report.outputs import write_all
from workflow.report.page import page
from workflow.report.plots import PLOTS
from workflow.report.study_tables import all_tables
from workflow.run.record.parquet_columns import FIELDS
from workflow.run.record.reading import read_record

BASE, CELL = scaling_cells(nodes=[1, 2])
RECORD = make_record(
    {**CELL},
    **{
        "preflight": {
            "seconds": 1.0, "pairs": 2, "connect_ms_max": 0.1, "rate_mbit_median": 900.0, "rate_mbit_min": 900.0,
            "slowest": {"from": "local-0", "to": "local-1"}, "findings": ["slow"],
        },
        "resumed_from": {"attempt": 1, "step": 40, "used_s": 60.0},
        "checkpoint": {"step": 40, "bytes": 1000},
        "warnings": ["w"],
    },
)  # fmt: skip
FAILED = failed(CELL)
SIGNED = ("drift_change_ratio", "first_loss", "final_loss", "eval_loss", "parameter_norm", "part_other_s")


def study(directory: Path, contents: list[bytes]) -> Path:
    """A measured baseline, and beside it runs with these records."""
    write_study(directory, [BASE, CELL], repeats=len(contents))
    write_records(directory, [make_record(BASE, repeat) for repeat in (1, 2, 3)])
    for repeat, content in enumerate(contents, 1):
        path = directory / "runs" / f"{CELL['cell_id']}-r{repeat}" / "record.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(
            content.replace(f"{CELL['cell_id']}-r1".encode(), path.parent.name.encode()).replace(
                b'"repeat": 1,', f'"repeat": {repeat},'.encode()
            )
        )
    return directory


def everything(directory: Path, *, plots: bool) -> Analysis:
    """All of a report, in memory; the baseline's numbers must be what they are."""
    analysis = analysed(directory)
    texts = [to_text(table) for table in all_tables(analysis) for to_text in FORMATS.values()]
    texts += [json.dumps(build(analysis), allow_nan=False) for build in PLOTS.values()]
    for text in [*texts, page(analysis, {})]:
        text.encode()
        assert "<script>alert" not in text or not text.startswith("<!doctype html>")
    base = [row for row in analysis.frame.to_dicts() if row["cell_id"] == BASE["cell_id"]]
    assert [row["status"] for row in base[:3]] == ["ok"] * 3
    assert base[0]["step_p50_s"] == pytest.approx(0.1)
    if plots:
        out = directory / "out [a]*? =x"
        write_all([directory], out)
        assert not [file.name for suffix in ("html", "svg") for file in out.rglob(f"*.{suffix}") if "<script>alert" in file.read_text()]
    return analysis


def believed(analysis: Analysis) -> None:
    """Every number of a row that was not refused is one that can be."""
    for row in analysis.frame.to_dicts():
        for name, value in row.items():
            if isinstance(value, float):
                assert math.isfinite(value), name
                assert value >= 0 or name in SIGNED, name


MORE = [pytest.param(range(first, first + 100), marks=pytest.mark.slow) for first in (0, 100, 200, 300)]


@pytest.mark.parametrize("seeds", [range(20), *MORE], ids=lambda seeds: f"{seeds[0]} to {seeds[-1]}")
def test_poisoned_records_are_rows(tmp_path: Path, seeds: range) -> None:
    believed(everything(study(tmp_path / "s", [poisoned(FAILED if seed % 5 == 0 else RECORD, seed) for seed in seeds]), plots=False))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_poisoned_records_in_plots_and_files(tmp_path: Path, part: int) -> None:
    seeds = range(1000 + part * 100, 1100 + part * 100)
    believed(everything(study(tmp_path / "[a]*? b", [poisoned(RECORD, seed) for seed in seeds]), plots=True))


@pytest.mark.parametrize(
    "path", [one.path for one in FIELDS.values() if not one.path.startswith(("provenance.", "run_s", "seal", "steps_s."))]
)
def test_what_the_model_refuses_is_refused_here_too(path: str) -> None:
    """The reader knows a part of a record, and for that part it is as strict as the model, of which tools and tests make use.

    Except where the steps do not add up to the run: that is the mark `budget` beside a number."""
    value: Any = RECORD if not path.startswith("failed_rank") else FAILED
    record, keys = value, tuple(path.split("."))
    for other in (-1, -0.5, 1.5, True, "x", "\ud800", [], {}, float("nan"), 10**30, None):
        changed = with_value(record, keys, other)
        if _reason(sealed_bytes(changed)) is None and other is not None:  # old records lack what came later
            validate_record(changed)


REFUSED: dict[str, dict[str, Any]] = {
    "a negative 95th percentile": {"performance.step_s.p95": -0.1},
    "no window": {"performance.window_s": 0.0},
    "a negative time": {"steps_s": {**RECORD["steps_s"], "push": -1.0}},
    "an end before the start": {"time": {"start": "2026-05-02T10:00:00Z", "end": "2026-05-01T10:00:00Z"}},
    "no moment": {"time": {"start": "yesterday", "end": "2026-05-01T10:00:00Z"}},
    "another study": {"study": "other"},
    "another model under the same id": {"cell": {**CELL, "model": "resnet50"}},
    "another seed under the same id": {"cell": {**CELL, "seed": 7}},
    "more processes than the cell": {"world_size": 3},
    "another repeat": {"repeat": 2},
    "a seed that no column takes": {"cell": {**CELL, "seed": 10**30}},
    "a batch that no column takes": {"cell": {**CELL, "batch_size": 10**30, "global_batch_size": 10**30 * RECORD["world_size"]}},
    "fewer nodes than none": {"cell": {**CELL, "nodes": -1, "gpus_per_node": -RECORD["world_size"]}},
    "megabytes of model": {"cell": {**CELL, "model": LONG[:2_000_000]}},
    "a huge time": {"run_s": 1e308},
    "an accuracy of two": {"training.eval.accuracy": 2.0},
    "losses of words": {"training.losses": [[0, "x"]]},
    "losses that are no pairs": {"training.losses": [1, 2]},
    "losses of three": {"training.losses": [[0, 1.0, 2.0]]},
    "losses in an object": {"training.losses": {"0": 1.0}},
    "a null node": {"nodes": [None, None]},
    "fewer nodes than the cell": {"nodes": RECORD["nodes"][:1]},
    "a hostname that is a number": {"nodes": [{**RECORD["nodes"][0], "hostname": 5}] * 2},
    "ten megabytes of hostname": {"nodes": [{**RECORD["nodes"][0], "hostname": LONG[:2_000_000]}] * 2},
    "a digest that is none": {"dataset": {**RECORD["dataset"], "digest": "../x"}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_record_that_contradicts_itself_is_unreadable_with_the_reason(tmp_path: Path, name: str) -> None:
    directory = write_study(tmp_path / "s", [CELL], repeats=1)
    ((path, value),) = REFUSED[name].items()
    write_records(directory, [with_value(make_record(CELL), tuple(path.split(".")), value)])
    row = collect([directory]).frame.to_dicts()[0]
    assert row["status"] == "unreadable", name
    assert row["step_p50_s"] is None
    assert len(row["status_reason"].removeprefix(f"{row['record']}: ")) > 10


def test_a_directory_with_every_character_of_a_pattern(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "[a]*? {b} 'c' $d", [CELL], repeats=1)
    write_records(directory, [make_record(CELL)])
    collection = collect([directory])
    write_parquet(collection, directory)
    assert read_records(directory / "records.parquet").frame.equals(collection.frame)


def test_every_place_of_a_record_may_hold_null() -> None:
    reasons = [_reason(sealed_bytes(with_value(RECORD, path, None))) for path in paths(RECORD)]
    assert sum(reason is not None for reason in reasons) > 20
    assert all(len(reason) > 10 for reason in reasons if reason is not None)


def _reason(content: bytes) -> str | None:
    try:
        read_record(content)
    except RecordError as error:
        return str(error)
    return None
