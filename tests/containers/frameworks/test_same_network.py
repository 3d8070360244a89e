"""Every framework trains the network that PyTorch trains: the same first losses, the same parameters at the end, alone and in two ranks."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from containers.frameworks import OWN, framework_folders, load_framework
from containers.models import build
from containers.models.layers import LayerList, with_initial_limits, without_dropout
from tests.containers.frameworks.programs import checksum_of_file, distance, parameters, stopped_and_resumed

pytestmark = pytest.mark.slow
Run = Callable[..., Any]
COMPARED = [name for name in framework_folders() if name != "pytorch" and not load_framework(name).own_order]
OTHERS = [name for name in COMPARED if name in OWN]
"""The others are tested in tests/historic."""
MODELS_OF = {name: set(load_framework(name).supports.models) for name in framework_folders()}
WHOLE = [name for name in COMPARED if {"resnet18", "alexnet-caffe", "googlenet"} <= MODELS_OF[name]]
"""Those that have every kind of layer of networks for images."""
LARGE = ["alexnet", "alexnet-caffe", "vgg16", "googlenet", "inception-v1", "fcn5", "fcn5-synthetic", "fcn8"]
ILL_CONDITIONED = {"inception-v1": (1e-5, 3e-4), "vgg16": (2e-5, 5.2e-5)}
"""Learning rate, and how far losses may be apart.

inception-v1: With 57 batch normalisations at its start, the three losses of PyTorch with layout nhwc are up to 1.6e-4 from its own with
nchw at a rate of 1e-4; here the rate changes the third one by 1.4e-2.

vgg16: Twice the rounding of PyTorch itself, since each of two frameworks may be as far from the exact loss as PyTorch is. Relative
differences of the three losses from those of torch.float64, which starts from the same float32 weights and images:

    PyTorch, nchw                    -8e-8   +1.3e-6  +5e-7
    PyTorch, nhwc                    +3e-7   -6e-8    -2.6e-5
    PyTorch, nchw, without oneDNN    -8e-8   -4e-7    -1.6e-5
    DyNet                            +8e-7   +4.0e-6  -9.5e-6

Two values in a window of a maximum pooling, or a value and the zero of a ReLU, can be nearer to each other than the rounding. One such
choice (in pool4, in the first step of nhwc) moves the gradients of the layers below by 1e-3, and the third loss by 1e-5. The rule of the
optimizer is not the cause: at a rate of 1e-6 DyNet is within 1e-6 in all three steps, and without momentum or weight decay the third loss
of DyNet and of PyTorch with nhwc are again 2e-5 and 3e-5 apart from float64.
"""
DRIVEN = ["jax"]
"""For what slipway_program does alike for all of them, one is enough."""
TWO_STOPPED = ["jax", "paddle"]
"""Whose second rank may be killed here when the first has written the checkpoint; how a supervisor ends ranks is tested elsewhere."""
STEPS = {"warmup": 2, "measured": 6}
Cases = Mapping[str, tuple[str, list[Any]]]


def cases(others: Sequence[str], two_stopped: Sequence[str]) -> Cases:
    """Return the cases of the tests below that each of `others` passes: names of arguments, and values."""
    return {
        "test_lenet_is_the_network_of_pytorch": (
            "name,world",
            [
                pytest.param(name, world, marks=[pytest.mark.long] * (world != (1 if name in WHOLE else 2)))
                for name in others
                for world in (1, 2)
            ],
        ),
        "test_every_kind_of_layer_is_that_of_pytorch": ("name,backend", [(name, "auto") for name in others if name in WHOLE]),
        "test_the_first_losses_of_a_large_network_are_those_of_pytorch": (
            "model,name",
            [(model, name) for model in LARGE for name in others if model in MODELS_OF[name]],
        ),
        "test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been": (
            "name,backend,world",
            [
                *((name, "auto", 1) for name in others),
                *(pytest.param(name, "auto", 2, marks=pytest.mark.long) for name in two_stopped),
            ],
        ),
    }


CASES = cases(OTHERS, TWO_STOPPED)
CASES["test_every_kind_of_layer_is_that_of_pytorch"][1].extend(
    [pytest.param("keras", backend, marks=pytest.mark.long) for backend in ("jax", "torch")],
)
CASES["test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been"][1].append(
    pytest.param("keras", "torch", 1, marks=pytest.mark.long),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take the cases from the module that collects the test: tests/historic has the same tests for other frameworks."""
    found = metafunc.module.CASES.get(metafunc.function.__name__)
    if found is not None:
        metafunc.parametrize(*found)


def test_lenet_is_the_network_of_pytorch(run_program: Run, reference: Run, tmp_path: Path, name: str, world: int) -> None:
    """In CI alone where the test of every kind of layer takes two ranks, and in two ranks where the stopped run is alone."""
    optimizer = {"name": "sgd", "learning_rate": 0.002, "momentum": 0.9, "weight_decay": 0.01}
    layout = load_framework(name).supports.layout[0]
    keys = {"steps": STEPS, "optimizer": optimizer, "layout": layout}
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = run_program(world, framework=name, variables={"TMPDIR": str(temporary)}, **keys)
    assert done.exit_codes == [0] * world, done.stderr
    assert list(temporary.iterdir()) == []
    like = reference(1, **keys)
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
    assert phases == ["init", "warmup", "train", "eval", "checkpoint", "checksum"]
    assert {done.of("run_stop", rank)[0]["checksum"] for rank in range(world)} == {checksum_of_file(done.out / "parameters.safetensors")}


@pytest.mark.parametrize(
    ("name", "backend", "world", "told"),
    [
        ("keras", "torch", 2, {"input_s", "forward_s", "backward_s", "exchange_s", "optimizer_s"}),
        ("jax", "auto", 1, {"input_s"}),
        ("paddle", "auto", 1, {"input_s", "forward_s", "backward_s", "optimizer_s"}),
        ("paddle", "auto", 2, {"input_s", "forward_s", "optimizer_s"}),
    ],
)
def test_a_program_tells_the_parts_of_a_step_that_it_can_part(
    run_program: Run, name: str, backend: str, world: int, told: set[str]
) -> None:
    done = run_program(world, framework=name, backend=backend, save_parameters=False)
    assert done.exit_codes == [0] * world, done.stderr
    for step in (step for rank in range(world) for step in done.of("step", rank)):
        found = {part: seconds for part, seconds in step.items() if part.endswith("_s")}
        assert found.keys() == told
        assert all(seconds >= 0 for seconds in found.values())
        assert sum(found.values()) <= step["seconds"], "parts do not overlap"


def drops_as_others_do(done: Any, like: Any) -> None:
    """Other numbers, so the same only on average; where nothing is dropped any more nearly the same."""
    assert done.exit_codes == [0] * len(done.exit_codes), done.stderr
    assert not np.allclose(done.losses()[:5], like.losses()[:5], rtol=1e-5)
    assert np.mean(done.losses()) == pytest.approx(np.mean(like.losses()), rel=0.03)
    assert done.of("eval")[0]["loss"] == pytest.approx(like.of("eval")[0]["loss"], rel=0.05)


def every_kind(net: LayerList, num_classes: int) -> None:
    """Small, and of every kind of layer that networks for images have: what each framework has its own ways with stands here twice."""
    net.conv("conv1", 8, 5, stride=2, padding=2)
    net.lrn("norm1", size=5, alpha=0.5, beta=0.75, k=2.0)
    net.ceil_pool("pool1", 3, 2)
    start = net.relu("relu1")
    net.conv("left.conv", 8, 3, padding=1, groups=2, bias=False)
    left = net.bn("left.bn", epsilon=1e-3)
    net.continue_from(start)
    right = net.pool("right.max", 3, 1, padding=1)
    net.continue_from(start)
    mean = net.pool("right.mean", 3, 1, padding=1, mode="avg")
    net.add("sum", left, right)
    net.relu("relu2")
    net.concat("joined", "sum", mean, right)
    net.conv("conv2", 16, 3, stride=2, padding=1)
    net.pool("pool2", 3, 2, mode="avg")
    net.flatten("flat")
    net.linear("fc1", 32)
    net.relu("relu3")
    net.dropout("drop", 0.25)
    net.linear("fc2", num_classes)


def network(channels: int, side: int, classes: int) -> dict[str, Any]:
    """`every_kind` as keys of cell.json."""
    net = LayerList(channels, (side, side))
    every_kind(net, classes)
    return {"model_layers": list(with_initial_limits(net.layers)), "model_parameters": sum(layer["parameters"] for layer in net.layers)}


def test_there_is_no_other_kind_of_layer() -> None:
    here = {layer["kind"] for layer in network(3, 72, 3)["model_layers"]} | {"global_pool"}
    models = set.intersection(*(MODELS_OF[name] for name in WHOLE))
    assert here == {layer["kind"] for name in models for layer in build(name, 3, (224, 224), 10).layers}


def test_every_kind_of_layer_is_that_of_pytorch(run_program: Run, reference: Run, name: str, backend: str) -> None:
    """Batch normalisation by each rank's own batch, with the running statistics of rank 0; and the same windows of images, mirrored."""
    optimizer = {"name": "sgd", "learning_rate": 0.001, "momentum": 0.9, "weight_decay": 0.01}
    keys = {
        "global_batch_size": 16,
        "steps": {"warmup": 0, "measured": 5},
        "optimizer": optimizer,
        "augmentation": "crop-flip",
        "crop_size": 64,
    }
    plain = network(3, 64, 3)
    keys |= {**plain, "model_layers": list(without_dropout(plain["model_layers"])), "layout": load_framework(name).supports.layout[0]}
    done = run_program(2, "photos", framework=name, backend=backend, **keys)
    like = reference(2, "photos", **keys)
    assert done.exit_codes == [0, 0], done.stderr
    assert done.losses() == pytest.approx(like.losses(), rel=1e-5)
    assert done.of("eval")[0]["loss"] == pytest.approx(like.of("eval")[0]["loss"], rel=1e-4)
    ours, theirs = parameters(done), parameters(like)
    assert distance(ours, theirs) < 1e-5
    for what in ("running_mean", "running_var"):
        np.testing.assert_allclose(ours[f"left.bn.{what}"], theirs[f"left.bn.{what}"], rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_the_first_losses_of_a_large_network_are_those_of_pytorch(run_program: Run, reference: Run, model: str, name: str) -> None:
    """Without its dropout, for which each framework draws its own numbers."""
    layers = list(without_dropout(build(model, 3, (72, 72), 3).layers))
    rate, apart = ILL_CONDITIONED.get(model, (2e-5, 1e-5))
    optimizer = {"name": "sgd", "learning_rate": rate, "momentum": 0.9, "weight_decay": 0.01}
    keys = {"model": model, "model_layers": layers, "optimizer": optimizer, "layout": load_framework(name).supports.layout[0]}
    keys |= {"global_batch_size": 4, "steps": {"warmup": 0, "measured": 3}, "save_parameters": False}
    done = run_program(1, "photos", framework=name, **keys)
    like = reference(1, "photos", **keys)
    assert done.exit_codes == [0], done.stderr
    assert done.losses() == pytest.approx(like.losses(), rel=apart)
    assert done.of("eval")[0]["loss"] == pytest.approx(like.of("eval")[0]["loss"], rel=10 * apart)
    assert done.of("run_start")[0]["parameters"] == build(model, 3, (72, 72), 3).parameters


def test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been(
    run_program: Run, reference: Run, tmp_path: Path, name: str, backend: str, world: int
) -> None:
    """To the bit, in losses and final parameters. Where it can, with dropout, and images that are moved and mirrored by chance."""
    keys = {"steps": {"warmup": 2, "measured": 58}, "layout": load_framework(name).supports.layout[0]}
    keys |= {"framework": name, "backend": backend}
    keys |= {**network(1, 32, 10), "augmentation": "crop-flip"} if name in WHOLE else {}
    whole = run_program(world, **keys)
    if name in WHOLE and world == 1:
        drops_as_others_do(whole, reference(1, **{key: keys[key] for key in keys.keys() - {"framework", "backend"}}))
    _, rest = stopped_and_resumed(run_program, tmp_path, whole, world, **keys)
    checksums = [{done.of("run_stop", rank)[0]["checksum"] for rank in range(world)} for done in (whole, rest)]
    assert checksums == [{checksum_of_file(whole.out / "parameters.safetensors")}] * 2


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
def test_inference_and_the_cell_as_it_was_given(run_program: Run, reference: Run, name: str) -> None:
    layout = load_framework(name).supports.layout[0]
    done = run_program(1, framework=name, mode="infer", steps={"warmup": 0, "measured": 2}, layout=layout)
    like = reference(1, mode="infer", steps={"warmup": 0, "measured": 2}, layout=layout)
    assert done.exit_codes == [0], done.stderr
    assert done.losses() == pytest.approx(like.losses(), rel=1e-5)
    assert not done.of("checkpoint")
    assert json.loads((done.out / "cell.json").read_text())["mode"] == "infer"


@pytest.mark.parametrize(
    ("backend", "world"),
    [("jax", 1), pytest.param("jax", 2, marks=pytest.mark.long), pytest.param("torch", 1, marks=pytest.mark.long), ("torch", 2)],
)
def test_keras_is_the_same_network_on_each_backend(run_program: Run, reference: Run, backend: str, world: int) -> None:
    """The backend is chosen by the cell."""
    optimizer = {"name": "sgd", "learning_rate": 0.002, "momentum": 0.9, "weight_decay": 0.01}
    keys = {"steps": STEPS, "optimizer": optimizer, "layout": "nhwc"}
    done = run_program(world, framework="keras", backend=backend, **keys)
    assert done.exit_codes == [0] * world, done.stderr
    like = reference(1, **keys)
    assert done.losses()[:5] == pytest.approx(like.losses()[:5], rel=1e-5)
    assert distance(parameters(done), parameters(like)) < 1e-5
    assert done.of("run_start")[0]["provenance"]["keras_backend"] == backend
    assert done.of("eval")[0]["accuracy"] == like.of("eval")[0]["accuracy"]
    norms = [done.of("run_stop", rank)[0]["norm"] for rank in range(world)]
    assert norms == pytest.approx([like.of("run_stop")[0]["norm"]] * world, rel=1e-6)
