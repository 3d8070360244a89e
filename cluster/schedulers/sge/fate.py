"""What becomes of a job: when it ends, why it ends, whether its holder still runs, and how it goes back into the queue."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from base.errors import SchedulerOutputError, SchedulerSilent
from cluster.schedulers import fate
from cluster.schedulers.limits import PATIENCE_S, SHORT_PATIENCE_S
from cluster.schedulers.sge.answers import Listed, submitted_of
from cluster.schedulers.sge.environ import JOB_ID, restart_count
from cluster.schedulers.sge.limits import EARLY_S
from cluster.schedulers.sge.query import SGE, job_details, listed_job, listed_jobs
from cluster.types import Allocation, Holder


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    """When the job ends, when it was submitted and started. Where this node may not ask (it is no submit host), nothing but the end that
    the batch script has told. Raises SchedulerSilent."""
    unknown = {"deadline": allocation.deadline, "submitted": None, "started": None}
    try:
        job = listed_job(allocation.job_id)
        fields = job_details([allocation.job_id]).get(allocation.job_id, {})
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return unknown
    if job is None or job.stage == "waits":
        return unknown
    end = None if job.started is None or job.h_rt_s is None else job.started + job.h_rt_s - EARLY_S
    ends = [moment for moment in (end, allocation.deadline) if moment is not None]
    return {"deadline": min(ends, default=None), "submitted": submitted_of(fields), "started": job.started}


def ended_by(allocation: Allocation) -> str | None:
    """By the letters of the job's state. None where this node may not ask. Raises SchedulerSilent."""
    try:
        job = listed_job(allocation.job_id, SHORT_PATIENCE_S)
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None
    return None if job is None else reason_of(job, allocation.restart_count, time.time())


def reason_of(job: Listed, restart_count: int, now: float) -> str | None:
    """Pure. At `h_rt` and at qdel a job has the same letters: the time tells which it was. One that was put back into the queue may run
    again (`Rr`, `Rt`) before we can ask; of a start that was not its first one cannot tell that."""
    if "R" in job.letters and (job.stage == "waits" or (restart_count == 0 and "d" not in job.letters)):
        return "requeued"
    if job.started is not None and job.h_rt_s is not None and now - job.started >= job.h_rt_s - EARLY_S:
        return "timeout"
    return "cancelled" if "d" in job.letters else None


def requeue(allocation: Allocation) -> None:
    """`qmod -rj`, which kills all of the job, and puts it back into the queue."""
    fate.requeue(SGE, allocation, ("qmod", "-rj", allocation.job_id), done="rescheduling")


def holder_alive(holder: Holder) -> bool | None:
    """An earlier start of our own job is over. A holder whose process we would see lives if we do; any other lives as long as its job runs.
    None while qmaster is silent."""
    (alive,) = holders_alive((holder,), PATIENCE_S)
    return alive


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """As holder_alive, by one question for all of them."""

    def by_job(others: Sequence[Holder]) -> list[bool]:
        jobs = {job.job_id: job for job in listed_jobs(limit_s)}
        return [is_running(jobs.get(holder.job_id), holder) for holder in others]

    return fate.holders_alive(holders, (os.environ.get(JOB_ID), restart_count(os.environ)), by_job)


def is_running(job: Listed | None, holder: Holder) -> bool:
    """Pure: whether a job may have processes of the start that the holder was of. It runs again since: that start is over."""
    if job is None or job.stage == "waits":
        return False
    return not ("R" in job.letters and holder.restart_count == 0)


def describe_holder(holder: Holder) -> str:
    """Pure: who holds a run, and how to end that."""
    return f"Grid Engine job {holder.job_id} (process {holder.pid} on {holder.host}); end it with `qdel {holder.job_id}`"
