"""What tests do with programs of frameworks: the interpreter of one, a run that is stopped and goes on, and the numbers it ends with."""

import hashlib
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from containers.frameworks import load_framework
from containers.frameworks.own_python import environment_of, own_python, what_is_missing
from tests.containers.frameworks.preloaded import Preloaded

Run = Callable[..., Any]
Rank = subprocess.Popen[str] | Preloaded


RUNNING = ("running_mean", "running_var")


def checksum_of_file(path: Path) -> str:
    """All but the running statistics, in the order of their names."""
    arrays = sorted(load_file(path).items())
    return hashlib.sha256(b"".join(array.astype("<f4").tobytes() for name, array in arrays if not name.endswith(RUNNING))).hexdigest()


# Stop a run at a checkpoint.


def stop_at(step: int) -> Callable[[Sequence[Rank], Path], None]:
    """Ask for a checkpoint when rank 0 has written that step, and end the others when it has ended, as a supervisor does."""

    def watch(ranks: Sequence[Rank], out: Path) -> None:
        events = out / "events-0.jsonl"
        while ranks[0].poll() is None:
            if events.exists() and f'"step": {step},' in events.read_text():
                (out / "stop").touch()
                break
            time.sleep(0.001)
        ranks[0].wait()
        for rank in ranks[1:]:
            rank.kill()

    return watch


# The interpreters of frameworks, where they are installed.


def interpreter(name: str, strategy: str = "ddp", backend: str = "auto") -> str:
    """That of the framework; skips where it is not installed."""
    if (reason := why_not(name, strategy, backend)) is not None:
        pytest.skip(reason)
    return own_python(load_framework(name), strategy, backend) or sys.executable


def why_not(name: str, strategy: str = "ddp", backend: str = "auto") -> str | None:
    """The reason to skip what needs it; None: it is installed."""
    spec = load_framework(name)
    if what_is_missing(spec, strategy, backend) is None:
        return None
    name, _ = environment_of(spec, strategy, backend) or (name, None)
    return f"framework {name} is not installed here: make framework NAME={name}"


def parameters(done: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = load_file(done.out / "parameters.safetensors")
    return loaded


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Relative distance of two networks, all parameters taken as one vector."""
    assert {name: array.shape for name, array in one.items()} == {name: array.shape for name, array in other.items()}
    squares = sum(float(np.square(one[name].astype(np.float64) - other[name]).sum()) for name in one)
    return math.sqrt(squares / sum(float(np.square(array.astype(np.float64)).sum()) for array in one.values()))


def cut(run_program: Run, tmp_path: Path, step: int, world: int = 1, **keys: Any) -> Any:
    """A run that is asked for a checkpoint after `step`."""
    out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
    return run_program(world, variables={"SLIPWAY_STOP": str(out / "stop")}, watch=stop_at(step), **keys)


def resumed(run_program: Run, checkpoint: Path, world: int = 1, **keys: Any) -> Any:
    return run_program(world, variables={"SLIPWAY_CHECKPOINT": str(checkpoint)}, **keys)


def checkpoint_of(done: Any) -> tuple[Path, Mapping[str, str], dict[str, Any]]:
    """The file of the run, its metadata, and the event that told of it."""
    assert done.exit_codes[0] == 43, done.stderr
    (event,) = done.of("checkpoint")
    path = done.out / event["file"]
    assert (event["resumable"], event["bytes"]) == (True, path.stat().st_size)
    with safe_open(path, "numpy") as file:
        return path, file.metadata(), event


def stopped_and_resumed(run_program: Run, tmp_path: Path, whole: Any, world: int = 1, step: int = 3, **keys: Any) -> tuple[Any, Any]:
    """A run that is stopped after `step`, and the one that goes on from it: together they have the losses of the whole one, to the bit."""
    stopped = cut(run_program, tmp_path, step, world, **keys)
    path, _, event = checkpoint_of(stopped)
    assert event["step"] > step
    rest = resumed(run_program, path, world, **keys)
    assert rest.exit_codes == [0] * world, rest.stderr
    assert stopped.losses() + rest.losses() == whole.losses()
    return stopped, rest
