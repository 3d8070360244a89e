"""The table of the survey: several machines beside each other, and how many weak nodes do what a strong one does, by closed forms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import make_cell, make_record, write_records, write_study
from workflow.report.analysis import Analysis, analyse
from workflow.report.collect import collect
from workflow.report.page import page
from workflow.report.plots import PLOTS
from workflow.report.prediction import Point, nodes_that_reach
from workflow.report.tables import TABLES

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
    analysis = analyse(collect(paths))
    table = TABLES["survey"](analysis)
    keys = [column.key for column in table.columns]
    raw = [{key: value.raw for key, value in zip(keys, row, strict=True)} for row in table.rows]
    return analysis, raw, [{key: value.text for key, value in zip(keys, row, strict=True)} for row in table.rows]


def estimated(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    (found,) = [row for row in rows if row["basis"] != "measured"]
    return found


def test_measured_cells_of_one_study_have_step_and_rate_with_intervals(tmp_path: Path) -> None:
    analysis, rows, texts = survey_of([machine(tmp_path / "weak", WEAK)])
    assert [(row["nodes"], row["basis"], row["ran_on"], row["threads_per_process"]) for row in rows] == [
        (nodes, "measured", "cpu", "2") for nodes in WEAK
    ]
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


def test_a_strong_node_is_so_many_weak_ones_between_what_was_measured(tmp_path: Path) -> None:
    """A node of two GPUs with 64 samples in 0.3 s lies between 2 weak nodes, 64 in 0.44 s, and 4, 128 in 0.46 s."""
    strong = machine(tmp_path / "strong", {1: 0.3}, gpus_per_node=2, device="cuda", threads=8, backend="nccl")
    analysis, rows, texts = survey_of([machine(tmp_path / "weak", WEAK), strong])
    found, read = estimated(rows), estimated(texts)
    rates = [64 / 0.44, 64 / 0.3, 128 / 0.46]
    share = math.log(rates[1] / rates[0]) / math.log(rates[2] / rates[0])
    assert found["nodes"] == pytest.approx(2 * 2**share, rel=1e-3)
    half = 4.3027 * 0.01 * math.sqrt(2 / 3)  # Student's t of two degrees of freedom, of both rates
    for end, sign in (("nodes_low", -1), ("nodes_high", 1)):
        share = (math.log(rates[1] / rates[0]) + sign * half) / math.log(rates[2] / rates[0])
        assert found[end] == pytest.approx(2 * 2**share, rel=1e-3)
    assert (found["basis"], found["rate_per_s"], found["step_p50_s"]) == ("interpolated", pytest.approx(rates[1], rel=1e-3), None)
    assert re.fullmatch(r"3\.\d\d \[[23]\.\d\d, 3\.\d\d\]", read["nodes"])
    assert read["equal_to"] == "1 node \N{MULTIPLICATION SIGN} 2 of strong"
    assert "Survey" in page(analysis, {})


def test_beyond_what_was_measured_the_model_tells_or_nothing_does(tmp_path: Path) -> None:
    """Through 2 and 4 nodes goes t(n) = 0.4 + 0.08 (1 - 1/n), which is 0.47 s on 8: a node with a step of 0.47 / 8 s is as fast."""
    weak = machine(tmp_path / "weak", WEAK)
    rows = survey_of([weak, machine(tmp_path / "strong", {1: 0.47 / 8})])[1]
    found = estimated(rows)
    assert (found["basis"], found["nodes"]) == ("predicted", pytest.approx(8, rel=0.01))
    assert found["nodes_low"] < 8 / 1.05 < 8 * 1.05 < found["nodes_high"], "wider than by 0.01 of the runs"
    found = estimated(survey_of([weak, machine(tmp_path / "stronger", {1: 0.47 / 40})])[1])
    assert (found["basis"], found["nodes"]) == ("refused", None)
    assert found["note"] == "more than 4 times the 4 nodes that were measured"
    single = estimated(survey_of([machine(tmp_path / "single", {1: 0.4}), machine(tmp_path / "fast", {1: 0.1})])[1])
    assert single["note"].startswith("no point beyond the first node")


def test_what_is_not_of_the_same_work_or_of_whole_nodes_is_not_compared(tmp_path: Path) -> None:
    weak = machine(tmp_path / "weak", WEAK)
    other = machine(tmp_path / "other", {1: 0.1}, batch_size=64)
    assert {row["basis"] for row in survey_of([weak, other])[1]} == {"measured"}
    slower = machine(tmp_path / "slower", {1: 0.5})
    found = estimated(survey_of([weak, slower])[1])
    assert (found["equal_to"], found["note"][:14]) == ("1 node \N{MULTIPLICATION SIGN} 1 of weak", "no point beyon"), "not the other way"
    shares = machine(tmp_path / "shares", WEAK, scheduler="local")
    rows = survey_of([shares, machine(tmp_path / "strong", {1: 0.3})])[1]
    assert estimated(rows)["note"].startswith("nodes are shares of one machine")
    few = estimated(survey_of([weak, machine(tmp_path / "few", {1: 0.3}, repeats=2)])[1])
    assert (few["nodes_low"], few["note"]) == (None, "no interval: a cell has fewer than 3 runs")
    few_weak = machine(tmp_path / "few-weak", WEAK, repeats=2)
    assert estimated(survey_of([few_weak, machine(tmp_path / "fast", {1: 0.3})])[1])["note"] == few["note"]
    parts = machine(tmp_path / "parts", {1: 0.3, 2: 0.3}, scheduler="local")
    notes = [row["note"] for row in survey_of([weak, parts])[1] if row["basis"] != "measured"]
    assert notes
    assert all(note.startswith("nodes are shares of one machine") for note in notes)
    beyond = machine(tmp_path / "beyond", {2: 0.44, 4: 0.46})
    found = estimated(survey_of([beyond, machine(tmp_path / "between", {1: 0.3})])[1])
    assert (found["basis"], found["note"]) == ("refused", "fewer than 2 nodes, of which none was measured")
    assert survey_of([machine(tmp_path / "anchors", WEAK, reader="memory")])[1] == []


def test_the_node_with_most_processes_of_another_directory_counts(tmp_path: Path) -> None:
    """The weak nodes have a fast one of their own beside them, and the strong ones have two sizes."""
    fast = make_cell(nodes=1, gpus_per_node=1, batch_size=32, device="cuda")
    weak, strong = machine(tmp_path / "weak", WEAK), machine(tmp_path / "strong", {1: 0.3}, gpus_per_node=1)
    both = [make_cell(nodes=1, gpus_per_node=count, batch_size=32) for count in (2, 1)]
    write_study(strong, both, repeats=3)
    write_study(weak, [fast, *(make_cell(nodes=nodes, gpus_per_node=1, batch_size=32) for nodes in WEAK)], repeats=3)
    for place, cells, step_s in ((strong, both, 0.45), (weak, [fast], 0.2)):
        write_records(place, [make_record(cell, repeat, step_s=step_s, scheduler="slurm") for cell in cells for repeat in (1, 2, 3)])
    found = [row["equal_to"] for row in survey_of([weak, strong])[1] if row["basis"] != "measured" and row["source"] == "weak"]
    assert found == ["1 node \N{MULTIPLICATION SIGN} 2 of strong"]


def test_runs_that_differ_by_any_factor_are_shown_all_the_same(tmp_path: Path) -> None:
    strong = machine(tmp_path / "strong", {1: 0.3})
    cell = make_cell(nodes=1, gpus_per_node=1, batch_size=32)
    apart = [make_record(cell, repeat, step_s=0.3 * 1e-9 ** (repeat - 2), scheduler="slurm", job_id="strong") for repeat in (1, 2, 3)]
    write_records(strong, apart)
    found = estimated(survey_of([machine(tmp_path / "weak", WEAK), strong])[1])
    assert found["nodes"] == pytest.approx(1.5, abs=0.5)
    assert (found["nodes_low"], found["note"]) == (1, "its interval ends beyond what is predicted")


@pytest.mark.parametrize("rate", [90.0, 100.0, 290.0, 700.0])
def test_so_many_nodes_have_the_rate_that_they_were_asked_for(rate: float) -> None:
    """t(n) = 0.01 (1 + (1 - 1/n)) at 1, 2 and 4 nodes."""
    points = [Point(nodes, nodes / (0.01 * (2 - 1 / nodes))) for nodes in (1, 2, 4)]
    found = nodes_that_reach(points, rate)
    assert found is not None
    if rate <= 100:
        assert found == 1
    else:
        assert found / (0.01 * (2 - 1 / found)) == pytest.approx(rate)
    assert nodes_that_reach(points, 2000.0) is None, "more than 16 nodes"
    assert nodes_that_reach([points[0]], 200.0) is None
