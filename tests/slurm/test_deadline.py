"""The end of a job, planned and not: a real Slurm cuts runs off, and they go on in the next start or the next job."""

import signal
from typing import Any

import pytest

from tests.minicluster import Cluster
from tests.minicluster.processes import send
from tests.slurm.test_scheduler import ClusterWorld, world  # noqa: F401 - the fixture
from tests.workflow.run.valid import validate_record

pytestmark = pytest.mark.slow
STEP_S = 0.05


def record(world: ClusterWorld, run_id: str, attempt: int | None = None) -> dict[str, Any]:  # noqa: F811
    value = world.record(run_id, attempt)
    validate_record(value)
    return value


def attempts(world: ClusterWorld, run_id: str) -> list[int]:  # noqa: F811
    """Those that have a record."""
    return sorted(int(path.parent.name) for path in (world.run_dir(run_id) / "attempts").glob("[0-9]*/record.json"))


def completed(world: ClusterWorld, job: str) -> bool:  # noqa: F811
    """Whether the job is, however often it starts."""
    found = world.job(job)
    assert found is not None
    assert found.state != "failed", world.log()
    return found.state == "completed"


def test_a_run_longer_than_its_job_is_saved_requeued_and_goes_on(world: ClusterWorld) -> None:  # noqa: F811
    world.site |= {"deadline_margin_s": 15.0, "walltime_s": 60.0}
    world.limits["walltime_s"] = 600.0
    run_id = world.cell(nodes=2, measured=1000, step_s=STEP_S)
    script = world.script(f"exec {world.supervisor(run_id)}")
    job = world.submit(script, "--nodes=2", "--ntasks-per-node=1", "--requeue", "--time=1", "--open-mode=append")
    world.wait_for(lambda: attempts(world, run_id) == [1], 90)
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


def test_a_job_that_is_put_back_into_the_queue_takes_the_run_over_from_its_own_earlier_start(
    world: ClusterWorld,  # noqa: F811
    cluster: Cluster,
) -> None:
    """By its owner; once more, with the supervisor killed meanwhile; and by a job that preempts it. The fourth start trains to the end."""
    run_id = world.cell(measured=200, step_s=STEP_S)
    supervisor = world.supervisor(run_id)
    script = world.script(f'test "$SLURM_RESTART_COUNT" = 1 || exec {supervisor}', supervisor)
    job = world.submit(script, "--nodes=1", "--requeue", "--time=5", "--open-mode=append")
    world.wait_for(lambda: world.ranks("n1"))
    cluster.exec("login", ["scontrol", "requeue", job], check=True)
    world.begin_again(job)
    world.wait_for(lambda: world.ranks("n1"))
    supervisors = [pid for pid in world.pids("workflow.run.supervisor") if pid in cluster.processes("n1")]
    cluster.exec("login", ["scontrol", "requeue", job], check=True)
    send(supervisors, signal.SIGKILL)
    world.begin_again(job)
    world.wait_for(lambda: world.ranks("n1"))
    urgent = ["sbatch", "--parsable", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1"]
    cluster.exec("login", urgent, check=True)
    world.begin_again(job)
    world.wait_for(lambda: completed(world, job), 90)
    starts = {(found := record(world, run_id, number))["restart_count"]: found for number in attempts(world, run_id)}
    assert [starts[start]["status"] for start in (0, 2, 3)] == ["preempted", "preempted", "ok"], world.log()
    assert "put back into the queue" in starts[0]["status_reason"]
    assert (starts[2]["kind"], starts[2]["checkpoint"]) == ("prevented", None)
    last = record(world, run_id)
    assert (last["status"], last["job_id"], last["restart_count"], last["resumed_from"]) == ("ok", job, 3, None)
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
