"""What every scheduler must keep to; a new one is a line in SCHEDULERS and is tested here."""

import inspect
import select
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from base.errors import AllocationError, SubmitError, UnsupportedRequest
from cluster.detection import off_node
from cluster.launching import Launched
from cluster.schedulers import (
    SCHEDULERS,
    Jobs,
    Scheduler,
    describe_holder,
    get_scheduler,
    holder_alive,
    jobs_of,
    node_cache,
    with_jobs,
)
from cluster.schedulers.jobs import RUN, BatchJob, JobSize, Work, job_words
from cluster.types import AllocationRequest, Launch, Node
from tests.cluster import tutorial
from tests.cluster.builders import allocation, holder

NODES = tuple(Node(name=f"node-{index}", hostname=f"h{index}", address=f"10.0.0.{index + 1}", cores=(index,)) for index in range(3))


@pytest.fixture(params=[*SCHEDULERS, "toy"])
def scheduler(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scheduler]:
    """Each scheduler, and that of CONTRIBUTING.md."""
    with tutorial.installed(tmp_path, command=False) if request.param == "toy" else nullcontext():
        yield get_scheduler(request.param)


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[None]:
    """The scheduler of CONTRIBUTING.md with its commands."""
    with tutorial.installed(tmp_path):
        yield


def test_it_is_listed_under_its_own_name(scheduler: Scheduler) -> None:
    assert get_scheduler(scheduler.NAME) is scheduler


@pytest.mark.parametrize("name", ["lsf", "pbs", "sge", "slurm"])
def test_outside_of_its_jobs_nothing_is_allocated(name: str) -> None:
    request = AllocationRequest(nodes=1, gpus_per_node=1, largest_nodes=1, device="cpu")
    with pytest.raises(AllocationError, match=f"the site says scheduler: {name}, and this process is not inside a job of"):
        get_scheduler(name).allocate(request, {}, 1)


def test_every_node_is_launched_once_and_twice_the_same(scheduler: Scheduler) -> None:
    granted = allocation(scheduler.NAME, nodes=NODES)
    launches = scheduler.launches(granted, ("python", "-m", "node"))
    assert sorted(index for launch in launches for index in launch.nodes) == [0, 1, 2]
    assert all("python -m node" in " ".join(launch.argv) for launch in launches)
    assert launches == scheduler.launches(granted, ("python", "-m", "node"))


def test_caches_of_different_machines_may_have_one_path_and_of_one_machine_not(scheduler: Scheduler) -> None:
    paths = {node_cache(scheduler.NAME, Path("/cache"), node) for node in NODES}
    assert all(path.is_relative_to("/cache") for path in paths)
    assert len(paths) in (1, len(NODES))


@pytest.mark.processes
def test_a_holder_of_another_place_is_not_taken_for_dead(scheduler: Scheduler) -> None:
    elsewhere = holder(scheduler.NAME, "1")
    assert holder_alive(elsewhere) is None
    assert elsewhere.host in describe_holder(elsewhere)


def test_an_unknown_one_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(UnsupportedRequest, match="did you mean 'local'"):
        get_scheduler("locale")


@pytest.mark.processes
def test_a_launch_gets_its_line_and_its_words_are_kept() -> None:
    launched = Launched(Launch(argv=("sh", "-c", "read line; echo got $line >&2; exit 3"), nodes=(0,)), b"secret\n", {})
    try:
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


@pytest.mark.usefixtures("toy")
def test_the_tutorial_is_short_and_offers_all_that_the_protocols_name() -> None:
    assert sorted(tutorial.files()) == ["__init__.py", "answers.py", "jobs.py"]
    assert sum(len(text.splitlines()) for text in tutorial.files().values()) <= 150
    for protocol, module in ((Scheduler, get_scheduler("toy")), (Jobs, jobs_of("toy"))):
        for name, function in inspect.getmembers(protocol, inspect.isfunction):
            if not name.startswith("_"):
                offered = [*inspect.signature(getattr(module, name)).parameters]
                assert offered == [*inspect.signature(function).parameters][1:], name
        assert all(hasattr(module, name) for name in protocol.__annotations__)


def batch_job(nodes: int) -> BatchJob:
    work = Work(mark="slipway=a-1234", rule=RUN, wildcards="a-b-r1")
    return BatchJob(name="slipway-a.0a", size=JobSize(nodes=nodes, minutes=5), work=work, output="/x/log", directory="/x", argv=("true",))


@pytest.mark.processes
@pytest.mark.usefixtures("toy")
def test_a_job_of_the_tutorial_is_submitted_once_found_and_cancelled() -> None:
    jobs = jobs_of("toy")
    assert jobs is not None
    assert jobs.submit(batch_job(2), 0.0) == "1"
    (job,) = jobs.our_jobs(0.0, 20.0)
    assert (job.job_id, job.rule, job.wildcards, job.mark, job.waits) == ("1", RUN, "a-b-r1", "slipway=a-1234", True)
    assert job_words(job, 0.0).startswith("job 1 waits")
    assert jobs.jobs_named("slipway-a.0a", 0.0) == jobs.known_jobs(("1",), 0.0) == (job,)
    with pytest.raises(SubmitError, match="Toy refused the job: no four nodes"):
        jobs.submit(batch_job(5), 0.0)
    jobs.cancel(("1",), 0.0)
    assert (jobs.our_jobs(0.0, 20.0), [job.ended_by for job in jobs.known_jobs(("1",), 0.0)]) == ((), ["cancelled"])


@pytest.mark.processes
@pytest.mark.usefixtures("toy")
def test_a_job_of_the_tutorial_has_its_nodes() -> None:
    scheduler, environ = get_scheduler("toy"), {"TOY_JOB": "1", "TOY_NODES": "n1,n2"}
    found = scheduler.allocate(AllocationRequest(nodes=2, gpus_per_node=1, largest_nodes=2, device="cpu"), environ, 1)
    assert ([node.name for node in found.nodes], found.own_job, scheduler.ended_by(found)) == (["n1", "n2"], True, None)
    with pytest.raises(AllocationError, match="3 nodes were asked, 2 granted"):
        scheduler.allocate(AllocationRequest(nodes=3, gpus_per_node=1, largest_nodes=3, device="cpu"), environ, 1)
    with pytest.raises(UnsupportedRequest, match="cannot be requeued"):
        scheduler.requeue(found)
    jobs = jobs_of("toy")
    assert jobs is not None
    assert jobs.submit(batch_job(2), 0.0) == "1"
    assert scheduler.holders_alive((holder("toy", "1"),), 5.0) == (False,)
    assert describe_holder(holder("toy", "1")) == "Toy job 1 (process 1 on ?); end it with `toy cancel 1`"
