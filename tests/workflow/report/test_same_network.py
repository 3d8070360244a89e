"""Which cells differ only in their framework, and whether their first losses are the same."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import collected, failed, make_cell, make_record, scaling_cells
from tests.workflow.run.valid import validate_record
from tests.workflow.study.studies import changed, load
from workflow.report import same_network, study_tables
from workflow.report.analysis import Analysis
from workflow.report.page import page
from workflow.report.same_network import FirstRun, Group, Losses, first_difference, groups_of, has_random_dropout, to_json, trainer_name
from workflow.run.record.rate import first_losses
from workflow.study.cell import Cell

LOSSES = {step: 2.3 - 0.1 * step for step in range(5)}


def cells(tmp_path: Path, **axes: Any) -> list[Cell]:
    study = changed(axes={"batch_size": [32], "framework": ["jax", "pytorch"], **axes})
    return list(load(tmp_path, study).cells)


def compare(found: Sequence[Cell], losses: Mapping[str, Losses]) -> Group:
    """By the losses alone: of the ranks nothing is told."""
    return same_network.compare_losses(found, {name: FirstRun(losses=told) for name, told in losses.items()})


def test_cells_that_differ_only_in_their_framework_are_a_group(tmp_path: Path) -> None:
    groups = groups_of(cells(tmp_path))
    assert [[cell.framework for cell in group] for group in groups] == [["jax", "pytorch"]] * 2
    assert [{cell.nodes for cell in group} for group in groups] == [{1}, {2}]
    assert groups_of(cells(tmp_path, framework=["pytorch"], layout=["nchw", "nhwc"])) == []


def test_the_layout_in_memory_is_no_part_of_a_network(tmp_path: Path) -> None:
    found = cells(tmp_path, nodes=[1], layout=["nchw", "nhwc"])
    assert [len(group) for group in groups_of(found)] == [4]


def test_what_keras_computes_with_is_no_part_of_a_network(tmp_path: Path) -> None:
    (found,) = groups_of([replace(cell, backend="jax") if cell.framework == "jax" else cell for cell in cells(tmp_path, nodes=[1])])
    assert [trainer_name(cell) for cell in found] == ["jax (jax)", "pytorch"]


def test_of_a_framework_that_reads_by_itself_only_step_0_is_compared(tmp_path: Path) -> None:
    keys = {"axes": {"batch_size": [32], "nodes": [1]}, "datasets": {"digits": {"source": "sklearn-digits", "size": 32, "layout": "caffe"}}}
    rows = [{"framework": "caffe", "reader": reader} for reader in ("slipway", "native")]
    (found,) = groups_of(load(tmp_path, changed(**keys, zip=rows)).cells)
    assert [trainer_name(cell) for cell in found] == ["caffe", "caffe (native reader)"]
    theirs, own = (cell.cell_id for cell in found)
    assert [one.differs_at for one in compare(found, {theirs: LOSSES, own: {**LOSSES, 1: 9.0}}).cells] == [None, None]
    assert [one.differs_at for one in compare(found, {theirs: LOSSES, own: {**LOSSES, 0: 9.0}}).cells] == [None, 0]


def test_strategies_are_compared_with_plain_data_parallelism(tmp_path: Path) -> None:
    (found,) = groups_of(cells(tmp_path, nodes=[1], framework=["pytorch"], strategy=["fsdp2", "ddp"]))
    assert [trainer_name(cell) for cell in found] == ["pytorch (fsdp2)", "pytorch"]
    group = compare(found, {cell.cell_id: LOSSES for cell in found})
    assert group.reference.cell == found[1]


@pytest.mark.parametrize(
    ("precision", "apart", "expected"), [("bf16", 8e-3, None), ("bf16", 2e-2, 2), ("fp16", 1e-3, None), ("fp32", 2e-5, 2)]
)
def test_losses_may_lie_apart_as_far_as_numbers_are_rounded(tmp_path: Path, precision: str, apart: float, expected: int | None) -> None:
    jax, torch = (replace(cell, precision=precision) for cell in cells(tmp_path, nodes=[1]))
    group = compare([jax, torch], {torch.cell_id: LOSSES, jax.cell_id: {**LOSSES, 2: LOSSES[2] * (1 + apart)}})
    assert group.cells[0].differs_at == expected


@pytest.mark.parametrize(
    ("change", "expected"), [({}, None), ({3: 2.0 * (1 + 9e-6)}, None), ({3: 2.0 * (1 + 2e-5)}, 3), ({0: 9.0, 4: 9.0}, 0), ({4: None}, 4)]
)
def test_the_first_step_that_differs_is_told(change: Mapping[int, float | None], expected: int | None) -> None:
    losses = {step: loss for step, loss in {**LOSSES, **change}.items() if loss is not None}
    assert first_difference(losses, LOSSES) == expected
    assert first_difference(LOSSES, losses) == expected


def test_others_are_compared_with_pytorch_or_with_the_first_that_ran(tmp_path: Path) -> None:
    jax, torch = cells(tmp_path, nodes=[1])
    group = compare([jax, torch], {torch.cell_id: LOSSES, jax.cell_id: {**LOSSES, 2: 7.0}})
    assert group.reference.cell == torch
    assert [(one.cell, one.differs_at) for one in group.cells] == [(jax, 2), (torch, None)]
    group = compare([jax, torch], {jax.cell_id: LOSSES})
    assert group.reference.cell == jax
    assert [one.losses for one in group.cells] == [LOSSES, None]
    assert compare([jax, torch], {}).reference is None


@pytest.mark.parametrize(("model", "more", "told"), [("alexnet", {}, False), ("alexnet", {"dropout": False}, True), ("lenet", {}, True)])
def test_of_networks_with_dropout_losses_tell_nothing(tmp_path: Path, model: str, more: dict[str, Any], told: bool) -> None:
    found = [replace(cell, model=model, **more) for cell in cells(tmp_path, nodes=[1])]
    group = compare(found, {found[0].cell_id: LOSSES, found[1].cell_id: {**LOSSES, 0: 9.0}})
    assert group.is_compared == told
    assert [one.differs_at for one in group.cells] == ([0, None] if told else [None, None])
    assert [one["same_network"] for one in to_json(group)["cells"]] == ([False, True] if told else [None, None])
    assert has_random_dropout(replace(found[0], mode="infer")) is False


def test_the_first_losses_of_a_record() -> None:
    pairs = [[step, loss] for step, loss in LOSSES.items()]
    cell = make_cell()
    now = make_record(cell, **{"training.first_losses": pairs, "training.losses": []})
    earlier = make_record(cell, **{"training.losses": [*pairs, [5, 1.0], [9, 0.5]]})
    assert [first_losses(validate_record(record)) for record in (now, earlier, failed(cell))] == [LOSSES, LOSSES, {}]


OTHER = [[step, loss if step < 3 else 9.0] for step, loss in LOSSES.items()]


def analysis(tmp_path: Path, jax: Any, nodes: tuple[int, ...] = (1, 2)) -> Analysis:
    """Two frameworks on 1 and 2 nodes; `jax`: the first losses of one of them."""
    records = []
    for cell in scaling_cells(framework=["pytorch", "jax"], nodes=nodes):
        losses = jax if cell["framework"] == "jax" else [[step, loss] for step, loss in LOSSES.items()]
        records += [make_record(cell, repeat, **{"training.first_losses": losses}) for repeat in (1, 2, 3)]
    return collected(tmp_path / "results", records)


def test_tables_and_page_mark_what_is_not_the_same_network(tmp_path: Path) -> None:
    found = analysis(tmp_path, OTHER)
    assert {cell.cell.framework for cell in found.cells if "losses" in cell.marks} == {"jax"}
    assert {one.cell.cell.framework for one in found.comparisons if "losses" in one.marks} == {"jax"}
    for table in (study_tables.speedup(found), study_tables.times(found), study_tables.dlbench(found)):
        assert "losses" in [mark for _, mark, _ in table.footnotes()], table.name
    assert "losses: the losses of the first five steps differ" in page(found, {})


def test_a_speed_up_against_another_network_says_so(tmp_path: Path) -> None:
    """The baseline is the one that differs: its row has the mark, and what is measured against it the mark `baseline`."""
    records = [
        make_record(cell, repeat, **{"training.first_losses": OTHER if cell["framework"] == "jax" else [[0, 2.3], [3, 2.0]]})
        for cell in scaling_cells(framework=["pytorch", "jax"], nodes=[1])
        for repeat in (1, 2, 3)
    ]
    found = collected(tmp_path / "results", records, baseline={"framework": "jax"})
    marks = {one.cell.cell.framework: one.marks for one in found.primary}
    assert "losses" in marks["jax"]
    assert "baseline" in marks["pytorch"]


@pytest.mark.parametrize("jax", [[[step, loss * (1 + 5e-6)] for step, loss in LOSSES.items()], None, []])
def test_nothing_is_marked_where_losses_are_equal_or_not_told(tmp_path: Path, jax: Any) -> None:
    found = analysis(tmp_path, jax, nodes=(1,))
    assert not any("losses" in cell.marks for cell in found.cells)
