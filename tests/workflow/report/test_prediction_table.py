"""The table of predictions, of records whose rates follow a ring exactly."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import collected, csv_rows, make_cell, make_record
from workflow.report.analysis import Analysis
from workflow.report.formats import to_markdown
from workflow.report.page import page
from workflow.report.prediction_table import MILLION, prediction, prediction_words


def step_s(nodes: int) -> float:
    return 0.2 + 0.1 * (1 - 1 / nodes)


def study(path: Path, nodes: Sequence[int], *, repeats: int = 1, changes: dict[str, Any] | None = None, **keys: Any) -> Analysis:
    keys = {"device": "cuda", "gpus_per_node": 4, **keys}
    cells = [make_cell(nodes=n, **keys) for n in nodes]
    records = [
        make_record(cell, repeat, step_s=step_s(cell["nodes"]), **{"scheduler": "slurm", **(changes or {})})
        for cell in cells
        for repeat in range(1, repeats + 1)
    ]
    return collected(path / "results" / "s", records, cells, repeats=repeats)


def rows(analysis: Analysis, *sizes: int, samples: float = MILLION) -> list[dict[str, str]]:
    return csv_rows(prediction(analysis, sizes, samples))


def test_twice_and_four_times_the_nodes_are_predicted(tmp_path: Path) -> None:
    twice, four = rows(study(tmp_path, (1, 2, 4)))
    for row, nodes in ((twice, 8), (four, 16)):
        rate = 32 * 4 * nodes / step_s(nodes)
        assert (row["processes"], row["nodes"], row["batch"], row["measured"]) == (str(4 * nodes), str(nodes), "batch 32", "1, 2, 4 × 4")
        assert float(row["rate_per_s"]) == pytest.approx(rate)
        assert float(row["efficiency"]) == pytest.approx(step_s(1) / step_s(nodes)), "t(1) / t(n) in weak scaling"
        assert float(row["hours"]) == pytest.approx(1e6 / rate / 3600)
        assert float(row["process_hours"]) == pytest.approx(4 * nodes * 1e6 / rate / 3600)
        for name in ("rate_per_s", "efficiency", "hours", "process_hours"):
            low, value, high = (float(row[name + end]) for end in ("_low", "", "_high"))
            assert low < value < high
        assert float(row["efficiency_low"]) / float(row["efficiency"]) == pytest.approx(float(row["rate_per_s_low"]) / rate)
        assert float(row["hours_low"]) * float(row["rate_per_s_high"]) == pytest.approx(1e6 / 3600)
    assert float(twice["rate_per_s_high"]) / float(twice["rate_per_s"]) < float(four["rate_per_s_high"]) / float(four["rate_per_s"])
    assert twice["covered"] == "0.902"


def test_sizes_that_are_asked_for(tmp_path: Path) -> None:
    analysis = study(tmp_path, (1, 2))
    one, part, far, small = rows(analysis, 12, 10, 40, 8, samples=7.2e6)
    assert float(one["rate_per_s"]) == pytest.approx(32 * 12 / step_s(3))
    assert float(one["hours"]) == pytest.approx(7.2e6 / (32 * 12 / step_s(3)) / 3600)
    assert part["note"] == "10 are no whole nodes of 4"
    assert far["note"] == "10 nodes are more than 4 times the 2 that were measured"
    assert small["note"].startswith("2 nodes: not more than the 2 that")
    assert not any(row["rate_per_s"] for row in (part, far, small))
    assert "Hours: of 7,200,000 samples" in prediction(analysis, (12,), 7.2e6).caption


@pytest.mark.parametrize(
    ("nodes", "keys", "reason"),
    [
        ((1,), {}, "no point beyond the first node"),
        ((1, 2, 4), {"global_batch_size": 64}, "strong scaling"),
        ((1, 2, 4), {"mode": "infer"}, "inference"),
        ((1, 2, 4), {"changes": {"scheduler": "local"}}, "nodes are shares of one machine"),
    ],
)
def test_a_line_without_a_model_says_why(tmp_path: Path, nodes: Sequence[int], keys: dict[str, Any], reason: str) -> None:
    found = rows(study(tmp_path, nodes, **keys))
    assert [row["note"].startswith(reason) for row in found] == [True]
    assert not found[0]["rate_per_s"]


def test_other_hardware_is_refused(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes, device="cuda", gpus_per_node=4) for nodes in (1, 2)]
    records = [make_record(cell, scheduler="slurm") for cell in cells]
    for node in records[1]["nodes"]:
        node["gpus"] = [{**gpu, "model": "NVIDIA A100-SXM4-80GB"} for gpu in node["gpus"]]
    (row,) = rows(collected(tmp_path / "results" / "s", records, cells, repeats=1))
    assert row["note"] == "the measured runs had different hardware"


def test_nodes_of_the_most_processes_are_predicted(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes, gpus_per_node=size, device="cuda") for nodes, size in ((1, 1), (2, 1), (1, 4), (2, 4), (8, 2))]
    found = rows(collected(tmp_path / "results" / "s", [make_record(cell, scheduler="slurm") for cell in cells], cells, repeats=1))
    assert [(row["processes"], row["measured"]) for row in found] == [("16", "1, 2 × 4"), ("32", "1, 2 × 4")]


def test_marks_of_the_points_stand_at_the_prediction(tmp_path: Path) -> None:
    found = rows(study(tmp_path, (1, 2), changes={"oversubscribed": True}))
    assert all("rate_per_s: oversubscribed" in row["marks"] for row in found)
    assert all("fewer than 3 runs" in row["note"] for row in found)
    assert not any(row["note"] for row in rows(study(tmp_path / "more", (1, 2), repeats=3))), "three equal runs vary by nothing"


def test_the_page_says_how_often_such_an_interval_was_right(tmp_path: Path) -> None:
    analysis = study(tmp_path, (1, 2, 4), repeats=3)
    (said,) = prediction_words(analysis)
    assert said.startswith("lenet · batch 32 on 32 GPUs would reach 3562 [")
    assert said.endswith("In the published series such an interval held 90.2 % of the true values.")
    assert said in page(analysis, {}).replace("\N{NO-BREAK SPACE}", " ")
    assert 'id="prediction"' not in page(study(tmp_path / "one", (1,)), {})
    assert "3562 \\[" in to_markdown(prediction(analysis))
