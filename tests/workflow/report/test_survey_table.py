"""The table of the survey: several machines beside each other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import analysed, make_cell, make_record, write_records, write_study
from workflow.report.analysis import Analysis
from workflow.report.page import page
from workflow.report.plots import PLOTS
from workflow.report.study_tables import TABLES

WEAK = {1: 0.4, 2: 0.44, 4: 0.46}
"""Nodes -> seconds of a step of 32 samples on each."""


def machine(path: Path, steps_s: Mapping[int, float], *, scheduler: str = "slurm", repeats: int = 3, **keys: Any) -> Path:
    """Write a study of cells of so many nodes, the runs of which differ by a per cent."""
    cells = [make_cell(**{"nodes": nodes, "gpus_per_node": 1, "batch_size": 32, **keys}) for nodes in steps_s]
    write_study(path, cells, repeats=repeats)
    write_records(
        path,
        [
            make_record(cell, repeat, step_s=steps_s[cell["nodes"]] * (1 + 0.01 * (repeat - 2)), scheduler=scheduler, job_id=path.name)
            for cell in cells
            for repeat in range(1, repeats + 1)
        ],
    )
    return path


def survey_of(paths: Sequence[Path]) -> tuple[Analysis, list[dict[str, Any]], list[dict[str, str]]]:
    """Return the analysis, and the rows of the table as they are in CSV and as they are read."""
    analysis = analysed(*paths)
    table = TABLES["survey"](analysis)
    keys = [column.key for column in table.columns]
    raw = [{key: value.raw for key, value in zip(keys, row, strict=True)} for row in table.rows]
    return analysis, raw, [{key: value.text for key, value in zip(keys, row, strict=True)} for row in table.rows]


def test_measured_cells_of_one_study_have_step_and_rate_with_intervals(tmp_path: Path) -> None:
    analysis, rows, texts = survey_of([machine(tmp_path / "weak", WEAK)])
    assert [(row["nodes"], row["ran_on"], row["threads_per_process"]) for row in rows] == [(nodes, "cpu", "2") for nodes in WEAK]
    assert rows[1]["rate_per_s"] == pytest.approx(64 / 0.44, rel=1e-3)
    assert rows[1]["rate_per_s_low"] < rows[1]["rate_per_s"] < rows[1]["rate_per_s_high"]
    assert texts[1]["step_p50_s"].startswith("440 [4")
    assert texts[1]["nodes"] == "2"
    assert "Survey" not in page(analysis, {}), "of one machine the page has the table of times"


def test_a_key_that_only_some_cells_have_is_a_dash_for_the_others(tmp_path: Path) -> None:
    cells = [make_cell(nodes=1, **keys) for keys in ({}, {"evaluate_every": 1})]
    write_study(tmp_path, cells, repeats=1)
    write_records(tmp_path, [make_record(cell, 1) for cell in cells])
    analysis, _, texts = survey_of([tmp_path])
    assert sorted(row["evaluate_every"] for row in texts) == ["1", "\N{EN DASH}"]
    assert all("every None" not in str(plot(analysis)) for plot in PLOTS.values())


def test_several_machines_stand_in_one_table_without_anchors(tmp_path: Path) -> None:
    strong = machine(tmp_path / "strong", {1: 0.3}, gpus_per_node=2, device="cuda", threads=8, backend="nccl")
    anchors = machine(tmp_path / "anchors", WEAK, reader="memory")
    analysis, rows, _ = survey_of([machine(tmp_path / "weak", WEAK), strong, anchors])
    assert [(row["source"], row["nodes"], row["gpus_per_node"]) for row in rows] == [*(("weak", n, 1) for n in WEAK), ("strong", 1, 2)]
    assert "Survey" in page(analysis, {})
