"""Every framework trains the network that PyTorch trains: the same first losses, the same parameters at the end, alone and in two ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from containers.frameworks import FRAMEWORKS, load_framework
from tests.containers.frameworks.stopping import stop_at

pytestmark = pytest.mark.slow
Run = Callable[..., Any]
OTHERS = [name for name in FRAMEWORKS if name != "pytorch"]
DRIVEN = ["jax"]
"""For what slipway_program does alike for all of them, one is enough."""
STEPS = {"warmup": 2, "measured": 6}


def parameters(done: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = load_file(done.out / "parameters.safetensors")
    return loaded


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Relative distance of two networks, all parameters taken as one vector."""
    assert {name: array.shape for name, array in one.items()} == {name: array.shape for name, array in other.items()}
    squares = sum(float(np.square(one[name].astype(np.float64) - other[name]).sum()) for name in one)
    return math.sqrt(squares / sum(float(np.square(array.astype(np.float64)).sum()) for array in one.values()))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("world", [1, 2])
def test_lenet_is_the_network_of_pytorch(run_program: Run, tmp_path: Path, name: str, world: int) -> None:
    optimizer = {"name": "sgd", "learning_rate": 0.002, "momentum": 0.9, "weight_decay": 0.01}
    layout = load_framework(name).supports.layout[0]
    keys = {"steps": STEPS, "optimizer": optimizer, "layout": layout}
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = run_program(world, framework=name, variables={"TMPDIR": str(temporary)}, **keys)
    assert done.exit_codes == [0] * world, done.stderr
    assert list(temporary.iterdir()) == []
    like = run_program(1, **keys)
    assert done.losses()[:5] == pytest.approx(like.losses()[:5], rel=1e-5)
    assert distance(parameters(done), parameters(like)) < 1e-5
    (start, expected) = (run.of("run_start")[0] for run in (done, like))
    assert {key: start[key] for key in ("rank", "device", "parameters")} == {key: expected[key] for key in ("rank", "device", "parameters")}
    assert (start["framework"], start["world_size"]) == (name, world)
    assert done.of("eval")[0]["accuracy"] == like.of("eval")[0]["accuracy"]
    assert done.of("eval")[0]["loss"] == pytest.approx(like.of("eval")[0]["loss"], rel=1e-4)
    norms = [done.of("run_stop", rank)[0]["norm"] for rank in range(world)]
    assert norms == pytest.approx([like.of("run_stop")[0]["norm"]] * world, rel=1e-6)
    phases = list(dict.fromkeys(event["phase"] for event in done.of("phase")))
    assert phases == ["init", "warmup", "train", "eval", "checkpoint"]


@pytest.mark.parametrize("name", [name for name in OTHERS if "resnet18" in load_framework(name).supports.models])
def test_a_residual_network_is_that_of_pytorch(run_program: Run, name: str) -> None:
    """Batch normalisation by each rank's own batch, with the running statistics of rank 0."""
    spec = load_framework(name)
    keys = {"model": "resnet18", "global_batch_size": 8, "steps": {"warmup": 0, "measured": 3}, "layout": spec.supports.layout[0]}
    done, like = (run_program(2, "photos", framework=framework, **keys) for framework in (name, "pytorch"))
    assert done.exit_codes == [0, 0], done.stderr
    assert done.losses() == pytest.approx(like.losses(), rel=1e-4)
    ours, theirs = parameters(done), parameters(like)
    assert distance(ours, theirs) < 1e-4
    for name in ("bn1.running_mean", "stage2.block1.shortcut.bn.running_var"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been(run_program: Run, tmp_path: Path, name: str) -> None:
    keys = {"steps": {"warmup": 2, "measured": 58}, "layout": load_framework(name).supports.layout[0], "framework": name}
    whole = run_program(1, **keys)
    stop = {"SLIPWAY_STOP": str(tmp_path / f"out-{len(list(tmp_path.iterdir()))}" / "stop")}
    stopped = run_program(1, variables=stop, watch=stop_at(3), **keys)
    assert stopped.exit_codes == [43], stopped.stderr
    (event,) = stopped.of("checkpoint")
    assert event["resumable"]
    assert event["step"] > 3
    resumed = run_program(1, variables={"SLIPWAY_CHECKPOINT": str(stopped.out / event["file"])}, **keys)
    assert resumed.exit_codes == [0], resumed.stderr
    assert stopped.losses() + resumed.losses() == whole.losses()


@pytest.mark.parametrize("name", DRIVEN)
def test_a_loss_that_is_not_finite_and_a_wrong_count_are_named(run_program: Run, name: str) -> None:
    layout = load_framework(name).supports.layout[0]
    optimizer = {"name": "sgd", "learning_rate": 1e6, "momentum": 0.9, "weight_decay": 0.0}
    done = run_program(1, framework=name, optimizer=optimizer, steps={"warmup": 0, "measured": 50}, layout=layout)
    assert done.exit_codes == [42], done.stderr
    assert done.of("error")[0]["kind"] == "nan"
    done = run_program(1, framework=name, model_parameters=5, layout=layout)
    assert done.exit_codes == [1]
    assert "lenet has 656080 parameters here and 5 in the cell" in done.of("error")[0]["message"]


@pytest.mark.parametrize("name", DRIVEN)
def test_inference_and_the_cell_as_it_was_given(run_program: Run, name: str) -> None:
    layout = load_framework(name).supports.layout[0]
    done = run_program(1, framework=name, mode="infer", steps={"warmup": 0, "measured": 2}, layout=layout)
    like = run_program(1, mode="infer", steps={"warmup": 0, "measured": 2}, layout=layout)
    assert done.exit_codes == [0], done.stderr
    assert done.losses() == pytest.approx(like.losses(), rel=1e-5)
    assert not done.of("checkpoint")
    assert json.loads((done.out / "cell.json").read_text())["mode"] == "infer"
