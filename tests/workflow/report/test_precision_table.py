"""The table of precisions and layouts: ratios with intervals, the losses beside them, and nothing where nothing differs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import collected, failed, make_cell, make_record
from workflow.report.cells import LogSample, ratio
from workflow.report.formats import to_markdown, to_values
from workflow.report.page import page
from workflow.report.tables import TABLES

NOISE = (0.99, 1.0, 1.01)


def records(cell: dict[str, Any], step_s: float, **changes: Any) -> list[dict[str, Any]]:
    return [make_record(cell, repeat, step_s=step_s * factor, **changes) for repeat, factor in enumerate(NOISE, 1)]


def test_each_precision_and_layout_against_fp32_nchw(tmp_path: Path) -> None:
    """Two models, of which one has no base: then its first kind is the base. Repeats have the same noise, so paired intervals are thin."""
    cells = [make_cell(layout="nhwc"), make_cell(), make_cell(precision="bf16", layout="nhwc"), make_cell(precision="bf16", nodes=2)]
    cells += [make_cell(model="alexnet", precision="bf16"), make_cell(model="alexnet", precision="bf16", layout="nhwc")]
    steps = (0.1, 0.08, 0.04, 0.05, 1.0, 0.5)
    found = [record for cell, step_s in zip(cells, steps, strict=True) for record in records(cell, step_s)]
    for record in found[6:9]:
        record["training"]["final_loss"] = 0.7
    analysis = collected(tmp_path / "kinds", found, cells, repeats=3)
    table = TABLES["precision"](analysis)
    lenet, alexnet = to_values(table)["rows"]
    assert (lenet["model"], lenet["base"], lenet["fp32_nchw_ratio"]) == ("lenet", "fp32 nchw", "1 (base)")
    assert lenet["fp32_nchw_final_loss"] == pytest.approx(0.2)
    assert lenet["fp32_nhwc_ratio"].split()[0] == "0.8000"
    assert lenet["bf16_nhwc_ratio"].split()[0] == "2.000"
    assert lenet["bf16_nhwc_final_loss"] == pytest.approx(0.7)
    assert lenet["bf16_nchw_ratio"] == "not in the study"  # that one is on two nodes
    assert (alexnet["base"], alexnet["bf16_nchw_ratio"], alexnet["bf16_nhwc_ratio"].split()[0]) == ("bf16 nchw", "1 (base)", "2.000")
    assert alexnet["fp32_nchw_final_loss"] is None
    assert "precision" not in [column.key for column in table.columns]
    assert 'id="table-precision"' in page(analysis, {})


def test_the_interval_is_that_of_a_ratio_of_runs(tmp_path: Path) -> None:
    cells = [make_cell(), make_cell(precision="bf16")]
    steps = ((0.1, 0.11, 0.105), (0.05, 0.052, 0.06))
    found = [
        make_record(cell, repeat, step_s=step_s) for cell, times in zip(cells, steps, strict=True) for repeat, step_s in enumerate(times, 1)
    ]
    (row,) = to_values(TABLES["precision"](collected(tmp_path / "interval", found, cells, repeats=3)))["rows"]
    logs = [[-math.log(step_s) for step_s in times] for times in steps]

    def sample(values: list[float]) -> LogSample:
        mean = math.fsum(values) / 3
        return LogSample(n=3, mean=mean, variance=math.fsum((value - mean) ** 2 for value in values) / 2, by_block=tuple(enumerate(values)))

    by_hand = ratio(sample(logs[1]), sample(logs[0]))
    assert by_hand.low is not None
    assert by_hand.high is not None
    value, _, error = row["bf16_nchw_ratio"].partition(" ±")
    assert float(value) == pytest.approx(by_hand.value, abs=0.01)
    assert float(error) == pytest.approx(max(by_hand.high - by_hand.value, by_hand.value - by_hand.low), abs=0.01)


def test_what_has_no_number_says_why_and_what_is_doubtful_is_marked(tmp_path: Path) -> None:
    cells = [make_cell(), make_cell(precision="bf16"), make_cell(layout="nhwc")]
    found = records(cells[0], 0.1, oversubscribed=True) + [failed(cells[1], repeat) for repeat in (1, 2, 3)] + records(cells[2], 0.1)
    table = TABLES["precision"](collected(tmp_path / "doubts", found, cells, repeats=3))
    (row,) = to_values(table)["rows"]
    assert row["bf16_nchw_ratio"] == "oom"
    assert row["marks"] == {"fp32_nchw_ratio": ["oversubscribed"], "fp32_nhwc_ratio": ["baseline"]}
    found = [failed(cells[0], repeat) for repeat in (1, 2, 3)] + records(cells[2], 0.1)
    (row,) = to_values(TABLES["precision"](collected(tmp_path / "no-base", found, cells, repeats=3)))["rows"]
    assert (row["fp32_nchw_ratio"], row["fp32_nhwc_ratio"]) == ("oom", "base oom")


def test_a_study_of_one_precision_and_layout_shows_none(tmp_path: Path) -> None:
    cells = [make_cell(batch_size=size) for size in (2, 4)]
    analysis = collected(tmp_path / "one", [record for cell in cells for record in records(cell, 0.1)], cells, repeats=3)
    assert "no cells that differ in precision or layout alone" in to_markdown(TABLES["precision"](analysis))
    assert "table-precision" not in page(analysis, {})
