"""What is the same for all schedulers inside of a job: nodes of a run, holders of runs, and requeueing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from base.errors import SchedulerOutputError, SchedulerSilent, UnsupportedRequest
from cluster.schedulers import lsf, pbs, sge
from cluster.schedulers.inside_job import each_job_alive, holders_alive, names_for, read_grant, requeue
from cluster.schedulers.slurm.answers import SLURM
from cluster.types import Allocation, AllocationRequest, Holder, Node

ELSEWHERE = Holder(scheduler="x", job_id="7", restart_count=1, host="?", pid=1, pid_start=1, boot_id="?", pid_namespace="?")
ALLOCATION = Allocation(
    scheduler="x", job_id="7", nodes=(Node(name="n1", hostname="n1", address="10.0.0.1"),), device="cpu", exclusive=True, own_job=True
)


@dataclass
class Asked:
    """Jobs that run, with their start; `silent`: for these nobody answers. Keeps what was asked for."""

    runs: dict[str, int]
    silent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.ids: list[str] = []

    def job_info(self, job_id: str, patience_s: float, timeout_s: float) -> int | None:  # noqa: ARG002 - nobody waits here
        self.ids.append(job_id)
        if job_id in self.silent:
            raise SchedulerSilent("silent")
        if job_id == "broken":
            raise SchedulerOutputError("nonsense")
        return self.runs.get(job_id)

    def alive(self, *job_ids: str, limit_s: float = 60.0) -> list[bool | None]:
        holders = [replace(ELSEWHERE, job_id=job_id) for job_id in job_ids]
        return list(each_job_alive(holders, self.job_info, lambda start, count: start == count, limit_s))


def test_each_job_is_asked_for_once() -> None:
    asked = Asked({"8": 1, "9": 2})
    assert asked.alive("8", "8", "9", "10", "8") == [True, True, False, False, True]
    assert asked.ids == ["8", "9", "10"]


def test_who_is_silent_for_one_job_is_not_asked_for_the_others() -> None:
    asked = Asked({"8": 1}, silent=("9",))
    assert asked.alive("8", "9", "10", "8") == [True, None, None, True]
    assert asked.ids == ["8", "9"]
    assert Asked({"8": 1}).alive("8", limit_s=0.0) == [None]


def test_an_answer_that_cannot_be_read_is_one_jobs_alone() -> None:
    asked = Asked({"8": 1})
    assert asked.alive("broken", "8", "broken") == [None, True, None]
    assert asked.ids == ["broken", "8"]


def test_the_scheduler_is_asked_only_for_those_of_whom_this_host_cannot_tell() -> None:
    earlier, other = replace(ELSEWHERE, restart_count=0), replace(ELSEWHERE, job_id="8")
    told: list[Sequence[Holder]] = []

    def by_job(others: Sequence[Holder]) -> list[bool]:
        told.append(others)
        return [True]

    assert holders_alive((earlier, other, earlier), ("7", 1), by_job) == (False, True, False)
    assert told == [[other]]
    assert holders_alive((earlier,), ("7", 1), by_job) == (False,)
    assert len(told) == 1


def test_of_a_scheduler_that_is_silent_nothing_is_known() -> None:
    def silent(others: Sequence[Holder]) -> list[bool]:
        raise SchedulerSilent(str(len(others)))

    assert holders_alive((ELSEWHERE, replace(ELSEWHERE, restart_count=0)), ("7", 1), silent) == (None, False)


@pytest.mark.processes
def test_a_job_goes_back_only_if_its_scheduler_says_so(tmp_path: Path) -> None:
    command = tmp_path / "again"
    command.write_text('#!/bin/sh\necho "$1"; [ "$1" != refused ] || { echo "may not" >&2; exit 1; }\n')
    command.chmod(0o755)
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
        ({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_CPUS_ON_NODE": "8", "SLURM_RESTART_COUNT": "2"}, "n1", 8, (), 2),
        (
            {"SLURM_JOB_ID": "7", "SLURM_STEP_GPUS": "0,3", "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"},
            None,
            None,
            ("0", "3"),
            None,
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4,5", "SLURM_NODEID": "0"}, None, None, ("4", "5"), None),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4,5", "SLURM_NODEID": "1", "CUDA_VISIBLE_DEVICES": "0,1"}, None, None, ("0", "1"), None),
        (
            {"PBS_JOBID": "7.s", "SLIPWAY_PBS_NODE": "n2", "NCPUS": "4", "CUDA_VISIBLE_DEVICES": "GPU-a\\,GPU-b"},
            "n2",
            4,
            ("GPU-a", "GPU-b"),
            None,
        ),
        ({"JOB_ID": "7", "SGE_ROOT": "/sge", "HOSTNAME": "n3", "RESTARTED": "1", "SGE_HGR_gpu": "gpu1"}, "n3", None, ("1",), None),
        (
            {"LSB_JOBID": "7", "SLIPWAY_LSF_NODE": "n4", "CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES1": "2"},
            "n4",
            None,
            ("1", "2"),
            None,
        ),
    ],
)
def test_a_node_program_reads_its_grant_by_the_variables_of_its_scheduler(
    environ: dict[str, str], node: str | None, cpus: int | None, gpus: tuple[str, ...], start: int | None
) -> None:
    found = read_grant(environ, "cpu", "127.0.0.1", None)
    assert found is not None
    assert (found.node, found.cpus, found.gpu_indices, found.restart_count) == (node or os.uname().nodename, cpus, gpus, start)
    assert (found.address, found.gpus, found.gpu_rule) == ("127.0.0.1", (), None)


def test_outside_of_a_job_the_allocation_has_all_that_is_granted() -> None:
    assert read_grant({}, "cpu", "127.0.0.1", None) is None
