"""The PyTorch program as it is started: real training in real processes, on small data."""

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from containers.frameworks import load_framework
from containers.models import MODELS, of_tokens
from tests.containers.frameworks.preloaded import Preloaded
from tests.containers.frameworks.programs import Rank, distance, parameters
from tests.gpu import NEEDS_GPU

pytestmark = pytest.mark.slow
EVENTS = {  # docs/reference/record.md
    "run_start": {"rank", "world_size", "framework", "framework_version", "device", "hostname", "parameters", "provenance"},
    "phase": {"phase"},
    "step": {"step", "measured", "seconds", "input_s", "samples", "loss", "loss_scope"},
    "eval": {"split", "loss", "accuracy", "samples"},
    "checkpoint": {"file", "bytes"},
    "run_stop": {"steps", "parameters", "norm", "max_memory_allocated_bytes", "train_s", "eval_s"},
}
Run = Callable[..., Any]


def test_one_two_and_four_ranks_train_the_same_network(run_program: Run) -> None:
    """Same seed, same global batch: the same losses and parameters, up to the rounding of the sums."""
    runs = {world: run_program(world, global_batch_size=32, steps={"warmup": 5, "measured": 25}) for world in (1, 2, 4)}
    for world, run in runs.items():
        assert run.exit_codes == [0] * world, run.stderr
        assert run.losses()[:5] == pytest.approx(runs[1].losses()[:5], rel=1e-6)
        assert run.losses() == pytest.approx(runs[1].losses(), rel=1e-4)
        assert distance(parameters(runs[1]), parameters(run)) <= 1e-5
        assert run.of("eval")[0]["samples"] == runs[1].of("eval")[0]["samples"]
        assert run.of("eval")[0]["loss"] == pytest.approx(runs[1].of("eval")[0]["loss"], rel=1e-4)
    again = run_program(1, global_batch_size=32, steps={"warmup": 5, "measured": 25})
    assert again.losses() == runs[1].losses(), "one rank, same seed: bit by bit"


def test_windows_of_images_are_the_same_for_one_and_two_ranks(run_program: Run) -> None:
    """Of 28 of 32 pixels: random ones to train on, those in the middle to evaluate; the record says what copied them."""
    keys = {"augmentation": "crop-flip", "steps": {"warmup": 0, "measured": 6}}
    one, two = (run_program(world, crop_size=28, **keys) for world in (1, 2))
    assert (one.exit_codes, two.exit_codes) == ([0], [0, 0]), one.stderr
    assert two.losses() == pytest.approx(one.losses(), rel=1e-4)
    assert two.of("eval")[0]["loss"] == pytest.approx(one.of("eval")[0]["loss"], rel=1e-3)
    assert one.of("run_start")[0]["parameters"] == 431080
    assert one.of("run_start")[0]["provenance"]["pixels_copied_by"].startswith(("compiled", "numpy ("))
    assert one.losses() != run_program(1, crop_size=28, **{**keys, "augmentation": "none"}).losses()


def test_lenet_learns_the_digits(run_program: Run) -> None:
    optimizer = {"name": "sgd", "learning_rate": 0.005, "momentum": 0.9, "weight_decay": 0.0}
    done = run_program(1, steps=None, epochs=5, optimizer=optimizer)
    assert done.exit_codes == [0], done.stderr
    losses, (evaluation,) = done.losses(), done.of("eval")
    assert evaluation["accuracy"] >= 0.95
    assert np.mean(losses[-20:]) < 0.1 < 2 < losses[0]

    given = {"SLIPWAY_PARAMETERS": str(done.out / "parameters.safetensors")}
    loaded = run_program(2, mode="infer", variables=given, steps={"warmup": 0, "measured": 1})
    assert loaded.exit_codes == [0, 0], loaded.stderr
    assert loaded.of("eval")[0]["accuracy"] == evaluation["accuracy"]
    assert loaded.of("eval")[0]["loss"] == pytest.approx(evaluation["loss"], rel=1e-5)
    assert loaded.of("run_stop")[0]["norm"] == done.of("run_stop")[0]["norm"]


def test_the_events_of_a_run(run_program: Run) -> None:
    done = run_program(2, global_batch_size=16, steps={"warmup": 2, "measured": 3, "total": 7})
    assert done.exit_codes == [0, 0], done.stderr
    for rank in (0, 1):
        kinds = [event["event"] for event in done.events[rank]]
        assert kinds[0] == "phase"
        assert kinds[-1] == "run_stop"
        for event in done.events[rank]:
            assert EVENTS[event["event"]] | {"event", "time", "monotonic_ns"} <= event.keys()
        steps = done.of("step", rank)
        assert [step["step"] for step in steps] == list(range(7))
        assert [step["measured"] for step in steps] == [False, False, True, True, True, False, False]
        assert all(step["samples"] == 8 and 0 < step["input_s"] < step["seconds"] and math.isfinite(step["loss"]) for step in steps)
        parts = ("input_s", "copy_s", "forward_s", "backward_s", "exchange_s", "optimizer_s")
        assert all(step[part] >= 0 for step in steps for part in parts)
        assert all(sum(step[part] for part in parts) <= step["seconds"] for step in steps), "parts do not overlap"
        stop = done.of("run_stop", rank)[0]
        assert stop["window_steps_s"] == pytest.approx(sum(step["seconds"] for step in steps if step["measured"]))
        assert 0 < stop["window_steps_s"] <= stop["window_wall_s"] < stop["train_s"]
        start = done.of("run_start", rank)[0]
        assert (start["rank"], start["world_size"], start["framework"], start["parameters"]) == (rank, 2, "pytorch", 656_080)
        assert start["provenance"]["threads"] == 1
        assert start["provenance"]["backend"] == "gloo"
    phases = list(dict.fromkeys(event["phase"] for event in done.of("phase")))
    assert phases == ["init", "warmup", "train", "eval", "checkpoint", "checksum"]
    assert done.of("checkpoint")[0]["bytes"] == (done.out / "parameters.safetensors").stat().st_size
    assert done.of("run_stop", 0)[0]["norm"] == done.of("run_stop", 1)[0]["norm"]
    assert not done.of("eval", 1)


def test_the_parameters_are_named_by_layer(run_program: Run) -> None:
    done = run_program(1, "photos", model="resnet18", global_batch_size=4, steps={"warmup": 0, "measured": 1})
    assert done.exit_codes == [0], done.stderr
    arrays = parameters(done)
    assert arrays["stage1.block1.conv1.weight"].shape == (64, 64, 3, 3)
    assert arrays["stage2.block1.shortcut.bn.running_var"].shape == (128,)
    assert arrays["fc.bias"].shape == (3,)
    trainable = sum(array.size for name, array in arrays.items() if ".running_" not in name)
    assert trainable == done.of("run_start")[0]["parameters"]


@pytest.mark.parametrize("data", ["digits", "text"])
def test_input_from_memory_is_the_first_batch_of_each_rank(run_program: Run, data: str) -> None:
    keys: dict[str, Any] = {"model": "lenet" if data == "digits" else "gpt2-tiny", "global_batch_size": 8}
    read, kept = (run_program(2, data, reader=reader, steps={"warmup": 1, "measured": 9}, **keys) for reader in ("slipway", "memory"))
    assert kept.exit_codes == [0, 0], kept.stderr
    assert kept.losses()[0] == read.losses()[0]
    assert kept.losses()[1] != pytest.approx(read.losses()[1], rel=1e-6)
    assert sorted(kept.losses(), reverse=True) == kept.losses(), "one batch is learned by heart"
    assert [one["samples"] for one in kept.of("eval")] == [one["samples"] for one in read.of("eval")]


LIKE_ANOTHER = {"fcn5-synthetic", "fcn8", "inception-v1", "resnet34", "resnet50-v1", "resnet101", "resnet152"}
"""Made of the same layers, by the same code, as a smaller one: CI leaves them out."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LIKE_ANOTHER)) for name in sorted(set(MODELS) - set(of_tokens()))]
)
def test_every_model_trains_and_infers(run_program: Run, name: str) -> None:
    done = run_program(1, "photos", model=name, global_batch_size=4, steps={"warmup": 0, "measured": 2}, save_parameters=False)
    assert done.exit_codes == [0], done.stderr
    assert done.of("eval")[0]["split"] == "validation"
    assert not (done.out / "parameters.safetensors").exists()
    inferred = run_program(1, "photos", model=name, global_batch_size=4, steps={"warmup": 0, "measured": 2}, mode="infer")
    assert inferred.exit_codes == [0], inferred.stderr
    kinds = {layer["kind"] for layer in json.loads((done.out / "cell.json").read_text())["model_layers"]}
    if not kinds & {"dropout", "bn"}:
        assert inferred.losses()[0] == pytest.approx(done.losses()[0], rel=1e-6), "same weights, same batch"
    assert not inferred.of("eval")
    assert not inferred.of("checkpoint")
    assert not any({"exchange_s", "backward_s"} & step.keys() for step in inferred.of("step"))
    assert all(0 < step["forward_s"] < step["seconds"] for step in inferred.of("step"))


@pytest.mark.parametrize(
    "keys",
    [
        {"precision": "bf16"},
        {"layout": "nhwc"},
        {"comm_hook": "fp16"},
        {"comm_hook": "bf16"},
        {"comm_hook": "powersgd"},
        {"comm_hook": "onebit"},
    ],
    ids=lambda keys: "-".join(keys.values()),
)
def test_variants_stay_close_to_the_plain_run(run_program: Run, reference: Run, keys: dict[str, str]) -> None:
    steps = {"warmup": 1, "measured": 9}
    plain, varied = reference(2, steps=steps), run_program(2, steps=steps, **keys)
    assert varied.exit_codes == [0, 0], varied.stderr
    assert varied.losses()[0] == pytest.approx(plain.losses()[0], rel=0.02)
    assert varied.losses()[-1] == pytest.approx(plain.losses()[-1], rel=0.5 if {"powersgd", "onebit"} & set(keys.values()) else 0.05)
    assert varied.losses()[-1] < varied.losses()[0]
    norms = [varied.of("run_stop", rank)[0]["norm"] for rank in (0, 1)]
    assert norms[0] == norms[1], "ranks end with the same parameters"


@NEEDS_GPU
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_gpu_trains_as_the_cpu_does(run_program: Run, precision: str, layout: str) -> None:
    steps = {"warmup": 5, "measured": 25}
    cpu, gpu = run_program(1, steps=steps), run_program(1, steps=steps, device="cuda", precision=precision, layout=layout)
    assert gpu.exit_codes == [0], gpu.stderr
    same = 1 if precision == "fp16" else 5  # the loss scaler leaves the first updates out, until its factor fits
    assert gpu.losses()[:same] == pytest.approx(cpu.losses()[:same], rel=1e-4 if precision == "fp32" else 0.05)
    assert gpu.losses()[-1] < gpu.losses()[0]
    stop = gpu.of("run_stop")[0]
    assert 0 < stop["window_steps_s"] <= stop["window_wall_s"] * 1.001 <= stop["train_s"] * 1.001
    assert gpu.of("run_start")[0]["provenance"]["gpu_uuid"].startswith("GPU-")


def test_weight_decay_goes_to_weights_only(run_program: Run) -> None:
    optimizer = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.5}
    steps = {"warmup": 0, "measured": 1}
    plain = parameters(run_program(1, steps=steps, optimizer={**optimizer, "weight_decay": 0.0}))
    decayed = parameters(run_program(1, steps=steps, optimizer=optimizer))
    start = parameters(run_program(1, steps=steps, optimizer={**optimizer, "learning_rate": 1e-30, "weight_decay": 0.0}))
    np.testing.assert_allclose(decayed["fc1.weight"], plain["fc1.weight"] - 0.05 * start["fc1.weight"], atol=1e-6)
    np.testing.assert_array_equal(decayed["fc1.bias"], plain["fc1.bias"])


def test_a_dataset_without_a_split_to_evaluate_is_trained_on(run_program: Run) -> None:
    done = run_program(1, "jpegs", global_batch_size=8)
    assert done.exit_codes == [0], done.stderr
    assert not done.of("eval")
    assert done.of("run_stop")[0]["eval_s"] is None


def test_a_loss_that_is_not_finite_ends_the_run(run_program: Run) -> None:
    optimizer = {"name": "sgd", "learning_rate": 1e6, "momentum": 0.9, "weight_decay": 0.0}
    done = run_program(1, steps={"warmup": 0, "measured": 50}, optimizer=optimizer)
    assert done.exit_codes == [42], done.stderr
    assert done.of("error")[0]["kind"] == "nan"
    assert "the loss of step" in done.of("error")[0]["message"]
    assert not done.of("run_stop")


def test_no_more_memory_is_named(run_program: Run) -> None:
    look = "import torch; print(next(line for line in open('/proc/self/status') if line.startswith('VmPeak')).split()[1])"
    torch_kb = int(
        subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True).stdout
    )  # builds for CUDA map more
    done = run_program(1, "photos", model="resnet18", global_batch_size=76, limit_bytes=(torch_kb << 10) + 350_000_000)
    assert done.exit_codes == [41], done.stderr
    assert done.of("error")[0]["kind"] == "oom"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"model_parameters": 5}, "lenet has 656080 parameters here and 5 in the cell"),
        ({"global_batch_size": 4096}, "fewer than the global batch of 4096"),
        ({"precision": "fp16"}, "precision fp16 needs a GPU"),
        ({"variables": {"SLIPWAY_PARAMETERS": "/nowhere"}}, "FileNotFoundError"),
        (
            {"data": "jpegs", "model_layers": [{"name": "input", "shape_out": [1, 9, 9]}]},
            "the layer list goes from [1, 9, 9] to [1, 9, 9], the dataset asks for [3, 32, 32] to [3]",
        ),
    ],
)
def test_mistakes_are_errors_with_a_message(run_program: Run, keys: dict[str, Any], expected: str) -> None:
    done = run_program(1, **keys)
    assert done.exit_codes == [1]
    (error,) = done.of("error")
    assert error["kind"] == "error"
    assert expected in error["message"]
    assert "Traceback" in done.stderr[0]


def test_when_a_rank_is_killed_the_other_ends_and_nothing_stays(run_program: Run) -> None:
    done = run_program(2, steps={"warmup": 0, "measured": 3})
    cell = json.loads((done.out / "cell.json").read_text())
    (done.out / "cell.json").write_text(json.dumps({**cell, "steps": {"warmup": 0, "measured": 1_000_000}}))
    argv = [sys.executable, str(load_framework("pytorch").folder / "program.py")]
    environments = json.loads((done.out / "environments.json").read_text())
    for rank in (0, 1):
        (done.out / f"events-{rank}.jsonl").unlink()
    ranks = [Preloaded(argv, environ, done.out) for environ in environments]
    wait_for_step(done.out / "events-1.jsonl", ranks[1])
    loaders = [int(pid) for rank in ranks for pid in Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text().split()]
    assert len(loaders) == 2
    os.kill(ranks[1].pid, signal.SIGKILL)
    assert [rank.wait(timeout=60) for rank in ranks] == [1, -signal.SIGKILL]
    events = [json.loads(line) for line in (done.out / "events-0.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "error"
    for pid in loaders:
        wait_until_gone(pid)


def wait_for_step(events: Path, rank: Rank) -> None:
    """Until the program has written a step; its end ends the wait."""
    while rank.poll() is None:
        if events.exists() and '"step": 2' in events.read_text():
            return
        time.sleep(0.001)
    pytest.fail(f"the program ended with {rank.returncode} before its third step")


def wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 30)[0], f"process {pid} outlives its rank"
    finally:
        os.close(descriptor)


STORE = """
import os, socket, struct
from pathlib import Path
from slipway_program.torch_group import open_store
with socket.create_server(("127.0.0.3", 0)) as free:
    os.environ.update(MASTER_ADDR="127.0.0.3", MASTER_PORT=str(free.getsockname()[1]))
first, second = open_store(0), open_store(1)
second.set("key", "value")
assert first.get("key") == b"value"
port = f":{int(os.environ['MASTER_PORT']):04X}"
for table in ("tcp", "tcp6"):
    for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
        words = line.split()
        if words[1].endswith(port) and words[3] == "0A":
            print(table, socket.inet_ntoa(struct.pack("<I", int(words[1][:8], 16))))
"""


def test_rank_0_listens_on_the_runs_own_address_only() -> None:
    env = {**os.environ, "PYTHONPATH": str(load_framework("pytorch").folder.parents[1] / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", STORE], env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "tcp 127.0.0.3\n", done.stderr
