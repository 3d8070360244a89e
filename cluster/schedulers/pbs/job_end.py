"""What becomes of a job: when it ends, why it ends, which start of it this is."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base.errors import AllocationError, SchedulerSilent, UnsupportedRequest
from base.publish import publish
from base.sanitize import digits
from cluster.runtime import runtime_directory
from cluster.schedulers import job_end
from cluster.schedulers.pbs.answers import TERMINATED, JobInfo, job_info, stage_of
from cluster.schedulers.pbs.answers import ended_by as ended_by_status
from cluster.schedulers.queries import SHORT_PATIENCE_S
from cluster.types import Allocation, Holder

# What the environment of a process says of the PBS job that it is in.


JOB_ID: Final = "PBS_JOBID"
NODE_FILE: Final = "PBS_NODEFILE"
COOKIE: Final = "PBS_JOBCOOKIE"


def start_word(environ: Mapping[str, str]) -> str | None:
    """Pure: the number of the job, and a word for this start of it. PBS does not number the starts in the environment, but gives each a
    cookie of its own, of which a digest tells nothing."""
    job_id = environ.get(JOB_ID)
    if not job_id:
        return None
    digest = hashlib.sha256(f"{job_id} {environ.get(COOKIE, '')}".encode(errors="replace")).hexdigest()[:12]
    return f"{job_id.partition('.')[0].partition('[')[0]}-{digest}"


def node_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The job's nodes, in order: the file has a line per chunk or MPI rank. Only the first node has it. Raises AllocationError."""
    path = environ.get(NODE_FILE, "")
    try:
        lines = Path(path).read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise AllocationError(
            f"job {environ.get(JOB_ID)}: {NODE_FILE}={path!r}, which names its nodes, cannot be read here "
            f"({getattr(error, 'strerror', None) or error}): only the first node of a job has it"
        ) from error
    names = tuple(dict.fromkeys(lines))
    if not names:
        raise AllocationError(f"job {environ.get(JOB_ID)}: {path} names no node")
    return names


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


# Whether the holder of a run is alive: by its process where we can see it, else by its job, in the start that it belonged to.


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """As holder_alive. A server that is silent for one job is not asked for the others."""
    ours = _our_start({holder.job_id for holder in holders})
    return job_end.holders_alive(holders, ours, lambda others: tuple(job_end.each_job_alive(others, job_info, is_running, limit_s)))


def _our_start(job_ids: set[str]) -> tuple[str | None, int]:
    """Our job and its start, if one of these is it."""
    job_id = os.environ.get(JOB_ID)
    try:
        return (job_id, restart_count(os.environ)) if job_id in job_ids else (None, 0)
    except AllocationError:
        return (None, 0)
