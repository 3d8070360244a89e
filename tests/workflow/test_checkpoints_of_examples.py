"""Examples that write checkpoints: a training that was stopped comes to the same losses and parameters as one that was not."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from base.process import CODE_ROOT
from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec
from tests.gpu import NEEDS_GPU
from workflow.run.record.events import RankEvents, read_events

pytestmark = pytest.mark.slow
CELL = {"steps": {"warmup": 2, "measured": 4}, "batch_size": 2}
GPT = ("gpt-fsdp2", "--seq-len=16", "--width=32", "--layers=2", "--batch-size=2", "--ask-every=2")


def train(out: Path, expected: int, device: str = "cpu", ranks: int = 2, example: Sequence[str] = GPT, **env: str) -> dict[int, RankEvents]:
    """Run the ranks of an example until its end, and return their events. `expected` is the exit code of rank 0."""
    out.mkdir(exist_ok=True)
    (out / "cell.json").write_text(json.dumps({**CELL, "device": device}))
    env |= {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}  # on a machine with GPUs the program would take one
    env |= {"SLIPWAY_OUT": str(out), "SLIPWAY_CELL": str(out / "cell.json"), "OMP_NUM_THREADS": "1"}
    (out / "slipway_reader").symlink_to(CODE_ROOT / "data_prep" / "reader")
    env |= {"PYTHONPATH": f"{CODE_ROOT / 'containers' / 'lib'}:{out}", "PYTHONDONTWRITEBYTECODE": "1"}
    program = CODE_ROOT / "examples" / example[0] / "train" / "train.py"
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(program), *example[1:]]
    done = subprocess.run(argv, cwd=out, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode == 0) == (expected == 0), done.stdout + done.stderr
    assert expected == 0 or f"exitcode  : {expected} " in done.stdout + done.stderr
    return read_events(out, ranks)


def check_told(events: dict[int, RankEvents]) -> None:
    """Tokens, and the FLOP of one of them: 6 for each parameter that multiplies, 12 for each layer, unit of width and token."""
    assert {step.tokens for step in events[1].steps.values()} == {2 * 16}
    start = events[0].start
    assert start is not None
    multiplying = 256 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32
    assert start.parameters == multiplying + 16 * 32
    assert (start.flop_per_unit, start.precision) == (6 * multiplying + 12 * 2 * 32 * 16, "fp32")


def test_what_was_stopped_at_a_checkpoint_ends_as_what_was_not(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 0)
    check_told(whole)
    (tmp_path / "stop").touch()
    cut = train(tmp_path / "cut", 43, SLIPWAY_STOP=str(tmp_path / "stop"))
    checkpoint = tmp_path / "cut" / "checkpoint.safetensors"
    assert [(event.step, event.resumable) for event in cut[0].checkpoints] == [(2, True)]
    resumed = train(tmp_path / "resumed", 0, SLIPWAY_CHECKPOINT=str(checkpoint))
    assert (sorted(cut[0].steps), sorted(resumed[0].steps)) == ([0, 1], [2, 3, 4, 5])
    for step in range(6):
        part = cut if step < 2 else resumed
        assert [part[rank].steps[step].loss for rank in (0, 1)] == [whole[rank].steps[step].loss for rank in (0, 1)], step
    one, other = (load_file(tmp_path / name / "trained.safetensors") for name in ("whole", "resumed"))
    assert one.keys() == other.keys()
    assert any(name.startswith("exp_avg_sq.") for name in one)
    for name, tensor in one.items():
        assert (tensor == other[name]).all(), name


def test_the_loader_goes_on_at_the_sample_of_the_checkpoint(tmp_path: Path) -> None:
    spec = parse_spec({"source": "sklearn-digits", "shards": 2}, tmp_path)
    data = build_dataset(spec, "digits", tmp_path, jobs=1).path
    example = ("images", f"--data={tmp_path / data}", "--batch-size=2", "--workers=0")
    whole = train(tmp_path / "whole", 0, example=example)
    (tmp_path / "stop").touch()
    cut = train(tmp_path / "cut", 43, example=example, SLIPWAY_STOP=str(tmp_path / "stop"))
    assert [(event.step, event.resumable) for event in cut[0].checkpoints] == [(1, True)]
    resumed = train(tmp_path / "resumed", 0, example=example, SLIPWAY_CHECKPOINT=str(tmp_path / "cut" / "checkpoint.safetensors"))
    assert (sorted(cut[0].steps), sorted(resumed[0].steps)) == ([0], [1, 2, 3, 4, 5])
    for step in range(6):
        part = resumed if step else cut
        assert part[0].steps[step].loss == whole[0].steps[step].loss, step


@NEEDS_GPU
def test_what_was_stopped_on_a_gpu_goes_on_there(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 0, "cuda", 1)
    (tmp_path / "stop").touch()
    cut = train(tmp_path / "cut", 43, "cuda", 1, SLIPWAY_STOP=str(tmp_path / "stop"))
    rest = train(tmp_path / "rest", 0, "cuda", 1, SLIPWAY_CHECKPOINT=str(tmp_path / "cut" / "checkpoint.safetensors"))
    losses = [part[0].steps[step].loss for part, steps in ((cut, range(2)), (rest, range(2, 6))) for step in steps]
    assert losses == pytest.approx([whole[0].steps[step].loss for step in range(6)], rel=1e-5)
