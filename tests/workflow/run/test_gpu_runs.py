"""Runs on a GPU of this machine: which one, what it did, and that nothing is left on it, however the run ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.gpus.listing import query_gpus
from tests.data_prep.reader.small import image_dataset
from tests.gpu import NEEDS_GPU, apps, still_there
from tests.workflow.run.test_resume import cut_off
from tests.workflow.run.test_runs import checked, ended
from tests.workflow.run.world import World

pytestmark = [pytest.mark.slow, NEEDS_GPU]
LONG = 1_000_000
HOLDER = "import sys, torch; held = torch.empty(1 << 29, dtype=torch.uint8, device='cuda'); print('held', flush=True); sys.stdin.read()"


def cell(world: World, **keys: Any) -> str:
    """A run of the framework pytorch on one GPU."""
    images = [(np.full((28, 28, 1), 8 * number, np.uint8), 0) for number in range(32)]
    world.dataset = image_dataset(world.storage / "datasets", images, name="grey", test_shards=1)
    run_id = world.cell(measured=keys.pop("measured", LONG))
    world.limits["init_s"] = 120.0
    optimizer = {"name": "sgd", "learning_rate": 0.001, "momentum": 0.9, "weight_decay": 0.0}
    world.cells[-1].update(framework="pytorch", device="cuda", optimizer=optimizer, **keys)
    world.write()
    return run_id


def on_gpu(world: World, run_id: str, process: subprocess.Popen[str]) -> int:
    """The rank of a run that trains, as nvidia-smi shows it."""
    world.wait_for(lambda: world.steps(run_id) > 20 or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]
    ours = set(world.processes())
    (pid,) = {app.pid for app in apps() if app.pid in ours}
    return pid


def end_of(world: World, run_id: str, process: Any) -> tuple[int, str, dict[str, Any]]:
    _, log = process.communicate(timeout=120)
    return process.returncode, log, checked(world, run_id, 1)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[int]:
    """A program of somebody else that holds half a GiB of the GPU."""
    argv = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.communicate("")


def test_a_run_on_a_gpu_says_which_and_what_it_did(world: World) -> None:
    record = ended(world, cell(world, measured=400))
    assert record["status"] == "ok", record["status_reason"]
    (node,) = record["nodes"]
    (gpu,) = node["gpus"]
    one = query_gpus()[0]
    assert (gpu["uuid"], gpu["model"]) == (one.uuid, one.model)
    provenance = record["provenance"]
    assert provenance["gpu_uuid"] in (one.uuid, [one.uuid])
    assert provenance["environment"]["CUDA_VISIBLE_DEVICES"] == one.uuid
    assert 1 << 20 < record["training"]["peak_memory_bytes"] < 1 << 33, "of the GPU, not the process"
    assert record["training"]["eval"]["samples"] == 16


def test_a_rank_that_is_killed_leaves_nothing_on_the_gpu(world: World) -> None:
    run_id = cell(world)
    process = world.start(run_id)
    rank = on_gpu(world, run_id, process)
    os.kill(rank, signal.SIGKILL)
    code, log, record = end_of(world, run_id, process)
    assert (code != 0, record["status"]) == (True, "killed"), log
    assert "rank 0" in record["status_reason"]
    assert still_there({rank}) == []
    assert world.left() == []


def test_a_frozen_rank_is_named_and_leaves_nothing_on_the_gpu(world: World) -> None:
    world.shorter["rank_silence_s"] = 3.0
    run_id = cell(world)
    process = world.start(run_id)
    rank = on_gpu(world, run_id, process)
    os.kill(rank, signal.SIGSTOP)
    code, log, record = end_of(world, run_id, process)
    assert (code, record["status"]) == (0, "hang"), log
    assert "stopped (state T)" in record["status_reason"]
    assert still_there({rank}) == []
    assert world.left() == []


def test_what_is_cancelled_leaves_nothing_on_the_gpu(world: World) -> None:
    run_id = cell(world)
    process = world.start(run_id)
    rank = on_gpu(world, run_id, process)
    process.terminate()
    _, log, record = end_of(world, run_id, process)
    assert record["status"] == "cancelled", log
    assert still_there({rank}) == []
    assert world.left() == []


def test_a_run_is_cut_off_and_goes_on_in_the_next_job(world: World) -> None:
    world.job_s, world.limits["walltime_s"] = 20.0, 600.0
    run_id = cell(world)
    first = cut_off(world, run_id)
    second = cut_off(world, run_id, 2)
    assert first["checkpoint"]
    assert second["resumed_from"]["step"] == first["checkpoint"]["step"] > 0


@pytest.mark.parametrize("word", ["record", "refuse"])
def test_another_s_program_on_the_gpu_is_named_before_the_start(world: World, other: int, word: str) -> None:
    world.site["foreign_gpu"] = word
    run_id = cell(world, measured=300)
    code, log = world.run(run_id)
    said = f"is used by process {other} ("
    if word == "record":
        record = world.record(run_id)
        assert (code, record["status"]) == (0, "ok"), log
        assert any(said in words for words in record["warnings"]), record["warnings"]
    else:
        assert code != 0
        assert said in log
    assert world.left() == []
