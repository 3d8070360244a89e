"""`slipway check-frameworks --run`: what its short runs are, and what stays of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.frameworks.programs import interpreter
from tests.workflow.commands.conftest import House
from tests.workflow.test_examples import SITE, slipway
from workflow.commands.check_frameworks import plan_short_runs
from workflow.study.study import load_study

AXES = {"batch_size": [32], "nodes": [1, 2], "framework": ["jax", "pytorch"]}


def test_short_runs_are_of_the_same_cells_for_five_steps(house: House) -> None:
    study = house.study(axes=AXES, base={"repeats": 3, "seed": 7, "optimizer": {"learning_rate": 0.02}})
    plan = plan_short_runs(study, study.cells)
    path = house.root / "elsewhere" / "short.yaml"
    path.parent.mkdir()
    path.write_text(json.dumps(plan.study))
    short = load_study(path, str(house.site), {})
    assert plan.cells == tuple((cell.cell_id,) for cell in study.cells)
    assert len(short.runs) == len(study.cells)
    assert (short.limits, short.datasets) == (study.limits, study.datasets)
    for cell, before in zip(short.cells, study.cells, strict=True):
        assert (cell.steps, cell.save_parameters, cell.dropout) == ({"warmup": 0, "measured": 5, "total": 5}, False, False)
        same = ("cell_id", "steps", "save_parameters", "dropout")
        assert {**cell.to_json(), **dict.fromkeys(same)} == {**before.to_json(), **dict.fromkeys(same)}


def test_cells_that_differ_in_their_length_alone_need_one_short_run(house: House) -> None:
    study = house.study(axes={**AXES, "nodes": [1], "steps": [{"measured": 50}, {"measured": 100}]})
    plan = plan_short_runs(study, study.cells)
    assert [len(ids) for ids in plan.cells] == [2, 2]
    assert {cell_id for ids in plan.cells for cell_id in ids} == {cell.cell_id for cell in study.cells}


def test_another_study_file_has_other_short_runs(house: House) -> None:
    names = set()
    for seed in (1, 2):
        study = house.study(axes=AXES, base={"seed": seed})
        names.add(plan_short_runs(study, study.cells).study["study"])
    assert len(names) == 2


def frameworks(place: Path, **keys: Any) -> Path:
    """A study of two frameworks, with its site beside it."""
    (place / "site.yaml").write_text(SITE)
    study = {
        "study": "frameworks",
        "datasets": {"digits": {"source": "sklearn-digits", "size": 32, "shards": 2}},
        "base": {"dataset": "digits", "model": "lenet", "layout": "nhwc", "batch_size": 32},
        "axes": {"framework": ["pytorch", "jax"]},
        **keys,
    }
    (place / "study.yaml").write_text(yaml.safe_dump(study))
    return place / "study.yaml"


@pytest.mark.slow
def test_short_runs_tell_the_losses_and_leave_nothing(tmp_path: Path) -> None:
    interpreter("jax")
    path = frameworks(tmp_path)
    done = slipway("check-frameworks", path, tmp_path, "--run", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (group,) = json.loads(done.stdout)["groups"]
    assert [(one["framework"], one["same_network"]) for one in group["cells"]] == [("pytorch", True), ("jax", True)]
    assert "frameworks: 2 short runs of 5 steps in" in done.stderr
    assert list((tmp_path / "storage" / "results").iterdir()) == []


@pytest.mark.slow
def test_short_runs_that_fail_stay_and_are_named(tmp_path: Path) -> None:
    interpreter("jax")
    path = frameworks(tmp_path, limits={"walltime": "1s"})
    done = slipway("check-frameworks", path, tmp_path, "--run")
    assert done.returncode == 19, done.stdout + done.stderr
    assert "not known: no run has finished" in done.stdout
    (left,) = (tmp_path / "storage" / "results").iterdir()
    assert f"frameworks: 2 of 2 short runs told no loss; `slipway status {left}/short-runs.yaml --site" in done.stderr
    assert f"they stay in {left}, and the same command tries them again" in done.stderr
