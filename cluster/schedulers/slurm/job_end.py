"""What becomes of a job: when it ends, why it ends, whether it still runs, and how it goes back into the queue."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Final

from base.sanitize import digits
from cluster.gpus.decision import said_count
from cluster.schedulers import job_end, job_nodes
from cluster.schedulers.queries import PATIENCE_S, SHORT_PATIENCE_S
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
"""The reason of a job that Slurm has ended since one of its nodes does not answer."""


def is_running(info: JobInfo, restart_count: int) -> bool:
    """Pure: whether a job has processes of that start. One that is COMPLETING has, until the last is gone."""
    return info.restarts == restart_count and info.state not in OVER and info.state != "PENDING"


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    """When the job ends, when it was submitted and started; of another start of it, nothing."""
    info = job_info(allocation.job_id)
    if info is None or info.restarts != allocation.restart_count:
        return {"deadline": None, "submitted": None, "started": None}
    deadline = info.end_time if info.time_limit_s is not None else None
    return {"deadline": deadline, "submitted": info.submit_time, "started": info.start_time}


def ended_by(allocation: Allocation) -> str | None:
    """By the job's state. A job that is put back into the queue, for whatever reason, counts a new start as soon as it is told to end."""
    info = job_info(allocation.job_id, SHORT_PATIENCE_S)
    if info is None:
        return None
    return reason_of(info, allocation.restart_count)


def reason_of(info: JobInfo, restart_count: int) -> str | None:
    """Pure. While a job is COMPLETING Slurm hides its last state: then a node that is down, or the times, tell."""
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
    """`scontrol requeue`; the signal that ends us follows."""
    argv = ("scontrol", "requeue", allocation.job_id)
    job_end.requeue(SLURM, allocation, argv, hint=" (JobRequeue in slurm.conf, --requeue)", patience_s=REQUEUE_PATIENCE_S)


# What a step was granted on its node, read from within: Slurm's variables, the machine's own word.


INDICES: Final = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
"""SLURM_JOB_GPUS is of the job's first node only, but stands here for the step that has no list of its own: --gres was not asked."""


def read_grant(environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant:
    """For a task of srun. `peer`: whom we must reach; `interface`: the site's, if it names one. Raises AllocationError."""
    return dataclasses.replace(
        job_nodes.read_grant(environ, device, peer, interface, environ.get("SLURMD_NODENAME"), gpu_count(environ)),
        cpus=_number(environ, "SLURM_CPUS_ON_NODE"),
        gpu_indices=gpu_indices(environ),
        restart_count=_number(environ, RESTART_COUNT),
    )


def gpu_indices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Pure: the GPUs of this step as Slurm calls them."""
    for name in INDICES:
        if environ.get(name) and (name != "SLURM_JOB_GPUS" or environ.get("SLURM_NODEID") == "0"):
            return tuple(word.strip() for word in environ[name].split(",") if word.strip())
    return ()


def gpu_count(environ: Mapping[str, str]) -> int | None:
    """Pure: how many GPUs were granted here; None where Slurm manages none."""
    said = said_count(environ, "slurm")
    return said if said is not None else (len(gpu_indices(environ)) or None)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    return digits(environ.get(name, ""))


# Whether the holder of a run is alive: by its process where we can see it, else by its job, in the start that it belonged to.


def holder_alive(holder: Holder) -> bool | None:
    """An earlier start of our own job is over. A holder whose process we would see lives if we do; any other lives as long as its job is
    in the start that it was in. None while slurmctld is silent."""
    (alive,) = holders_alive((holder,), PATIENCE_S)
    return alive


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """As holder_alive. A controller that is silent for one job is not asked for the others."""
    job = job_environ(os.environ)
    ours = (job.get(JOB_ID), int(job.get(RESTART_COUNT) or 0))
    return job_end.holders_alive(holders, ours, lambda others: tuple(job_end.each_job_alive(others, job_info, is_running, limit_s)))


def describe_holder(holder: Holder) -> str:
    """Pure: who holds a run, and how to end that."""
    return f"Slurm job {holder.job_id} (process {holder.pid} on {holder.host}); end it with `scancel {holder.job_id}`"


# The one srun that starts a program on every node of a run. Pure.


OURS: Final = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_WORKING_CLUSTER", "SLURM_CLUSTERS")
"""What srun must know. All else that it would read (a CPU mask of another step, --export=NONE of the submission) is for others."""
INPUTS: Final = (*PREFIXES, "SRUN_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_")


def srun_argv(allocation: Allocation, command: tuple[str, ...]) -> tuple[str, ...]:
    """Pure: `command` once on every node, with all that the run was granted there, beside other steps of the job.

    --overlap: the job's own step may hold all of it. --mem=0: the memory of the job. No --cpu-bind: with all CPUs in one task, the task
    gets them all. A program that ends says nothing of the others (--wait=0, --kill-on-bad-exit=0): the supervisor decides.
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
    """Pure: `environ` without what srun would take for options, and with what it needs to find the job (`job`: of job_environ)."""
    own = {name: job[name] for name in OURS if name in job}
    return {**{name: value for name, value in environ.items() if not name.startswith(INPUTS)}, **own}
