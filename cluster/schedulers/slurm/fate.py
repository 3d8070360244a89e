"""What becomes of a job: when it ends, why it ends, whether it still runs, and how it goes back into the queue."""

from __future__ import annotations

from typing import Final

from cluster.schedulers import fate
from cluster.schedulers.limits import SHORT_PATIENCE_S
from cluster.schedulers.slurm.answers import JobInfo
from cluster.schedulers.slurm.limits import REQUEUE_PATIENCE_S
from cluster.schedulers.slurm.query import SLURM, job_info
from cluster.schedulers.slurm.states import ENDED_BY, OVER
from cluster.types import Allocation

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
    fate.requeue(SLURM, allocation, argv, hint=" (JobRequeue in slurm.conf, --requeue)", patience_s=REQUEUE_PATIENCE_S)
