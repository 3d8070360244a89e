"""Programs that tell of no steps, or tell of them in what they print: what tables make of their runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import collected, failed, make_cell, make_record
from tests.workflow.report.test_tables import cells_of
from workflow.report.analysis import Analysis
from workflow.report.formats import to_markdown
from workflow.report.tables import TABLES


def record(nodes: int, source: str, name: str, **changes: Any) -> dict[str, Any]:
    program = {"name": name, "command": ["train"], "events": "none"}
    return make_record(make_cell(framework=name, model=name, program=program, nodes=nodes), steps_source=source, **changes)


@pytest.fixture
def mixed(tmp_path: Path) -> Analysis:
    """One program of which nobody knows a step, and one whose lines tell of ten each."""
    silent = [record(nodes, "none", "silent", performance=None) for nodes in (1, 2)]
    printing = [record(nodes, "log", "printing", **{"performance.steps_together": 10}) for nodes in (1, 2)]
    return collected(tmp_path / "mixed", [*silent, *printing], repeats=1)


def test_rates_of_lines_that_were_read_say_so_in_every_table(mixed: Analysis) -> None:
    for name in ("times", "scaling", "speedup"):
        assert {"output", "means"} <= {mark for row in TABLES[name](mixed).rows for value in row for mark in value.marks}


def test_wall_times_are_no_failure_and_no_rate(mixed: Analysis) -> None:
    assert mixed.summary.closing_line() == "4 of 4 runs ok (2 with wall times only)"
    assert mixed.summary.failed_rows == 0
    assert [cell.marks & {"untimed", "output", "means"} for cell in mixed.cells] == [{"untimed"}] * 2 + [{"output", "means"}] * 2
    times = TABLES["times"](mixed)
    assert cells_of(times, "runs") == ["1/1"] * 4
    assert cells_of(times, "allocations") == ["1"] * 4
    assert all(cells_of(times, "training_s"))
    assert cells_of(times, "samples_per_s")[:2] == cells_of(times, "speedup")[:2] == ["\N{EN DASH}"] * 2
    shown = to_markdown(TABLES["speedup"](mixed))
    assert shown.count("wall times only") >= 2
    assert "only the wall times of its runs are known" in shown
    assert "the times of steps are means over several steps" in shown


def test_they_are_listed_with_the_reason(mixed: Analysis) -> None:
    reasons = cells_of(TABLES["failures"](mixed), "reason")
    assert reasons == ["ended ok; its program reports no steps (events: none), so only wall times are known"] * 2
    assert set(cells_of(TABLES["hours"](mixed), "failed_process_h")) <= {"0", "\N{EN DASH}", "0.0"}


def test_means_of_some_of_the_runs_only_say_so(tmp_path: Path) -> None:
    program = {"name": "silent", "command": ["train"], "events": "none"}
    cell = make_cell(framework="silent", model="silent", program=program)
    runs = [make_record(cell, 1, steps_source="none", performance=None), failed(cell, 2, status="killed")]
    (found,) = collected(tmp_path / "some", runs, repeats=2).cells
    assert (found.num_ended_well, found.num_runs, "partial" in found.marks) == (1, 2, True)
