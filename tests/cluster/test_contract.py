"""What every scheduler must keep to; a new one is a line in SCHEDULERS and is tested here."""

from __future__ import annotations

from pathlib import Path

import pytest

from base.errors import AllocationError, UnsupportedRequest
from cluster.detection import off_node
from cluster.launching import Launched
from cluster.schedulers import SCHEDULERS, Scheduler, describe_holder, get_scheduler, holder_alive, jobs_of, node_cache, with_jobs
from cluster.types import Allocation, Holder, Launch, Node

NODES = tuple(Node(name=f"node-{index}", hostname=f"h{index}", address=f"10.0.0.{index + 1}", cores=(index,)) for index in range(3))


def allocation(scheduler: Scheduler) -> Allocation:
    return Allocation(scheduler=scheduler.NAME, job_id="17", nodes=NODES, device="cpu", exclusive=True)


@pytest.fixture(params=SCHEDULERS)
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    return get_scheduler(request.param)


def test_it_is_listed_under_its_own_name(scheduler: Scheduler) -> None:
    assert get_scheduler(scheduler.NAME) is scheduler


def test_every_node_is_launched_once_and_twice_the_same(scheduler: Scheduler) -> None:
    launches = scheduler.launches(allocation(scheduler), ("python", "-m", "node"))
    assert sorted(index for launch in launches for index in launch.nodes) == [0, 1, 2]
    assert all("python -m node" in " ".join(launch.argv) for launch in launches)
    assert launches == scheduler.launches(allocation(scheduler), ("python", "-m", "node"))


def test_caches_of_different_machines_may_have_one_path_and_of_one_machine_not(scheduler: Scheduler) -> None:
    paths = {node_cache(scheduler.NAME, Path("/cache"), node) for node in NODES}
    assert all(path.is_relative_to("/cache") for path in paths)
    assert len(paths) in (1, len(NODES))


@pytest.mark.processes
def test_a_holder_of_another_place_is_not_taken_for_dead(scheduler: Scheduler) -> None:
    holder = Holder(scheduler=scheduler.NAME, job_id="1", restart_count=0, host="?", pid=1, pid_start=1, boot_id="?", pid_namespace="?")
    assert holder_alive(holder) is None
    assert holder.host in describe_holder(holder)


def test_an_unknown_one_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(UnsupportedRequest, match="did you mean 'local'"):
        get_scheduler("locale")


@pytest.mark.processes
def test_a_launch_gets_its_line_and_its_words_are_kept() -> None:
    launched = Launched(Launch(argv=("sh", "-c", "read line; echo got $line >&2; exit 3"), nodes=(0,)), b"secret\n", {})
    try:
        import select

        assert select.select([launched.exit_fd], [], [], 10)[0]
        assert launched.poll() == 3
        assert launched.read_stderr() == b"got secret\n"
        assert launched.last_words == b"got secret\n"
    finally:
        launched.close()


@pytest.mark.processes
def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AllocationError, match="cannot be started"):
        Launched(Launch(argv=("/nowhere/srun",), nodes=(0,)), b"\n", {})


def test_outside_of_its_jobs_it_names_none_and_has_no_advice(scheduler: Scheduler) -> None:
    assert scheduler.job_start({}) is None
    assert off_node({}) is None


def test_jobs_are_submitted_to_those_that_take_them() -> None:
    assert jobs_of("local") is None
    assert set(with_jobs()) == {name for name in SCHEDULERS if jobs_of(name) is not None} == set(SCHEDULERS) - {"local"}


def test_a_start_of_a_slurm_job_has_a_name_of_its_own() -> None:
    scheduler = get_scheduler("slurm")
    assert scheduler.job_start({"SLURM_JOB_ID": "7"}) == "7-0"
    assert scheduler.job_start({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}) == "7-2"
    assert "srun --overlap" in str(off_node({"SLURM_JOB_ID": "7"}))
    assert off_node({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}) is None
