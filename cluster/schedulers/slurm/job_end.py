"""Find out when and why a job ends and whether it still runs, requeue it, and start programs on its nodes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Final

from base.sanitize import digits
from cluster.gpus.decision import said_count
from cluster.schedulers import job_end, job_nodes
from cluster.schedulers.queries import SHORT_PATIENCE_S
from cluster.schedulers.slurm.answers import (
    ENDED_BY,
    JOB_ID,
    OVER,
    PREFIXES,
    REQUEUE_PATIENCE_S,
    RESTART_COUNT,
    SLURM,
    JobInfo,
    job_environ,
    job_info,
)
from cluster.types import Allocation, Grant, Holder

NODE_DOWN: Final = "NodeDown"
"""The reason of a job that Slurm has ended because one of its nodes does not answer."""


def is_running(info: JobInfo, restart_count: int) -> bool:
    """Return True if a job has processes of that start. A job that is COMPLETING has some until the last is gone."""
    return info.restarts == restart_count and info.state not in OVER and info.state != "PENDING"


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    """Query when the job ends, and when it was submitted and started. All are unknown if the job has another start now."""
    info = job_info(allocation.job_id)
    if info is None or info.restarts != allocation.restart_count:
        return {"deadline": None, "submitted": None, "started": None}
    deadline = info.end_time if info.time_limit_s is not None else None
    return {"deadline": deadline, "submitted": info.submit_time, "started": info.start_time}


def ended_by(allocation: Allocation) -> str | None:
    """Read the reason from the job's state.

    A requeued job counts a new start as soon as it is ordered to end, whatever the reason of the requeue.
    """
    info = job_info(allocation.job_id, SHORT_PATIENCE_S)
    if info is None:
        return None
    return reason_of(info, allocation.restart_count)


def reason_of(info: JobInfo, restart_count: int) -> str | None:
    """Derive the reason why a job ends.

    While a job is COMPLETING, Slurm hides its last state: then a node that is down, or the times, show the reason.
    """
    if info.restarts > restart_count:
        return "requeued"
    if info.preempt_time is not None:
        return "preempted"
    if info.state != "COMPLETING":
        return ENDED_BY.get(info.state)
    if info.reason == NODE_DOWN:
        return "node_lost"
    start, end, limit = info.start_time, info.end_time, info.time_limit_s
    if start is not None and end is not None and limit is not None and end - start >= limit:
        return "timeout"
    return "cancelled"


def requeue(allocation: Allocation) -> None:
    """Run `scontrol requeue`. The signal that ends us follows."""
    argv = ("scontrol", "requeue", allocation.job_id)
    job_end.requeue(SLURM, allocation, argv, hint=" (JobRequeue in slurm.conf, --requeue)", patience_s=REQUEUE_PATIENCE_S)


# The grant of a step on its node.


INDICES: Final = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
"""The variables that list GPUs, by preference.

SLURM_JOB_GPUS describes the job's first node only. It is used in a step without a list of its own, where --gres was not requested.
"""


def read_grant(environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant:
    """Read the grant of a task of srun.

    `peer` is an address that this node must reach, `interface` the network interface of the site file. Raises AllocationError.
    """
    return dataclasses.replace(
        job_nodes.read_grant(environ, device, peer, interface, environ.get("SLURMD_NODENAME"), gpu_count(environ)),
        cpus=_number(environ, "SLURM_CPUS_ON_NODE"),
        gpu_indices=gpu_indices(environ),
        restart_count=_number(environ, RESTART_COUNT),
    )


def gpu_indices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs of this step by Slurm's names."""
    for name in INDICES:
        if environ.get(name) and (name != "SLURM_JOB_GPUS" or environ.get("SLURM_NODEID") == "0"):
            return tuple(word.strip() for word in environ[name].split(",") if word.strip())
    return ()


def gpu_count(environ: Mapping[str, str]) -> int | None:
    """Return the number of GPUs granted here, or None if Slurm manages no GPUs."""
    said = said_count(environ, "slurm")
    return said if said is not None else (len(gpu_indices(environ)) or None)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    return digits(environ.get(name, ""))


# Whether the holder of a run lives.


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """Return for each holder whether it lives. After one job met a silent controller, no other job is queried."""
    job = job_environ(os.environ)
    ours = (job.get(JOB_ID), int(job.get(RESTART_COUNT) or 0))
    return job_end.holders_alive(holders, ours, lambda others: tuple(job_end.each_job_alive(others, job_info, is_running, limit_s)))


# The one srun that starts a program on every node of a run.


OURS: Final = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_WORKING_CLUSTER", "SLURM_CLUSTERS")
"""The variables that srun needs.

The others that it would read (a CPU mask of another step, --export=NONE of the submission) are not meant for it.
"""
INPUTS: Final = (*PREFIXES, "SRUN_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_")


def srun_argv(allocation: Allocation, command: tuple[str, ...]) -> tuple[str, ...]:
    """Build the srun that starts `command` once on every node, with all that the run was granted there.

    It runs beside other steps of the job. --overlap: the job's own step may hold everything. --mem=0: the memory of the job. No --cpu-bind:
    the only task gets all CPUs. The end of one program does not end the others (--wait=0, --kill-on-bad-exit=0): the supervisor decides.
    """
    names = ",".join(node.name for node in allocation.nodes)
    count = len(allocation.nodes)
    sizes = (
        *((f"--cpus-per-task={allocation.cpus_per_node}",) if allocation.cpus_per_node else ()),
        *((f"--gres=gpu:{allocation.gres}",) if allocation.gres else ()),
    )
    return (
        "srun",
        f"--jobid={allocation.job_id}",
        "--overlap",
        f"--nodes={count}",
        f"--nodelist={names}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        *sizes,
        "--mem=0",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--input=all",
        "--export=ALL",
        *command,
    )


def srun_environment(environ: Mapping[str, str], job: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables that srun would read as options, and with those that it needs to find the job.

    `job` is the result of job_environ.
    """
    own = {name: job[name] for name in OURS if name in job}
    return {**{name: value for name, value in environ.items() if not name.startswith(INPUTS)}, **own}
