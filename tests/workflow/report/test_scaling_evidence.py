"""The one page for an application: the knee by its closed form, the sentences, and its HTML."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import collected, make_cell, make_record
from tests.workflow.report.test_cost_table import load
from tests.workflow.report.test_page import Parsed
from workflow.report.analysis import Analysis
from workflow.report.cells import interval
from workflow.report.outputs import tables_of
from workflow.report.plots import GOOD_EFFICIENCY
from workflow.report.prediction import Point, crossing, merged, why_no_model
from workflow.report.scaling_evidence import evidence, knee, to_html
from workflow.report.table_type import NONE, significant


def study(
    path: Path, growth: float, *, nodes: Sequence[int] = (1, 2, 4), spread: float = 0.0, each: int = 4, **axes: Sequence[Any]
) -> Analysis:
    """Steps of 0.2 s times 1 + growth (1 - 1/n), of runs that differ by so much."""
    names = axes.get("model", ["lenet"])
    cells = [
        make_cell(model=model, nodes=n, gpus_per_node=each, device="cuda", batch_size=size)
        for model in names
        for size in axes.get("batch_size", [32])
        for n in nodes
    ]
    records = [
        make_record(
            cell,
            repeat,
            step_s=0.2 * (1 + growth * (1 - 1 / cell["nodes"])) * (1 + spread * (repeat - 2) * (cell["nodes"] > 1)),
            scheduler="slurm",
        )
        for cell in cells
        for repeat in (1, 2, 3)
    ]
    return collected(path / "results" / "s", records, cells)


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ([], None),
        ([(1, 1.0), (2, 0.9)], None),
        ([(1, 1.0), (2, 0.75)], None),
        ([(1, 1.0), (4, 0.5)], 2.0),
        ([(1, 1.0), (2, 0.8), (8, 0.6)], 2 * 4**0.25),
        ([(4, 0.7), (8, 0.9)], 4.0),
        ([(1, 1.0), (2, 0.7), (4, 0.9), (8, 0.1)], 2 ** (0.25 / 0.3)),
        ([(4, 0.8), (4, 0.7)], 4.0),
    ],
)
def test_a_curve_crosses_where_the_line_between_two_points_does(points: list[tuple[int, float]], found: float | None) -> None:
    assert crossing(points, GOOD_EFFICIENCY) == (None if found is None else pytest.approx(found))


def test_a_knee_has_the_interval_of_the_efficiency(tmp_path: Path) -> None:
    (line,) = study(tmp_path, 1.0, spread=0.02).lines.values()
    about, low, high = (value or 0.0 for value in knee(line))
    assert about == pytest.approx(4 * 2**0.75, rel=1e-3), "100 % on 4 GPUs, 2/3 on 8"
    assert 0 < low < about < high
    (exact,) = study(tmp_path / "exact", 0.1).lines.values()
    assert knee(exact) == [None, None, None]


def test_the_sentences(tmp_path: Path) -> None:
    found = dict(evidence(study(tmp_path, 1.0), 3.6e6).sections)
    (scales,) = found["How far it scales"]
    assert scales == (
        "lenet · batch 32: the efficiency falls below 75 % at about 6.73 GPUs. The largest measured size that is not below is 1 node × 4 "
        "GPUs (100.0 %)."
    )
    used, costs = found["What it costs"]
    run_s = {n: 215 * 0.2 * (2 - 1 / n) + 3 + 2.0 + 0.2 + 0.6 + 0.1 for n in (1, 2, 4)}
    assert used == f"The runs of this study took {math.fsum(3 * 4 * n * run_s[n] for n in run_s) / 3600:.2f} GPU hours."
    assert costs.startswith("lenet · batch 32: 3,600,000 samples take 1.56 h on 4 GPUs, 6.25 GPU hours. Evaluation, ")
    assert "held 90.2 % of the true values" in found["What more nodes would bring"][0]
    assert any(text.startswith("Software: framework_version 2.13.0") for text in found["How it was measured"])
    good = dict(evidence(study(tmp_path / "good", 0.1)).sections)
    assert "does not fall below 75 % up to 16 GPUs (93.0 %" in good["How far it scales"][0]
    alone = dict(evidence(study(tmp_path / "alone", 1.0, nodes=(1, 2), each=1)).sections)
    assert "h on 1 GPU, " in alone["What it costs"][1]
    alone = dict(evidence(study(tmp_path / "one", 0.1, nodes=(1,))).sections)
    assert alone["What more nodes would bring"] == (
        "lenet · batch 32: nothing is predicted: no point beyond the first node: what the network costs is not seen inside of a node.",
    )


def test_the_page_has_all_sections_and_no_script(tmp_path: Path) -> None:
    found = evidence(study(tmp_path, 0.5))
    page = Parsed(to_html(found))
    assert "script" not in page.tags
    assert page.tags.count("h2") == len(found.sections)


def test_a_study_of_many_lines_shows_the_first(tmp_path: Path) -> None:
    names = ["lenet", "alexnet", "resnet18", "resnet50"]
    found = evidence(study(tmp_path, 0.5, nodes=(1, 2, 4, 8, 16, 32), model=names, batch_size=[32, 64]))
    assert "The first 3 of 8 lines of the study are shown." in dict(found.sections)["How far it scales"]
    assert "The first 16 of 18 rows: table `scaling` has all." in found.table.caption


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    cell = make_cell(framework="<b>&\"'")
    found = evidence(collected(tmp_path / "results" / "s", [make_record(cell)], [cell], repeats=1, study="<i>s</i>"))
    assert "<i>" not in to_html(found)


def test_a_study_without_a_measurement_has_a_page(tmp_path: Path) -> None:
    cell = make_cell()
    found = evidence(collected(tmp_path / "results" / "s", [], [cell], repeats=1))
    assert "No run was measured." in to_html(found)


def test_a_character_that_xml_has_not_keeps_no_page_back(tmp_path: Path) -> None:
    cell = make_cell()
    record = make_record(cell)
    record["nodes"][0]["cpu_model"] = "CPU \uffff\ufffe"
    found = evidence(collected(tmp_path / "results" / "s", [record], [cell], repeats=1))
    assert "CPU \\uffff\\ufffe" in to_html(found)


def test_numbers_that_no_machine_has_keep_no_table_back(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes) for nodes in (1, 2, 4)]
    records = [make_record(cell, repeat, step_s=0.1) for cell in cells for repeat in (1, 2, 3)]
    for number, record in enumerate(records):
        for node in record["nodes"]:
            node["load"] = load(package_j=(1e15, 5e-324)[number % 2], rapl="read")
        record["performance"]["window_s"] = (5e-324, 1e15, 1e-12)[number % 3]
        record["performance"]["samples_per_s"] = (1e15, 5e-324, 1e-12)[number // 3]
    analysis = collected(tmp_path / "results" / "s", records, cells)
    assert dict(tables_of(analysis))
    assert to_html(evidence(analysis))
    assert significant(math.inf) == significant(math.nan) == NONE
    assert interval(300.0, 200.0, 2, 3).high == interval(900.0, 0.0, 2, 1).value < 1e31
    assert "times" in str(why_no_model(merged([Point(1, 1e18, 0.0), Point(2, 1e-9, 0.0), Point(4, 1e18, 0.0)])))
