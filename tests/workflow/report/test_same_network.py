"""Which cells differ only in their framework, and whether their first losses are the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.study.studies import changed, load
from workflow.report.same_network import compare, first_difference, groups_of
from workflow.run.record.kinds import NotBelieved
from workflow.run.record.losses import first_losses
from workflow.study.cell import Cell

LOSSES = {step: 2.3 - 0.1 * step for step in range(5)}


def cells(tmp_path: Path, **axes: Any) -> tuple[Cell, ...]:
    study = changed(axes={"batch_size": [32], "framework": ["jax", "pytorch"], **axes})
    return load(tmp_path, study).cells


def test_cells_that_differ_only_in_their_framework_are_a_group(tmp_path: Path) -> None:
    groups = groups_of(cells(tmp_path))
    assert [[cell.framework for cell in group] for group in groups] == [["jax", "pytorch"]] * 2
    assert [{cell.nodes for cell in group} for group in groups] == [{1}, {2}]
    assert groups_of(cells(tmp_path, framework=["pytorch"], layout=["nchw", "nhwc"])) == []


def test_the_layout_in_memory_is_no_part_of_a_network(tmp_path: Path) -> None:
    found = cells(tmp_path, nodes=[1], layout=["nchw", "nhwc"])
    assert [len(group) for group in groups_of(found)] == [4]


@pytest.mark.parametrize(
    ("change", "expected"),
    [({}, None), ({3: 2.0 * (1 + 9e-6)}, None), ({3: 2.0 * (1 + 2e-5)}, 3), ({0: 9.0, 4: 9.0}, 0), ({4: None}, 4)],
)
def test_the_first_step_that_differs_is_told(change: Mapping[int, float | None], expected: int | None) -> None:
    losses = {step: loss for step, loss in {**LOSSES, **change}.items() if loss is not None}
    assert first_difference(losses, LOSSES) == expected
    assert first_difference(LOSSES, losses) == expected


def test_others_are_compared_with_pytorch_or_with_the_first_that_ran(tmp_path: Path) -> None:
    jax, torch = cells(tmp_path, nodes=[1])
    group = compare([jax, torch], {torch.cell_id: LOSSES, jax.cell_id: {**LOSSES, 2: 7.0}})
    assert group.reference is not None
    assert group.reference.cell == torch
    assert [(one.cell, one.differs_at) for one in group.cells] == [(jax, 2), (torch, None)]
    group = compare([jax, torch], {jax.cell_id: LOSSES})
    assert group.reference is not None
    assert group.reference.cell == jax
    assert [one.losses for one in group.cells] == [LOSSES, None]
    assert compare([jax, torch], {}).reference is None


def test_the_first_losses_of_a_record() -> None:
    pairs = [[step, loss] for step, loss in LOSSES.items()]
    assert first_losses({"training": {"first_losses": pairs, "losses": []}}) == LOSSES
    earlier = {"training": {"losses": [*pairs, [5, 1.0], [9, 0.5]]}}
    assert first_losses(earlier) == LOSSES
    assert first_losses({"training": None}) == {}
    with pytest.raises(NotBelieved, match=r"training.first_losses: found \[0, 'x'\], expected"):
        first_losses({"training": {"first_losses": [[0, "x"]]}})
