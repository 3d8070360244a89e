"""`slipway check-frameworks` on records as they are."""

import json
from typing import Any

import pytest

from tests.workflow.commands.conftest import House

pytestmark = pytest.mark.processes
LOSSES = [[step, 2.3 - 0.1 * step] for step in range(5)]


def prepared(house: House, jax: list[Any] | None, apart: dict[str, list[int]] | None = None) -> None:
    """A study of two frameworks, of which pytorch has run; `jax`: the losses of the other one; `apart`: of each, ranks that differ."""
    study = house.study(base={"repeats": 1}, axes={"batch_size": [32], "nodes": [1], "framework": ["jax", "pytorch"]})
    for run in study.runs:
        losses = jax if run.cell.framework == "jax" else LOSSES
        replicas = {"checksum": "ab", "ranks": 2, "apart": apart[run.cell.framework]} if apart else None
        if losses is not None:
            house.record(run.run_id, "ok", **{"training.first_losses": losses, "training.replicas": replicas})


def test_equal_losses_are_the_same_network(house: House) -> None:
    prepared(house, [[step, loss * (1 + 5e-6)] for step, loss in LOSSES])
    code, out, err = house("check-frameworks")
    assert code == 0, err
    rows = out.splitlines()
    assert rows[1].startswith("lenet, batch 32, 1 node")
    assert rows[1].endswith("the same")
    assert "jax" in rows[1]
    assert rows[2].endswith("the others are compared with it")


def test_another_network_is_named_with_the_first_step_that_differs(house: House) -> None:
    prepared(house, [*LOSSES[:2], [2, 2.2], *LOSSES[3:]])
    code, out, err = house("check-frameworks")
    assert code == 19
    assert "not the same network: step 2, loss 2.2, not 2.1" in out
    assert "small: not the same network: lenet-digits" in err
    code, out, _ = house("check-frameworks", "--json")
    assert code == 19
    told = {one["framework"]: one for one in json.loads(out)["groups"][0]["cells"]}
    assert (told["jax"]["same_network"], told["jax"]["differs_at"], told["pytorch"]["same_network"]) == (False, 2, True)


def test_ranks_that_have_come_apart_are_named(house: House) -> None:
    prepared(house, LOSSES, {"jax": [1], "pytorch": []})
    code, out, err = house("check-frameworks")
    assert code == 19
    assert "other ones on rank 1 of 2" in out.splitlines()[1]
    assert "equal on 2 ranks" in out.splitlines()[2]
    assert "small: ranks that ended with other parameters than the others of their run: lenet-digits" in err
    code, out, _ = house("check-frameworks", "--json")
    assert {one["framework"]: one["replicas"]["apart"] for one in json.loads(out)["groups"][0]["cells"]} == {"jax": [1], "pytorch": []}


def test_of_networks_with_dropout_finished_runs_tell_nothing(house: House) -> None:
    study = house.study(
        datasets={"digits": {"source": "sklearn-digits", "size": 64}},
        base={"repeats": 1, "model": "alexnet"},
        axes={"model": None, "batch_size": [32], "nodes": [1], "framework": ["jax", "pytorch"]},
    )
    for run in study.runs:
        house.record(run.run_id, "ok", **{"training.first_losses": LOSSES})
    code, out, err = house("check-frameworks")
    assert code == 19
    assert out.count("cannot be told: each framework draws its own dropout") == 2
    assert "trains the same network without: alexnet" in err
    assert "`dropout: false` trains the same network without" in err
    code, out, _ = house("check-frameworks", "--json")
    assert {one["same_network"] for one in json.loads(out)["groups"][0]["cells"]} == {None}


def test_what_has_not_run_is_not_known(house: House) -> None:
    prepared(house, None)
    code, out, err = house("check-frameworks")
    assert code == 19
    assert "not known: no run has finished" in out
    assert f"no finished run (slipway run {house.path}" in err


def test_a_study_of_one_framework_has_nothing_to_compare(house: House) -> None:
    code, _, err = house("check-frameworks")
    assert code == 10
    assert "no two cells differ only in their framework" in err
