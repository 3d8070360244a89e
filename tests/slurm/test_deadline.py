"""The end of a job, planned and not: a real Slurm cuts runs off, and they go on in the next start or the next job."""

from typing import Any

import pytest

from tests.minicluster import Cluster
from tests.slurm.test_scheduler import ClusterWorld, world  # noqa: F401 - the fixture
from tests.workflow.run.valid import validate_record

pytestmark = pytest.mark.slow
STEP_S = 0.05


def record(world: ClusterWorld, run_id: str, attempt: int | None = None) -> dict[str, Any]:  # noqa: F811
    value = world.record(run_id, attempt)
    validate_record(value)
    return value


def attempts(world: ClusterWorld, run_id: str) -> int:  # noqa: F811
    return len(list((world.run_dir(run_id) / "attempts").glob("[0-9]*/record.json")))


def completed(world: ClusterWorld, job: str) -> bool:  # noqa: F811
    """Whether the job is, however often it starts."""
    found = world.job(job)
    assert found is not None
    assert found.state != "failed", world.log()
    return found.state == "completed"


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_run_longer_than_its_job_is_saved_requeued_and_goes_on(world: ClusterWorld, nodes: int) -> None:  # noqa: F811
    world.site |= {"deadline_margin_s": 15.0, "walltime_s": 60.0}
    world.limits["walltime_s"] = 600.0
    run_id = world.cell(nodes=nodes, measured=1000, step_s=STEP_S)
    script = world.script(f"exec {world.supervisor(run_id)}")
    job = world.submit(script, f"--nodes={nodes}", "--ntasks-per-node=1", "--requeue", "--time=1", "--open-mode=append")
    world.wait_for(lambda: attempts(world, run_id) == 1, 90)
    first = record(world, run_id, 1)
    step = first["checkpoint"]["step"]
    assert (first["status"], first["restart_count"]) == ("preempted", 0), world.log()
    assert f"resumable at step {step}: the next attempt resumes there" in first["status_reason"]
    world.begin_again(job)
    world.wait_for(lambda: completed(world, job), 300)
    second, last = record(world, run_id, 2), record(world, run_id)
    assert second["resumed_from"] == {"attempt": 1, "step": step, "used_s": first["steps_s"]["train"]}
    assert (second["job_id"], second["restart_count"]) == (job, 1)
    assert (last["status"], last["job_id"]) == ("ok", job), world.log()
    assert "the job is put back into the queue" in world.log()
    assert world.stays() == []


def test_a_preempted_job_leaves_a_record_and_begins_again(world: ClusterWorld, cluster: Cluster) -> None:  # noqa: F811
    run_id = world.cell(measured=200, step_s=STEP_S)
    script = world.script(f"exec {world.supervisor(run_id)}")
    job = world.submit(script, "--nodes=1", "--requeue", "--time=5", "--open-mode=append")
    world.wait_for(lambda: world.ranks("n1"))
    urgent = ["sbatch", "--parsable", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1"]
    cluster.exec("login", urgent, check=True)
    world.wait_for(lambda: attempts(world, run_id) == 1)
    first = record(world, run_id, 1)
    assert (first["status"], first["kind"], first["checkpoint"]) == ("preempted", "prevented", None), world.log()
    world.begin_again(job)
    world.wait_for(lambda: completed(world, job), 90)
    last = record(world, run_id)
    assert (last["status"], last["attempt"], last["restart_count"], last["resumed_from"]) == ("ok", 2, 1, None)
    assert world.stays() == []


@pytest.mark.long
def test_runs_of_a_shared_job_are_saved_at_its_end_and_not_requeued(world: ClusterWorld) -> None:  # noqa: F811
    """As `slipway submit` starts them: two side by side, and one that comes too late. The next job goes on with all."""
    world.site |= {"deadline_margin_s": 12.0, "walltime_s": 60.0}
    world.limits["walltime_s"] = 600.0
    long = [world.cell(measured=1200, step_s=STEP_S), world.cell(measured=1200, step_s=STEP_S)]
    late = world.cell(measured=5)
    lines = [f"{world.supervisor(run_id)} & pids+=($!)" for run_id in long]
    codes = 'for pid in "${pids[@]}"; do wait $pid; echo ended with $?; done'
    job = world.submit(
        world.script("export SLIPWAY_SUBMISSION=test", *lines, codes, f"{world.supervisor(late)}; echo late with $?"),
        "--nodes=2",
        "--ntasks-per-node=1",
        "--time=1",
    )
    world.wait_for(lambda: "late with" in world.log(), 90)
    assert world.log().count("ended with 25") == 2, world.log()
    assert "late with 25" in world.log()
    assert not (
        world.run_dir(late) / "record.json"
    ).exists()  # not begun, or ended before its training, as soon as Slurm says when the job ends
    steps = [record(world, run_id, 1)["checkpoint"]["step"] for run_id in long]
    assert world.ended(job).restarts == 0
    commands = [f"{world.supervisor(run_id)} &" for run_id in [*long, late]]
    again = world.submit(world.script("export SLIPWAY_SUBMISSION=test", *commands, "wait"), "--nodes=2", "--ntasks-per-node=1", "--time=3")
    world.wait_for(lambda: (found := world.job(again)) is not None and found.state == "completed", 150)
    for run_id, step in zip(long, steps, strict=True):
        last = record(world, run_id)
        assert (last["status"], last["resumed_from"]["step"]) == ("ok", step), world.log()
    assert record(world, late)["status"] == "ok"
    assert world.stays() == []


@pytest.mark.long
def test_scancel_while_the_checkpoint_is_written(world: ClusterWorld) -> None:  # noqa: F811
    world.site["deadline_margin_s"] = 40.0
    world.limits["walltime_s"] = 40.0
    run_id = world.cell(measured=5000, step_s=STEP_S, save="slow")
    job = world.submit(world.script(f"exec {world.supervisor(run_id)}"), "--nodes=1", "--time=5")
    world.wait_for(lambda: "a checkpoint is wanted" in world.log(), 90)
    world.cluster.exec("login", ["scancel", job], check=True)
    world.wait_for(lambda: attempts(world, run_id) == 1)
    assert record(world, run_id, 1)["status"] in ("cancelled", "preempted"), world.log()
    world.wait_for(lambda: not world.stays())
