"""Which cells are the baseline, what is compared with it, and on which line it stands."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.workflow.report.builder import collected, csv_rows, make_cell, make_record
from workflow.report.analysis import Analysis
from workflow.report.plots import efficiency, throughput
from workflow.report.study_tables import TABLES, baseline_text
from workflow.study.cell import Cell
from workflow.study.series import flat, is_named, keys_text


def of(tmp_path: Path, cells: Sequence[Mapping[str, Any]], baseline: Mapping[str, Any], steps_s: Sequence[float] = ()) -> Analysis:
    steps = steps_s or [0.1] * len(cells)
    records = [make_record(cell, repeat, step_s=step) for cell, step in zip(cells, steps, strict=True) for repeat in (1, 2, 3)]
    return collected(tmp_path / "s", records, cells, baseline=baseline)


def shown(analysis: Analysis) -> list[list[str]]:
    return [[value.text for value in row] for row in TABLES["speedup"](analysis).rows]


def test_one_node_with_more_and_more_processes_begins_at_the_fewest(tmp_path: Path) -> None:
    cells = [make_cell(gpus_per_node=number) for number in (1, 2, 4, 8)]
    analysis = of(tmp_path, cells, {"nodes": 1})
    assert [one.is_baseline for one in analysis.primary] == [True, False, False, False]
    assert [one.speedup.value for one in analysis.primary if one.speedup] == pytest.approx([1, 2, 4, 8])
    assert baseline_text(analysis) == "nodes: 1; where all cells of a series have that, those with the fewest processes are the baseline"


def test_a_baseline_for_each_size_stays_where_there_is_something_to_compare(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes, gpus_per_node=each) for nodes in (1, 2) for each in (1, 4)]
    analysis = of(tmp_path, cells, {"nodes": 1})
    assert [one.is_baseline for one in analysis.primary] == [True, True, False, False]
    assert baseline_text(analysis) == "nodes: 1"


def test_weak_and_strong_cells_of_one_study_each_have_their_baseline_and_all_their_points(tmp_path: Path) -> None:
    weak = [make_cell(nodes=nodes, batch_size=32) for nodes in (1, 2, 4)]
    strong = [make_cell(nodes=nodes, global_batch_size=64) for nodes in (1, 4)]  # on two nodes it is the cell of 32 each
    analysis = of(tmp_path, [*weak, *strong], {"nodes": 1})
    rows = {row[2]: row for row in shown(analysis)}
    assert [text.split()[0] for text in rows["32 each"][3:]] == ["1", "2.000", "4.000"]
    assert [text.split()[0] for text in rows["64 in all"][3:]] == ["1", "1.000", "1.000"]
    points = [point for points in efficiency(analysis)["datasets"].values() for point in points]
    assert len([point for point in points if point.get("kind") == "measured"]) == 6


def scaled(nodes: int, rate: float) -> dict[str, Any]:
    return make_cell(nodes=nodes, optimizer={"name": "sgd", "learning_rate": rate, "momentum": 0.9, "weight_decay": 0})


def test_a_learning_rate_that_is_scaled_with_the_nodes_stands_in_no_way_once_it_is_named(tmp_path: Path) -> None:
    cells = [scaled(1, 0.01), scaled(2, 0.02), scaled(4, 0.04)]
    without = of(tmp_path / "without", cells, {"nodes": 1})
    assert [one.reason for one in without.primary][1] == (
        "no cell of this series is a baseline (nodes: 1); the nearest one differs in optimizer.learning_rate (0.01 there, 0.02 here); "
        "name optimizer.learning_rate in the baseline, and they are compared all the same"
    )
    named = of(tmp_path / "named", cells, {"nodes": 1, "optimizer": {"learning_rate": 0.01}})
    assert [one.speedup.value for one in named.primary if one.speedup] == pytest.approx([1, 2, 4])
    assert len(shown(named)) == 1, "one line, whose learning rate grows"


def test_learning_rates_that_meet_on_one_size_stay_lines_of_their_own(tmp_path: Path) -> None:
    cells = [scaled(nodes, rate) for nodes in (1, 2) for rate in (0.01, 0.1)]
    analysis = of(tmp_path, cells, {"nodes": 1, "optimizer": {"learning_rate": 0.01}})
    assert len(shown(analysis)) == 2
    assert sum(one.speedup is not None for one in analysis.primary) == 4


def test_other_steps_stand_in_no_way_either(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes, steps={"warmup": 10, "measured": measured}) for nodes, measured in ((1, 200), (2, 400))]
    assert of(tmp_path / "a", cells, {"nodes": 1}).primary[1].speedup is None
    assert of(tmp_path / "b", cells, {"nodes": 1, "steps": {"measured": 200}}).primary[1].speedup is not None


def test_a_run_without_a_baseline_shows_its_marks_in_the_table_of_speed_up(tmp_path: Path) -> None:
    cells = [scaled(1, 0.01), scaled(2, 0.02)]
    records = [make_record(cell, repeat, oversubscribed=cell["nodes"] == 2) for cell in cells for repeat in (1, 2, 3)]
    values = {value.text: value.marks for row in TABLES["speedup"](collected(tmp_path, records, cells)).rows for value in row}
    assert "oversubscribed" in values["no baseline"]


def test_the_table_for_programs_carries_the_same_marks(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes) for nodes in (1, 2)]
    records = [make_record(cell, repeat, oversubscribed=True, threads_per_rank=cell["nodes"]) for cell in cells for repeat in (1, 2, 3)]
    analysis = collected(tmp_path / "s", records, cells, repeats=4)  # one of each is missing
    marks = {name: [set(row["marks"].split("; ")) for row in csv_rows(TABLES[name](analysis))] for name in ("times", "scaling")}
    for times, scaling in zip(marks["times"], marks["scaling"], strict=True):
        words = {mark.partition(": ")[2] for mark in times}
        assert words == {mark.partition(": ")[2] for mark in scaling}
        assert {"oversubscribed", "partial"} <= words
        assert {"samples_per_s: oversubscribed", "runs: partial", "speedup: oversubscribed", "efficiency: oversubscribed"} <= scaling


def test_what_a_baseline_names() -> None:
    baseline = {"nodes": 1, "optimizer": {"learning_rate": 0.1}}
    assert flat(baseline) == {"nodes": 1, "optimizer.learning_rate": 0.1}
    assert keys_text(baseline) == "nodes: 1, optimizer.learning_rate: 0.1"
    cell = msgspec.convert(make_cell(optimizer={"learning_rate": 0.1, "momentum": 0}), Cell)
    assert is_named(cell, baseline)
    assert not is_named(replace(cell, optimizer={}), baseline)
    assert not is_named(cell, {})


def at_rates(directory: Path, rates: Sequence[tuple[dict[str, Any], float]], baseline: Mapping[str, Any]) -> Analysis:
    """Three runs of each (keys of a cell, samples/s)."""
    cells = [make_cell(model="resnet50", **keys) for keys, _ in rates]
    steps = [cell["global_batch_size"] / rate for cell, (_, rate) in zip(cells, rates, strict=True)]
    return of(directory, cells, baseline, steps)


NONE_1, NONE_2, NONE_4 = ({"comm_hook": "none", "nodes": nodes} for nodes in (1, 2, 4))
BF16_1, BF16_2, BF16_4 = ({"comm_hook": "bf16", "nodes": nodes} for nodes in (1, 2, 4))


@pytest.mark.parametrize(
    ("rates", "baseline", "rows"),
    [
        (
            [(NONE_1, 100), (NONE_2, 190), (NONE_4, 360), (BF16_4, 390)],
            {"nodes": 1, "comm_hook": "none"},
            {"none": ["1 (baseline)", "1.900", "3.600"], "bf16": ["", "", "3.900"]},
        ),
        (
            [(BF16_1, 130), (BF16_2, 300), (NONE_1, 100), (NONE_2, 190)],
            {"nodes": 1, "comm_hook": "none"},
            {"bf16": ["1.300", "3.000"], "none": ["1 (baseline)", "1.900"]},
        ),
        (
            [(NONE_1, 100), (NONE_2, 190), (BF16_1, 130), (BF16_2, 247)],
            {"comm_hook": "none"},
            {"none": ["1 (baseline)", "1 (baseline)"], "bf16": ["1.300", "1.300"]},
        ),
    ],
)
def test_a_baseline_of_another_series_leaves_each_number_in_the_row_of_its_own_keys(
    tmp_path: Path, rates: Sequence[tuple[dict[str, Any], float]], baseline: Mapping[str, Any], rows: Mapping[str, list[str]]
) -> None:
    analysis = at_rates(tmp_path, rates, baseline)
    found = shown(analysis)
    assert [row[1] for row in found] == list(rows), "one row for each key"
    assert {row[1]: [text.partition(" (1")[0].partition(" (9")[0] for text in row[4:]] for row in found} == rows
    (points,) = efficiency(analysis)["datasets"].values()
    drawn = [point for point in points if point["kind"] == "measured"]
    assert len(drawn) == len(rates), "each cell once"
    assert len({point["label"] for point in drawn}) == len({point["line"] for point in drawn}) == 2, "each line has one name"


def test_cells_without_an_exchange_are_marked_and_compared_with_nothing(tmp_path: Path) -> None:
    """Also where the baseline names the key, so that cells of all hooks are compared with it, and where all of a series are diagnoses."""
    rates = [(NONE_1, 100), (NONE_2, 190), *(({"comm_hook": "noop", "nodes": nodes}, 110 * nodes) for nodes in (1, 2))]
    for number, baseline in enumerate(({"nodes": 1}, {"nodes": 1, "comm_hook": "none"})):
        analysis = at_rates(tmp_path / str(number), rates, baseline)
        plain, noop = analysis.primary[:2], analysis.primary[2:]
        assert [one.speedup.value if one.speedup else None for one in plain] == [1, pytest.approx(1.9)]
        assert [(one.speedup, one.partner) for one in noop] == [(None, None)] * 2
        assert all("unreduced" in one.cell.marks and "no result" in (one.reason or "") for one in noop)
        assert not any("unreduced" in one.cell.marks for one in plain)


def test_a_rise_is_marked_on_lines_of_the_kind_that_fewer_cells_have_and_its_baseline_is_on_them(tmp_path: Path) -> None:
    weak = [({"nodes": nodes, "batch_size": 32}, rate) for nodes, rate in ((1, 100.0), (2, 190.0), (4, 370.0))]
    analysis = at_rates(tmp_path, [*weak, ({"nodes": 2, "batch_size": 16}, 240.0)], {"nodes": 1})
    assert [one.marks for one in analysis.primary] == [set(), set(), set(), {"superlinear", "rising"}]


def test_what_is_compared_with_a_rising_baseline_says_so(tmp_path: Path) -> None:
    analysis = at_rates(tmp_path, [({"nodes": nodes}, rate) for nodes, rate in ((1, 100.0), (2, 260.0), (4, 510.0))], {"nodes": 2})
    assert [one.marks for one in analysis.primary] == [{"baseline"}, {"rising"}, {"baseline"}]


def crossed(tmp_path: Path) -> Analysis:
    cells = [make_cell(nodes=nodes, gpus_per_node=each) for nodes in (1, 2) for each in (1, 2)]
    records = [make_record(cell, repeat) for cell in cells for repeat in (1, 2, 3)]
    for record in records[3:6]:
        record["oversubscribed"] = True
    return collected(tmp_path / "s", records, cells, baseline={"nodes": 1})


def test_a_number_says_which_of_several_baselines_it_is_measured_against(tmp_path: Path) -> None:
    analysis = crossed(tmp_path)
    row = shown(analysis)[0]
    assert [text.rpartition(" against ")[2] for text in row[-2:]] == ["1\N{MULTIPLICATION SIGN}1", "1\N{MULTIPLICATION SIGN}2"]
    rows = csv_rows(TABLES["times"](analysis))
    of_a_node = "1 node \N{MULTIPLICATION SIGN} "
    assert [row["against"] for row in rows] == ["", "", f"{of_a_node}1 process", f"{of_a_node}2 processes"]
    for name in ("speedup", "times"):
        assert "Against: the baseline of a number" in TABLES[name](analysis).caption


def test_one_baseline_needs_no_such_words(tmp_path: Path) -> None:
    analysis = of(tmp_path, [make_cell(nodes=nodes) for nodes in (1, 2)], {"nodes": 1})
    assert "against" not in " ".join(shown(analysis)[0])
    assert "Against" not in TABLES["times"](analysis).caption


def test_the_ideal_line_begins_at_the_baseline_that_efficiency_is_relative_to(tmp_path: Path) -> None:
    analysis = crossed(tmp_path)
    points = [point for points in throughput(analysis)["datasets"].values() for point in points]
    ideal = {(point["part"], point["processes"]): point["value"] for point in points if point["kind"] == "ideal"}
    measured = {point["part"]: point for point in points if point["kind"] == "measured" and point["baseline"]}
    assert {processes for _, processes in ideal} == {1, 2, 4}
    for comparison in analysis.primary:
        if comparison.partner is not None and not comparison.is_baseline:
            base = measured[comparison.partner.cell_id]
            there = ideal[comparison.partner.cell_id, comparison.cell.num_processes]
            assert there == pytest.approx(base["value"] * comparison.cell.num_processes / base["processes"])
