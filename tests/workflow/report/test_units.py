"""What a rate counts: samples of one program, tokens of another; each has its own columns, axes and words, and nobody compares the two."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import collected, failed, make_cell, make_record
from tests.workflow.report.test_plots import values
from tests.workflow.report.test_study_tables import cells_of
from workflow.report.analysis import Analysis
from workflow.report.formats import to_csv, to_markdown
from workflow.report.page import page
from workflow.report.plots import efficiency, loss, throughput
from workflow.report.study_tables import TABLES

TOKENS = {"unit": "tokens"}


def cell(nodes: int, name: str = "gpt", program: dict[str, Any] | None = None) -> dict[str, Any]:
    """A cell of a program that counts tokens, unless `program` says otherwise."""
    words = {"name": name, "command": ["train"], **(TOKENS if program is None else program)}
    return make_cell(framework=name, model=name, program=words, nodes=nodes, batch_size=4)


def record(of: dict[str, Any], tokens_per_s: float | None, repeat: int = 1) -> dict[str, Any]:
    """Of steps of 0.1 s in a window of 40 s."""
    tokens = None if tokens_per_s is None else round(40 * tokens_per_s)
    return make_record(of, repeat, **{"performance.tokens": tokens, "performance.tokens_per_s": tokens_per_s})


@pytest.fixture
def tokens(tmp_path: Path) -> Analysis:
    """1000 tokens/s on one node, 1800 on two, and none told on four."""
    return collected(tmp_path / "gpt", [record(cell(1), 1000.0), record(cell(2), 1800.0), record(cell(4), None)], repeats=1)


@pytest.fixture
def both(tmp_path: Path) -> Analysis:
    cells = [*(cell(nodes) for nodes in (1, 2)), *(cell(nodes, "net", {}) for nodes in (1, 2))]
    records = [record(of, 1000.0 * of["nodes"] if of["framework"] == "gpt" else None) for of in cells]
    return collected(tmp_path / "both", records, repeats=1)


def test_a_study_of_tokens_has_no_samples_per_second(tokens: Analysis, tmp_path: Path) -> None:
    times = TABLES["times"](tokens)
    assert cells_of(times, "tokens_per_s") == ["1000 n=1, no CI", "1800 n=1, no CI", "–"]
    assert cells_of(times, "speedup") == ["1", "1.800 n=1, no CI", "–"]
    shown = page(tokens, {"throughput": "<svg></svg>"}, tmp_path)
    for text in (to_markdown(times), to_markdown(TABLES["speedup"](tokens)), shown):
        assert "samples/s" not in text.lower()
    assert "Tokens/s: tokens over the wall time of the measured window" in times.caption
    assert "S (E): tokens/s over the baseline's" in TABLES["speedup"](tokens).caption
    assert "tokens over the wall time of the measured window" in shown
    rows = to_csv(TABLES["scaling"](tokens)).splitlines()
    head, first = rows[0].split(","), rows[1].split(",")
    told = dict(zip(head, first, strict=False))
    assert (told["samples_per_s"], float(told["tokens_per_s"])) == ("", pytest.approx(1000))
    assert tokens.summary.ends == {"not measured": 1, "ok": 2}
    assert cells_of(TABLES["failures"](tokens), "reason") == ["ended ok, but no rate could be measured: its program reported no tokens"]


def test_of_tokens_the_perplexity_is_told(tmp_path: Path) -> None:
    """e to the mean loss of the runs; none where nothing was evaluated, or the loss is beyond all numbers."""
    of = [cell(nodes) for nodes in (1, 2, 4)]
    losses: dict[int, tuple[float | None, ...]] = {1: (1.0, 2.0), 2: (1e4,), 4: (None,)}
    records = [
        make_record(one, repeat, **{"performance.tokens": 40000, "performance.tokens_per_s": 1000.0, "training.eval": evaluated(loss)})
        for one in of
        for repeat, loss in enumerate(losses[one["nodes"]], start=1)
    ]
    assert cells_of(TABLES["times"](collected(tmp_path / "gpt", records, repeats=2)), "perplexity") == [f"{math.exp(1.5):.2f}", "–", "–"]


def evaluated(loss: float | None) -> dict[str, Any] | None:
    return None if loss is None else {"split": "validation", "loss": loss, "accuracy": 0.5, "samples": 10}


@pytest.mark.slow
def test_the_axes_say_what_is_counted(tokens: Analysis) -> None:
    assert "'title': 'tokens / s'" in str(throughput(tokens))
    spec = loss(tokens)
    assert "'title': 'tokens seen'" in str(spec)
    assert values(spec)[0]["seen"] == pytest.approx(100), "1000 tokens/s, 0.1 s a step"


def test_both_units_in_one_study_stand_apart(both: Analysis) -> None:
    times = TABLES["times"](both)
    assert cells_of(times, "tokens_per_s") == ["1000 n=1, no CI", "2000 n=1, no CI", "–", "–"]
    assert cells_of(times, "samples_per_s") == ["–", "–", "40.00 n=1, no CI", "80.00 n=1, no CI"]
    assert "samples/s or tokens/s" in TABLES["speedup"](both).caption
    assert [len(line) for line in both.lines.values()] == [2, 2]
    assert all(one.partner is None or one.partner.unit == one.cell.unit for one in both.comparisons)


@pytest.mark.slow
def test_both_units_in_one_study_are_drawn_apart(both: Analysis) -> None:
    panels = {row["label"].split(" ")[0]: row["panel"] for row in values(throughput(both)) if row["kind"] == "measured"}
    assert panels == {"gpt": "tokens / s", "net": "samples / s"}
    assert {row["panel"] for row in values(efficiency(both))} == {""}
    spec = loss(both)
    assert "'title': 'steps'" in str(spec)
    assert {row["seen"] for row in values(spec)} == set(range(1, 211, 2))


def test_a_baseline_of_the_other_unit_is_none(tmp_path: Path) -> None:
    cells = [cell(1), cell(1, "other"), cell(1, "net", {})]
    records = [record(cells[0], 1000.0), record(cells[1], 500.0), record(cells[2], None)]
    found = collected(tmp_path / "three", records, baseline={"program": "gpt"}, repeats=1).primary
    assert [one.speedup.value if one.speedup else None for one in found] == [1.0, pytest.approx(0.5), None]
    assert found[2].reason.endswith("the nearest one differs in unit (tokens there, samples here)")


# Programs that report no steps: their wall times are known, and no rate.


def untimed_record(nodes: int, source: str, name: str, **changes: Any) -> dict[str, Any]:
    program = {"name": name, "command": ["train"], "events": "none"}
    return make_record(make_cell(framework=name, model=name, program=program, nodes=nodes), steps_source=source, **changes)


@pytest.fixture
def mixed(tmp_path: Path) -> Analysis:
    """One program of which nobody knows a step, and one whose lines tell of ten each."""
    silent = [untimed_record(nodes, "none", "silent", performance=None) for nodes in (1, 2)]
    printing = [untimed_record(nodes, "log", "printing", **{"performance.steps_together": 10}) for nodes in (1, 2)]
    return collected(tmp_path / "mixed", [*silent, *printing], repeats=1)


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
    for name in ("times", "scaling", "speedup"):
        assert {"output", "means"} <= {mark for row in TABLES[name](mixed).rows for value in row for mark in value.marks}, name
    reasons = cells_of(TABLES["failures"](mixed), "reason")
    assert reasons == ["ended ok; its program reports no steps (events: none), so only wall times are known"] * 2
    assert set(cells_of(TABLES["hours"](mixed), "failed_process_h")) <= {"0", "\N{EN DASH}", "0.0"}


def test_means_of_some_of_the_runs_only_say_so(tmp_path: Path) -> None:
    program = {"name": "silent", "command": ["train"], "events": "none"}
    cell = make_cell(framework="silent", model="silent", program=program)
    runs = [make_record(cell, 1, steps_source="none", performance=None), failed(cell, 2, status="killed")]
    (found,) = collected(tmp_path / "some", runs, repeats=2).cells
    assert (found.num_ended_well, found.num_runs, "partial" in found.marks) == (1, 2, True)
