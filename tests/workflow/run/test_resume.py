"""Runs that are cut off by their job's end and go on in the next attempt, with a program that only writes events. Seen from outside.

`world.job_s`: so long after a supervisor has read its allocation its job ends, by a scheduler of these tests, since this machine has no
jobs that end.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from blake3 import blake3

from base.humanize import format_duration
from base.seal import publish_sealed
from extras.verify.runs import verify_runs
from tests.workflow.run.test_runs import checked, ended
from tests.workflow.run.world import World
from workflow.run.node.workdir import deliver

pytestmark = pytest.mark.slow
STEP_S = 0.01
STEPS = 1_500
"""The last 200 are not done until `long_jobs`, however long a job is."""
PREEMPTED = 25


def long_cell(world: World, nodes: int = 1, **fake: Any) -> str:
    return world.cell(nodes, step_s=STEP_S, measured=STEPS - 2, hurry=str(world.path / "hurry"), **fake)


def short_jobs(world: World, job_s: float = 6.0, walltime_s: float = 600.0) -> None:
    world.job_s, world.limits["walltime_s"] = job_s, walltime_s
    world.write()


def longer_jobs(world: World) -> None:
    """Twice the time, for a machine that is loaded."""
    assert world.job_s is not None
    world.job_s *= 2
    world.limits["walltime_s"] = max(world.limits["walltime_s"], 2 * world.job_s)
    world.write()


def long_jobs(world: World) -> None:
    world.go_on()
    world.job_s = None
    world.write()


def cut_off(world: World, run_id: str, attempt: int = 1, saves: bool = True) -> dict[str, Any]:
    """One attempt whose job ends before the run does; nothing but its record is left. On a machine so loaded that it does not come to
    its first steps meanwhile, or not to its checkpoint, or not to push before its job ends, it is forgotten, and another one gets a job of
    twice the time."""
    while True:
        log = world.ends(run_id, PREEMPTED)
        assert not (world.run_dir(run_id) / "record.json").exists()
        late = "its result could not be pushed" in log
        if late:
            for cache in world.cache.glob("local-*"):
                deliver(cache, world.storage)
        assert world.left() == [], log
        if "not begun; the next job begins it" in log:
            longer_jobs(world)
            continue
        record = checked(world, run_id, attempt)
        trained = record["performance"] is not None and record["performance"]["num_measured_steps"] > 10
        if trained and not late and (record["checkpoint"] or not saves):
            return record
        shutil.rmtree(world.run_dir(run_id) / "attempts" / str(attempt))
        longer_jobs(world)


def interrupted(world: World, attempts: int = 1, *, nodes: int = 1, saves: bool = True, **fake: Any) -> tuple[str, list[dict[str, Any]]]:
    """A run whose first `attempts` were cut off, and their records; from now on its steps take no time, and jobs do not end."""
    run_id = long_cell(world, nodes, **fake)
    short_jobs(world)
    records = [cut_off(world, run_id, attempt, saves) for attempt in range(1, attempts + 1)]
    long_jobs(world)
    return run_id, records


def started_until(world: World, run_id: str, reached: Callable[[], Any]) -> subprocess.Popen[str]:
    """A supervisor whose run is so far. On a machine so loaded that its job is over before, its attempt is forgotten, and another one gets
    twice the time."""
    earlier = set((world.run_dir(run_id) / "attempts").glob("*"))
    while True:
        process = world.start(run_id)
        world.wait_for(lambda ended=process.poll: reached() or ended() is not None)
        if process.returncode is None:
            return process
        world.end_of(process, PREEMPTED)
        for attempt in set((world.run_dir(run_id) / "attempts").glob("*")) - earlier:
            shutil.rmtree(attempt)
        longer_jobs(world)


def started_until_it_saves(world: World, run_id: str, name: str) -> subprocess.Popen[str]:
    """A supervisor whose run has written this file."""
    return started_until(world, run_id, lambda: list(world.cache.glob(f"local-*/runs/*/out/{name}")))


def test_a_checkpoint_that_was_delivered_later_is_gone_on_from(world: World) -> None:
    run_id = long_cell(world, 1)
    short_jobs(world)
    world.shorter["push_s"] = 0.5
    world.write()
    record: dict[str, Any] = {"checkpoint": None}
    while record["checkpoint"] is None:  # on a loaded machine the job may end before there is one
        shutil.rmtree(world.run_dir(run_id), ignore_errors=True)
        process = started_until(world, run_id, lambda: world.steps(run_id) > 1)
        (world.run_dir(run_id) / "attempts").write_text("a file is in the way")
        world.end_of(process, PREEMPTED)
        (world.run_dir(run_id) / "attempts").unlink()
        (delivery,) = deliver(world.cache / "local-0", world.storage)
        assert delivery.message == "delivered; attempt 1 was prevented (preempted), its files are on storage"
        assert verify_runs(world.results).findings == []
        record = checked(world, run_id, 1)
        longer_jobs(world)
    del world.shorter["push_s"]  # a busy machine may need longer for a push that succeeds
    long_jobs(world)
    last = ended(world, run_id)
    assert (last["status"], last["resumed_from"]["attempt"], last["resumed_from"]["step"]) == ("ok", 1, record["checkpoint"]["step"])


def test_a_run_that_its_job_cuts_off_goes_on_in_the_next_one(world: World) -> None:
    run_id, (first,) = interrupted(world, nodes=2)
    assert (first["status"], first["kind"]) == ("preempted", "prevented")
    step = first["checkpoint"]["step"]
    assert step > 10
    assert f"resumable at step {step}: the next attempt resumes there" in first["status_reason"]
    assert first["failed_rank"] is None
    assert first["resumed_from"] is None
    assert len(first["training"]["losses"]) > 10
    world.ends(run_id)
    assert world.left() == []
    last = checked(world, run_id)
    assert (last["status"], last["attempt"], last["result_number"], last["checkpoint"]) == ("ok", 2, 1, None)
    used = last["resumed_from"]["used_s"]
    assert last["resumed_from"] == {"attempt": 1, "step": step, "used_s": used}
    assert used == pytest.approx(first["steps_s"]["train"])
    assert last["performance"]["num_warmup_steps"] == 2
    assert last["performance"]["num_measured_steps"] == STEPS - step - 2, "those right after the resume are left out"
    assert last["performance"]["first_step_s"] is None
    assert last["training"]["first_loss"] == first["training"]["first_loss"] == 2.0
    assert [entry[0] for entry in last["training"]["losses"]][:: len(last["training"]["losses"]) - 1] == [0, STEPS - 1]
    assert last["warnings"] == last["busy"]


def test_the_budget_counts_over_all_attempts_and_its_end_is_a_row(world: World) -> None:
    run_id = world.cell(step_s=STEP_S, measured=100_000)
    short_jobs(world, job_s=4.0, walltime_s=8.0)
    first = cut_off(world, run_id)
    long_jobs(world)
    last = ended(world, run_id)
    assert last["status"] == "timeout"
    assert last["checkpoint"]["step"] > first["checkpoint"]["step"]
    walltime, used = (format_duration(seconds) for seconds in (world.limits["walltime_s"], first["steps_s"]["train"]))
    assert f"the walltime of {walltime} ({used} of it in earlier attempts) is over but for " in last["status_reason"]
    assert ", kept for the push; resumable at step" in last["status_reason"]
    world.limits["walltime_s"] = 600.0
    world.cells[0]["steps"]["measured"] = 5
    world.write()
    again = ended(world, f"{run_id}.after-1")
    assert again["resumed_from"] is None, "another cell: from the start"


def test_the_walltime_ends_a_run_as_a_row_with_what_is_there_and_a_longer_one_goes_on(world: World) -> None:
    run_id = long_cell(world)
    world.limits["walltime_s"] = 3.0
    world.write()
    while not (first := ended(world, run_id))["checkpoint"]:  # the machine is busy: it had not begun, or the checkpoint took too long
        shutil.rmtree(world.run_dir(run_id))
        world.limits["walltime_s"] *= 2
        world.write()
    assert (first["status"], first["failed_rank"]) == ("timeout", None)
    assert first["performance"]["num_measured_steps"] > 5
    world.limits["walltime_s"] = 600.0
    long_jobs(world)
    last = ended(world, f"{run_id}.after-1")
    assert (last["status"], last["result_number"]) == ("ok", 2)
    assert last["resumed_from"]["step"] == first["checkpoint"]["step"]


def test_a_damaged_checkpoint_is_passed_over(world: World) -> None:
    run_id, (first, _) = interrupted(world, 2)
    path = world.run_dir(run_id) / "attempts/2/checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    last = ended(world, run_id)
    assert last["resumed_from"]["attempt"] == 1
    assert last["resumed_from"]["step"] == first["checkpoint"]["step"]
    warning, *busy = last["warnings"]
    assert busy == last["busy"]
    assert warning.startswith("attempt 2 cannot be resumed: the file ")
    assert "is damaged" in warning


def test_a_checkpoint_that_the_program_refuses_is_an_error_that_names_it(world: World) -> None:
    run_id, (record,) = interrupted(world)
    directory = world.run_dir(run_id) / "attempts/1"
    content = json.dumps({"step": 3, "cell": "another", "seen": [0, 1, 2]}).encode()
    (directory / "checkpoint.safetensors").write_bytes(content)
    for file in record["files"]:
        if file["path"] == "checkpoint.safetensors":
            file.update(bytes=len(content), blake3=blake3(content).hexdigest())
    publish_sealed(directory / "record.json", record)
    last = ended(world, run_id)
    assert last["status"] == "error"
    assert "/resume/checkpoint.safetensors is a checkpoint of another cell" in last["status_reason"]


def test_a_checkpoint_of_ranks_that_are_slow_to_end_is_told_of(world: World) -> None:
    """As under torchrun, whose own end may take longer than there is time for."""
    _, (record,) = interrupted(world, save="linger")
    assert f"resumable at step {record['checkpoint']['step']}: the next attempt resumes there" in record["status_reason"]


def test_a_rank_killed_while_it_writes_leaves_the_older_checkpoint(world: World) -> None:
    run_id = long_cell(world)
    short_jobs(world)
    first = cut_off(world, run_id)
    world.cells[0]["optimizer"]["fake"]["save"] = "slow"
    world.write()
    for path in (world.run_dir(run_id) / "attempts/1").glob("record.json"):  # the same cell, but for how the fake behaves
        content = json.loads(path.read_text())
        content["cell"]["optimizer"]["fake"]["save"] = "slow"
        publish_sealed(path, {key: value for key, value in content.items() if key != "seal"})
    process = started_until_it_saves(world, run_id, ".checkpoint.safetensors.part")
    (rank,) = world.pids("program.py")
    os.kill(rank, signal.SIGKILL)
    world.end_of(process, PREEMPTED)
    assert world.left() == []
    second = checked(world, run_id, 2)
    assert second["checkpoint"] is None
    assert second["resumed_from"]["step"] == first["checkpoint"]["step"]
    assert f"at step {first['checkpoint']['step']} once more" in second["status_reason"]


def test_a_frozen_rank_at_the_deadline_is_no_hang(world: World) -> None:
    world.shorter["rank_silence_s"] = 1.5
    run_id = long_cell(world, 2, save="slow")
    short_jobs(world, job_s=20.0)
    record = cut_off(world, run_id, saves=False)
    assert "it was not written within 2.0 s): the next attempt begins from the beginning" in record["status_reason"]
    assert record["checkpoint"] is None
    assert not [file for file in record["files"] if "checkpoint" in file["path"]]


def test_a_signal_while_it_is_saved_cancels(world: World) -> None:
    run_id = long_cell(world, save="slow")
    short_jobs(world, job_s=20.0)
    process = started_until_it_saves(world, run_id, ".checkpoint.safetensors.part")
    process.terminate()
    world.end_of(process, 26)
    record = checked(world, run_id, 1)
    assert (record["status"], record["checkpoint"]) == ("cancelled", None)
    assert world.left() == []
