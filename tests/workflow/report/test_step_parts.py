"""The table of what happens in a step: means that close, by hand, and nothing where no program tells anything."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import collected, csv_rows, make_cell, make_record
from workflow.report.analysis import Analysis
from workflow.report.page import page
from workflow.report.plots import PART_COLOURS, PLOTS
from workflow.report.shared_columns import SEPARATOR
from workflow.report.step_parts import STEP_PARTS, mean_parts
from workflow.report.study_tables import TABLES

ONE = {
    **{"input_s": 0.01, "copy_s": 0.002, "forward_s": 0.02, "backward_s": 0.04, "exposed_s": 0.006, "skew_s": 0.015},
    **{"optimizer_s": 0.005, "other_s": 0.002, "step_s": 0.1},
}
OTHER = {
    **{"input_s": 0.03, "copy_s": None, "forward_s": 0.03, "backward_s": 0.04, "exposed_s": 0.004, "skew_s": 0.005},
    **{"optimizer_s": 0.007, "other_s": 0.004, "step_s": 0.12},
}


def analysed(path: Path, *runs: dict[str, Any] | None) -> Analysis:
    """One cell on two nodes with a run for each of `runs`."""
    cell = make_cell(nodes=2, batch_size=8)
    records = [make_record(cell, number, **{"performance.parts": parts}) for number, parts in enumerate(runs, 1)]
    return collected(path, records, repeats=len(runs))


def row(analysis: Analysis) -> dict[str, str]:
    (found,) = csv_rows(TABLES["parts"](analysis))
    return found


def test_the_parts_of_two_runs_are_means_that_close(tmp_path: Path) -> None:
    """The copy of one of the runs is not told, so that it is in the rest of both: 0.11 - 0.02 - 0.025 - 0.04 - 0.005 - 0.01 - 0.006."""
    analysis = analysed(tmp_path, ONE, OTHER)
    found = row(analysis)
    assert [set(parts) for parts in mean_parts(analysis).values()] == [{*ONE, "parameters", "network_mbit"}]
    expected = {"input_s": 0.02, "forward_s": 0.025, "backward_s": 0.04, "exposed_s": 0.005, "skew_s": 0.01, "optimizer_s": 0.006}
    assert {name: float(found[name]) for name in expected} == {name: pytest.approx(value) for name, value in expected.items()}
    assert found["copy_s"] == ""
    assert (float(found["other_s"]), float(found["step_s"])) == (pytest.approx(0.004), pytest.approx(0.11))
    assert float(found["residual_ratio"]) == pytest.approx(0.004 / 0.11)


@pytest.mark.parametrize(
    ("keys", "mbit", "sent", "seconds"),
    [
        ({"nodes": 2, "gpus_per_node": 2}, 1000.0, 2 * 3 / 4 * 4 * 61_706, 4 * 61_706 * 8 / 1e9),
        ({"nodes": 4, "comm_hook": "bf16"}, 500.0, 2 * 3 / 4 * 2 * 61_706, 2 * 3 / 4 * 2 * 61_706 * 8 / 5e8),
        ({"nodes": 2}, None, 4 * 61_706, None),
        ({"nodes": 1, "gpus_per_node": 2}, None, 4 * 61_706, None),
        ({"nodes": 2, "comm_hook": "noop"}, 1000.0, 0, 0),
        ({"nodes": 2, "comm_hook": "powersgd"}, 1000.0, None, None),
        ({"nodes": 2, "strategy": "fsdp2"}, 1000.0, None, None),
        ({"nodes": 2, "mode": "infer"}, 1000.0, None, None),
        ({"nodes": 1}, None, None, None),
    ],
)
def test_what_a_process_sends_stands_beside_what_the_network_takes_for_it(
    tmp_path: Path, keys: dict[str, Any], mbit: float | None, sent: float | None, seconds: float | None
) -> None:
    preflight = None if mbit is None else {"seconds": 1.0, "rate_mbit_median": mbit}
    analysis = collected(tmp_path, [make_record(make_cell(**keys), preflight=preflight)])
    caption = TABLES["parts"](analysis).caption
    assert ("Sent:" in caption, "preflight's rate:" in caption) == (sent is not None, seconds is not None), (
        "of columns that are there alone"
    )
    found = row(analysis)
    expected = {"sent_bytes": sent, "network_s": seconds}
    assert {name: float(found[name]) if found[name] else None for name in expected} == pytest.approx(expected)


def test_a_part_is_shown_in_milliseconds_and_as_its_share(tmp_path: Path) -> None:
    table = TABLES["parts"](analysed(tmp_path, ONE))
    shown = {column.title: value.text for column, value in zip(table.columns, table.rows[0], strict=True)}
    assert (shown["Forward [ms]"], shown["Skew [ms]"], shown["Step [ms]"]) == ("20.0 (20.0 %)", "15.0 (15.0 %)", "100")
    assert shown["Residual"] == "2.0 %"


@pytest.mark.parametrize("seed", range(5))
def test_parts_and_the_rest_add_up_whatever_is_told(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    runs = [
        {name: None if value is None or rng.random() < 0.2 else value * rng.uniform(0.5, 2) for name, value in one.items()}
        for one in (ONE, OTHER)
    ]
    runs = [{**run, "other_s": 0.0, "step_s": 0.2} for run in runs]
    found = row(analysed(tmp_path, *runs))
    assert sum(float(found[name] or 0) for name in STEP_PARTS) == pytest.approx(0.2)


def test_where_nobody_tells_anything_there_is_no_row_no_picture_and_no_chapter(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, None)
    assert TABLES["parts"](analysis).num_rows == 0
    assert "no program told parts" in str(PLOTS["step_parts"](analysis))
    assert 'id="parts"' not in page(analysis, {"step_parts": "<svg ></svg>"})
    told = analysed(tmp_path / "told", ONE)
    assert "What happens in a step" in page(told, {"step_parts": "<svg ></svg>"})


def test_the_picture_stacks_what_the_table_has(tmp_path: Path) -> None:
    spec = PLOTS["step_parts"](analysed(tmp_path, ONE, OTHER))
    (values,) = spec["datasets"].values()
    assert {value["step"]: pytest.approx(value["amount"]) for value in values} == {
        **{"Input wait": 20, "Forward": 25, "Backward": 40, "Exposed communication": 5, "Skew": 10, "Optimizer": 6, "Other": 4}
    }
    assert len(set(PART_COLOURS.values())) == len(STEP_PARTS)


def test_frameworks_stand_beside_each_other(tmp_path: Path) -> None:
    cells = [make_cell(framework=name, nodes=nodes) for name in ("jax", "pytorch") for nodes in (1, 2)]
    labels = PLOTS["step_parts"](collected(tmp_path, map(make_record, cells), repeats=1))["encoding"]["y"]["sort"]
    assert [(label.split(SEPARATOR)[1], label[-3:]) for label in labels] == [
        ("jax", "1×1"), ("pytorch", "1×1"), ("jax", "2×1"), ("pytorch", "2×1"),
    ]  # fmt: skip
