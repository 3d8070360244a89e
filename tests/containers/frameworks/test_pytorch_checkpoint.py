"""A training that is cut off and goes on ends where one that was not cut off ends."""

import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.containers.frameworks.programs import Rank, checkpoint_of, cut, resumed

pytestmark = pytest.mark.slow
Run = Callable[..., Any]
STEPS = {"warmup": 3, "measured": 17}
OPTIMIZER = {"name": "sgd", "learning_rate": 0.001, "momentum": 0.9, "weight_decay": 0.001}


@pytest.mark.parametrize(
    ("world", "data", "keys"),
    [
        pytest.param(1, "digits", {}, marks=pytest.mark.long),  # as the next one, in fewer ranks
        (2, "digits", {}),
        (1, "photos", {"model": "resnet18", "layout": "nhwc", "global_batch_size": 4}),
        (2, "photos", {"model": "resnet18", "global_batch_size": 8}),
        (1, "photos", {"model": "alexnet", "global_batch_size": 4}),  # it has dropout
        (2, "digits", {"comm_hook": "bf16", "precision": "bf16"}),
    ],
)
def test_a_run_that_is_cut_off_ends_where_a_whole_one_does(
    run_program: Run, tmp_path: Path, world: int, data: str, keys: dict[str, Any]
) -> None:
    keys = {"steps": {"warmup": 1, "measured": 7}, "optimizer": OPTIMIZER, "data": data, **keys}
    whole = run_program(world, **keys)
    first = cut(run_program, tmp_path, 1, world, **keys)
    path, metadata, event = checkpoint_of(first)
    done = int(metadata["step"])
    assert done == event["step"] == len(first.of("step")) >= 2
    rest = resumed(run_program, path, world, **keys)
    assert rest.exit_codes == [0] * world, rest.stderr
    assert [step["step"] for step in rest.of("step")] == list(range(done, 8))
    assert [step["loss"] for step in first.of("step") + rest.of("step")] == [step["loss"] for step in whole.of("step")]
    one, other = (load_file(run.out / "parameters.safetensors") for run in (whole, rest))
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])
    assert [{**event, "time": 0, "monotonic_ns": 0, "eval_s": 0} for event in rest.of("eval")] == [
        {**event, "time": 0, "monotonic_ns": 0, "eval_s": 0} for event in whole.of("eval")
    ]


def test_steps_after_a_resume_are_left_out_of_the_window(run_program: Run, tmp_path: Path) -> None:
    first = cut(run_program, tmp_path, 5, steps={**STEPS, "total": 400})
    path, metadata, _ = checkpoint_of(first)
    done = int(metadata["step"])
    rest = resumed(run_program, path, steps={**STEPS, "total": 400})
    assert [step["step"] for step in rest.of("step") if step["measured"]] == list(range(done + 3, min(done + 20, 400)))
    phases = list(dict.fromkeys(event["phase"] for event in rest.of("phase")))
    assert phases == ["init", "warmup", "train", "eval", "checkpoint", "checksum"]


@pytest.mark.parametrize("hook", ["powersgd", "onebit"])
def test_what_cannot_be_carried_is_said(run_program: Run, tmp_path: Path, hook: str) -> None:
    keys = {"steps": {"warmup": 0, "measured": 200}, "comm_hook": hook}
    first = cut(run_program, tmp_path, 5, 2, **keys)
    path, *_ = checkpoint_of(first)
    rest = resumed(run_program, path, 2, **keys)
    assert rest.exit_codes == [0, 0], rest.stderr
    assert len(first.of("step")) + len(rest.of("step")) == 200
    assert sum(rest.losses()[-20:]) / 20 < 0.2 < first.losses()[0], "the training goes on"
    for rank in (0, 1):
        (warning,) = rest.of("warning", rank)
        assert f"the error feedback of {hook} is not in the checkpoint" in warning["message"]


def test_inference_goes_on_too(run_program: Run, tmp_path: Path) -> None:
    keys = {"steps": {"warmup": 0, "measured": 300}, "mode": "infer"}
    path, metadata, _ = checkpoint_of(cut(run_program, tmp_path, 5, **keys))
    rest = resumed(run_program, path, **keys)
    assert rest.exit_codes == [0], rest.stderr
    assert rest.of("step")[0]["step"] == int(metadata["step"])


def damaged(path: Path, how: str) -> Path:
    broken = path.with_name(f"{how}.safetensors")
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[-5] ^= 1
    elif how == "short":
        content = content[:-100]
    elif how == "empty":
        content = bytearray()
    elif how == "old":
        content = bytearray(bytes(content).replace(b"slipway.checkpoint/1", b"slipway.checkpoint/0"))
    broken.write_bytes(content)
    return broken


def test_a_checkpoint_that_does_not_fit_is_refused_before_the_first_step(run_program: Run, tmp_path: Path) -> None:
    keys = {"steps": {"warmup": 0, "measured": 400}}
    path, *_ = checkpoint_of(cut(run_program, tmp_path, 1, **keys))
    expected = {
        "flipped": "is damaged: its numbers are not those that were written",
        "short": "is no whole safetensors file",
        "empty": "is no whole safetensors file",
        "old": "is not a checkpoint of this version: found format 'slipway.checkpoint/0'",
    }
    for how, words in expected.items():
        broken = damaged(path, how)
        refused(resumed(run_program, broken, **keys), broken, words)
    refused(resumed(run_program, path, steps=keys["steps"], seed=7), path, "is a checkpoint of another cell, model 'lenet'")
    refused(resumed(run_program, Path("/nowhere"), **keys), Path("/nowhere"), "FileNotFoundError")


def refused(done: Any, path: Path, words: str) -> None:
    assert done.exit_codes == [1]
    (error,) = done.of("error")
    assert str(path) in error["message"]
    assert words in error["message"]
    assert not done.of("step")


@pytest.mark.parametrize("trial", range(3))
def test_a_kill_while_it_is_written_leaves_no_file_or_a_whole_one(run_program: Run, tmp_path: Path, trial: int) -> None:
    keys = {"steps": {"warmup": 0, "measured": 400}, "data": "photos", "model": "resnet50", "global_batch_size": 4}

    def watch(ranks: Sequence[Rank], out: Path) -> None:
        (out / "stop").touch()
        part = out / ".checkpoint.safetensors.part"
        while ranks[0].poll() is None and not (part.exists() and part.stat().st_size > trial * 40_000_000):
            time.sleep(0.001)
        ranks[0].kill()

    out = tmp_path / "out-0"
    done = run_program(1, variables={"SLIPWAY_STOP": str(out / "stop")}, watch=watch, **keys)
    assert done.out == out
    assert done.exit_codes[0] in (-signal.SIGKILL, 43)
    path = out / "checkpoint.safetensors"
    if path.exists():
        assert load_file(path)
    else:
        assert not done.of("checkpoint")
    shutil.rmtree(out)
