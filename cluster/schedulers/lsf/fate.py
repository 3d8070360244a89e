"""What becomes of a job: when it ends, why it ends, whether its holder still runs, and how it goes back into the queue."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from base.errors import SchedulerOutputError, SchedulerSilent
from cluster.schedulers import fate
from cluster.schedulers.asking import ask
from cluster.schedulers.limits import ANSWER_S, PATIENCE_S, QUICK_ANSWER_S, SHORT_PATIENCE_S
from cluster.schedulers.lsf.answers import Details, Listed, ended_by_of, signal_of
from cluster.schedulers.lsf.environ import JOB_ID, restart_count
from cluster.schedulers.lsf.limits import EARLY_S
from cluster.schedulers.lsf.query import LSF, job_details, listed_jobs
from cluster.types import Allocation, Holder


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    """When the job ends, when it was submitted and started. Where this node may not ask, nothing but the end that the batch script
    has told. Raises SchedulerSilent."""
    try:
        found = job_details([allocation.job_id]).get(allocation.job_id, Details())
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        found = Details()
    end = None if found.started is None or found.limit_s is None else found.started + found.limit_s
    ends = [moment for moment in (end, allocation.deadline) if moment is not None]
    return {"deadline": min(ends, default=None), "submitted": found.submitted, "started": found.started}


def ended_by(allocation: Allocation) -> str | None:
    """By the job's state, by its time, and by what somebody has asked for, which only its history tells while it runs. None where this node
    may not ask. Raises SchedulerSilent."""
    if allocation.deadline is not None and time.time() >= allocation.deadline - EARLY_S:
        return "timeout"
    try:
        jobs = listed_jobs(SHORT_PATIENCE_S, QUICK_ANSWER_S, "-a", allocation.job_id)
        found = next((job for job in jobs if job.job_id == allocation.job_id), None)
        if found is None:
            return None
        if found.stage == "waits":
            return "requeued"
        if found.stage == "over":
            return ended_by_of(found.state, job_details([found.job_id], SHORT_PATIENCE_S).get(found.job_id, Details()))
        return signal_of(ask(LSF, ("bhist", "-l", found.job_id), SHORT_PATIENCE_S, ANSWER_S))
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None


def requeue(allocation: Allocation) -> None:
    """`brequeue`, which signals all of the job, kills it 20 s later and puts it back into the queue."""
    fate.requeue(LSF, allocation, ("brequeue", allocation.job_id), done="is being requeued")


def holder_alive(holder: Holder) -> bool | None:
    """An earlier start of our own job is over. A holder whose process we would see lives if we do; any other lives as long as its job runs.
    None while mbatchd is silent."""
    (alive,) = holders_alive((holder,), PATIENCE_S)
    return alive


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """As holder_alive, by one question for all of them."""

    def by_job(others: Sequence[Holder]) -> list[bool]:
        jobs = {job.job_id: job for job in listed_jobs(limit_s)}
        return [is_running(jobs.get(holder.job_id)) for holder in others]

    return fate.holders_alive(holders, (os.environ.get(JOB_ID), restart_count(os.environ)), by_job)


def is_running(job: Listed | None) -> bool:
    """Pure: whether a job may have processes. Which start of it they are of LSF does not say."""
    return job is not None and job.stage != "waits"


def describe_holder(holder: Holder) -> str:
    """Pure: who holds a run, and how to end that."""
    return f"LSF job {holder.job_id} (process {holder.pid} on {holder.host}); end it with `bkill {holder.job_id}`"
