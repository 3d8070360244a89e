"""What is the same for all schedulers inside of a job: nodes of a run, holders of runs, and requeueing."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import SchedulerOutputError, SchedulerSilent, UnsupportedRequest
from cluster.schedulers import lsf, pbs, sge
from cluster.schedulers.inside_job import holders_alive, names_for, read_grant, requeue
from cluster.schedulers.jobs import QueuedJob
from cluster.schedulers.slurm.answers import SLURM
from cluster.types import AllocationRequest
from tests.cluster.builders import allocation, holder, write_command

ELSEWHERE = holder("x", restart_count=1)
ALLOCATION = allocation("x", own_job=True)


def test_the_scheduler_is_asked_once_for_those_of_whom_this_host_cannot_tell() -> None:
    earlier = replace(ELSEWHERE, restart_count=0)
    others = [replace(ELSEWHERE, job_id=job_id) for job_id in ("8", "8", "9", "10")]
    told: list[Sequence[str]] = []

    def jobs_of(ids: Sequence[str]) -> list[QueuedJob]:
        told.append(ids)
        return [QueuedJob(job_id=job_id, stage="runs", state="r", restarts=start) for job_id, start in (("8", 1), ("9", 2), ("11", 1))]

    assert holders_alive((earlier, *others, earlier), ("7", 1), jobs_of) == (False, True, True, False, False, False)
    assert told == [["8", "9", "10"]]
    assert holders_alive((earlier,), ("7", 1), jobs_of) == (False,)
    assert len(told) == 1


@pytest.mark.parametrize("error", [SchedulerSilent, SchedulerOutputError])
def test_of_a_scheduler_that_does_not_answer_nothing_is_known(error: type[SchedulerOutputError]) -> None:
    def silent(ids: Sequence[str]) -> list[QueuedJob]:
        raise error(str(ids))

    holders = (replace(ELSEWHERE, job_id="8"), replace(ELSEWHERE, restart_count=0))
    assert holders_alive(holders, ("7", 1), silent, lambda _job, _holder: True) == (None, False)


@pytest.mark.processes
def test_a_job_goes_back_only_if_its_scheduler_says_so(tmp_path: Path) -> None:
    command = tmp_path / "again"
    write_command(command, 'echo "$1"; [ "$1" != refused ] || { echo "may not" >&2; exit 1; }')
    requeue(SLURM, ALLOCATION, (str(command), "rescheduling 7"), done="rescheduling")
    with pytest.raises(UnsupportedRequest, match="job 7 cannot be requeued: something else"):
        requeue(SLURM, ALLOCATION, (str(command), "something else"), done="rescheduling")
    with pytest.raises(UnsupportedRequest, match="job 7 cannot be requeued: Slurm does not know it"):
        requeue(SLURM, ALLOCATION, (str(command), ""), done="rescheduling")
    with pytest.raises(UnsupportedRequest, match=r"(?s)job 7 cannot be requeued \(look\): .*may not"):
        requeue(SLURM, ALLOCATION, (str(command), "refused"), hint=" (look)")
    with pytest.raises(UnsupportedRequest, match="not this run's alone"):
        requeue(SLURM, replace(ALLOCATION, own_job=False), (str(command), "rescheduling"))


REQUEST = AllocationRequest(nodes=1, gpus_per_node=1, largest_nodes=1, device="cpu", avoid=("n1",))
ADDRESSES = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3", "n4": "10.0.0.4"}


def test_a_run_takes_nodes_of_its_set_and_last_those_that_failed_it() -> None:
    assert names_for(REQUEST, tuple(ADDRESSES)) == ("n2", "n3", "n4", "n1")
    assert names_for(replace(REQUEST, node_set=(0, 2)), tuple(ADDRESSES)) == ("n2", "n1")
    assert names_for(replace(REQUEST, node_set=(1, 2)), tuple(ADDRESSES)) == ("n3", "n4")


@pytest.mark.parametrize("scheduler", ["lsf", "pbs", "sge"])
def test_the_nodes_of_an_allocation_are_in_that_order(scheduler: str) -> None:
    if scheduler == "pbs":
        found = pbs.plan_allocation(REQUEST, {"PBS_JOBID": "7.host"}, ADDRESSES, 0, None)
    elif scheduler == "lsf":
        found = lsf.plan_allocation(REQUEST, {"LSB_JOBID": "7"}, dict.fromkeys(ADDRESSES, 4), ADDRESSES)
    else:
        found = sge.plan_allocation(REQUEST, {"JOB_ID": "7"}, dict.fromkeys(ADDRESSES, 4), ADDRESSES)
    assert [node.name for node in found.nodes] == ["n2", "n3", "n4", "n1"]


@pytest.mark.parametrize(
    ("environ", "node", "cpus", "gpus", "start"),
    [
        ({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_CPUS_ON_NODE": "8", "SLURM_RESTART_COUNT": "2"}, "n1", 8, "", 2),
        (
            {"SLURM_JOB_ID": "7", "SLURM_STEP_GPUS": "0,3", "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"},
            None,
            None,
            "0 3",
            None,
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4,5", "SLURM_NODEID": "0"}, None, None, "4 5", None),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4,5", "SLURM_NODEID": "1", "CUDA_VISIBLE_DEVICES": "0,1"}, None, None, "0 1", None),
        (
            {"PBS_JOBID": "7.s", "SLIPWAY_PBS_NODE": "n2", "NCPUS": "4", "CUDA_VISIBLE_DEVICES": "GPU-a\\,GPU-b"},
            "n2",
            4,
            "GPU-a GPU-b",
            None,
        ),
        ({"JOB_ID": "7", "SGE_ROOT": "/sge", "HOSTNAME": "n3", "RESTARTED": "1", "SGE_HGR_gpu": "gpu1"}, "n3", None, "1", None),
        ({"LSB_JOBID": "7", "SLIPWAY_LSF_NODE": "n4", "CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES1": "2"}, "n4", None, "1 2", None),
    ],
)
def test_a_node_program_reads_its_grant_by_the_variables_of_its_scheduler(
    environ: dict[str, str], node: str | None, cpus: int | None, gpus: str, start: int | None
) -> None:
    found = read_grant(environ, "cpu", "127.0.0.1", None)
    assert found is not None
    assert (found.node, found.cpus, " ".join(found.gpu_indices), found.restart_count) == (node or os.uname().nodename, cpus, gpus, start)
    assert (found.address, found.gpus, found.gpu_rule) == ("127.0.0.1", (), None)


def test_outside_of_a_job_the_allocation_has_all_that_is_granted() -> None:
    assert read_grant({}, "cpu", "127.0.0.1", None) is None
