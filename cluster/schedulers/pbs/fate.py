"""What becomes of a job: when it ends, why it ends, which start of it this is."""

from __future__ import annotations

import time
from collections.abc import Mapping

from base.errors import AllocationError, SchedulerSilent, UnsupportedRequest
from base.foreign import digits
from base.publish import publish
from cluster.runtime import runtime_directory
from cluster.schedulers.limits import SHORT_PATIENCE_S
from cluster.schedulers.pbs.answers import JobInfo
from cluster.schedulers.pbs.environ import JOB_ID, start_word
from cluster.schedulers.pbs.query import job_info
from cluster.schedulers.pbs.states import TERMINATED, stage_of
from cluster.schedulers.pbs.states import ended_by as ended_by_status
from cluster.types import Allocation


def is_running(job: JobInfo, restart_count: int) -> bool:
    """Pure: whether a job has processes of that start."""
    return job.restarts == restart_count and stage_of(job.state) in ("runs", "ends")


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    """When the job ends, when it was submitted and started; of another start of it, nothing."""
    job = job_info(allocation.job_id)
    if job is None or job.restarts != allocation.restart_count:
        return {"deadline": None, "submitted": None, "started": None}
    return {"deadline": end_of(job), "submitted": job.submitted, "started": job.started}


def end_of(job: JobInfo) -> float | None:
    """Pure: when PBS ends it; None without a limit, and before it has started."""
    return None if job.started is None or job.walltime_s is None else job.started + job.walltime_s


def ended_by(allocation: Allocation) -> str | None:
    """By what the server says of it. A job that was deleted is `running` until its processes are gone, and so is one whose time is over:
    the node ends that one by itself."""
    job = job_info(allocation.job_id, SHORT_PATIENCE_S, history=True)
    return None if job is None else reason_of(job, allocation.restart_count, time.time())


def reason_of(job: JobInfo, restart_count: int, now: float) -> str | None:
    """Pure. `now`: unix time."""
    if job.restarts > restart_count:
        return "requeued"
    stage = stage_of(job.state)
    if stage == "over":
        return ended_by_status(job)
    if TERMINATED in job.comment:
        return "cancelled"
    if stage == "waits":
        return "requeued"
    end = end_of(job)
    return "timeout" if end is not None and now >= end else None


def requeue(allocation: Allocation) -> None:
    """Raises UnsupportedRequest: PBS leaves that to its operators."""
    raise UnsupportedRequest(f"job {allocation.job_id} cannot be requeued: PBS lets only operators do that (qrerun); submit it again")


def restart_count(environ: Mapping[str, str]) -> int:
    """Which start of its job this is. Asked once for each start, and kept on this machine for the runs that share it: the server may be
    away later. Raises AllocationError where it is silent from the beginning, as two starts of one job must not be taken for one."""
    kept = runtime_directory() / f"pbs-{start_word(environ)}.start"
    found = digits(kept.read_text().strip()) if kept.exists() else None
    if found is not None:
        return found
    try:
        job = job_info(environ[JOB_ID])
    except SchedulerSilent as error:
        raise AllocationError(f"job {environ[JOB_ID]}: which start of it this is, only the server of PBS knows: {error}") from error
    if job is None:
        raise AllocationError(f"job {environ[JOB_ID]} is not known to the server of PBS; is it still running?")
    publish(kept, f"{job.restarts}\n".encode())
    return job.restarts
