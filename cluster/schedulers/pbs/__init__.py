"""Read the nodes of a job of OpenPBS or PBS Professional and when and why it ends, and start a node program by each pbs_tmrsh.

PBS signals a job's first node only, and leaves processes alive that have a session of their own: node programs end by their own link to the
supervisor and by its deadline. In `profiles/pbs` the job is the run's own; in `profiles/pbs-allocation` many runs share one job.
"""

import dataclasses
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base import publish, sanitize
from base.errors import AllocationError, SchedulerSilent, UnsupportedRequest
from cluster import detection, runtime
from cluster.pbs_tasks.launcher import launcher_argv
from cluster.schedulers import inside_job, queries
from cluster.schedulers.jobs import QueuedJob
from cluster.schedulers.pbs.answers import PBS, job_info, query_jobs
from cluster.types import Allocation, AllocationRequest, Holder, Launch

NAME = "pbs"
LIMIT_SIGNAL: int | None = None
SILENCE: Final = ("tm_init",)
"""The message of pbs_tmrsh while the daemon of this node is silent."""


# The allocation.


JOB_ID: Final = "PBS_JOBID"
NODE_FILE: Final = "PBS_NODEFILE"
COOKIE: Final = "PBS_JOBCOOKIE"


def allocate(request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:  # noqa: ARG001 - the job counts
    if detection.scheduler_of(environ) != NAME:
        raise AllocationError("the site says scheduler: pbs, and this process is not inside a job of PBS: see docs/how-to/schedulers.md")
    addresses = inside_job.resolved(node_names(environ))
    return plan_allocation(request, environ, addresses, restart_count(environ), queries.version_of(PBS, detection.SIGNS[NAME].version))


def plan_allocation(
    request: AllocationRequest, environ: Mapping[str, str], addresses: Mapping[str, str], restarts: int, version: str | None
) -> Allocation:
    found = inside_job.job_allocation(
        (NAME, environ[JOB_ID]),
        request,
        environ,
        addresses,
        is_batch=environ.get("PBS_ENVIRONMENT") == "PBS_BATCH",
        advice=f"; submit it with -l select={inside_job.nodes_of_all_sets(request)}:... -l place=scatter",
    )
    cpus = sanitize.ascii_int(environ.get("NCPUS", "")) or request.cpus_per_node
    return dataclasses.replace(found, scheduler_version=version, restart_count=restarts, cpus_per_node=cpus)


def node_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Read the job's nodes, in order, from a file that only the first node has. Raises AllocationError."""
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


def launches(allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
    return inside_job.launch_each(allocation, node_argv, launcher_argv, SILENCE)


def launch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Copy the environment: pbs_tmrsh finds the job by PBS's variables, and the launcher leaves out what each node has of its own."""
    return dict(environ)


# The start of the job that this is.


def job_start(environ: Mapping[str, str]) -> str | None:
    """Return the job's number, and a word for this start: a digest, which discloses nothing, of its cookie. PBS does not number starts."""
    job_id = environ.get(JOB_ID)
    if not job_id:
        return None
    digest = hashlib.sha256(f"{job_id} {environ.get(COOKIE, '')}".encode(errors="replace")).hexdigest()[:12]
    return f"{job_id.partition('.')[0].partition('[')[0]}-{digest}"


def restart_count(environ: Mapping[str, str]) -> int:
    """Return the number of this start of the job.

    It is queried once for each start, and kept on this machine for the runs that share it, because the server may be away later. Raises
    AllocationError if the server is silent from the beginning, as two starts of one job must not be taken for one.
    """
    kept = runtime.runtime_directory() / f"pbs-{job_start(environ)}.start"
    found = sanitize.ascii_int(kept.read_text().strip()) if kept.exists() else None
    if found is not None:
        return found
    try:
        job = job_info(environ[JOB_ID])
    except SchedulerSilent as error:
        raise AllocationError(f"job {environ[JOB_ID]}: which start of it this is, only the server of PBS knows: {error}") from error
    if job is None:
        raise AllocationError(f"job {environ[JOB_ID]} is not known to the server of PBS; is it still running?")
    publish.publish(kept, f"{job.restarts}\n".encode())
    return job.restarts


# The end of the job.


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    return inside_job.facts_of(job_info(allocation.job_id), allocation.restart_count)


def ended_by(allocation: Allocation) -> str | None:
    job = job_info(allocation.job_id, queries.SHORT_PATIENCE_S, history=True)
    return None if job is None else reason_of(job, allocation.restart_count, time.time())


def reason_of(job: QueuedJob, restart_count: int, now: float) -> str | None:
    """Derive the reason why a job ends. One whose time is over is `running` until its processes are gone."""
    known = inside_job.reason_of(job, restart_count)
    return "timeout" if known is None and job.stage != "over" and job.end is not None and now >= job.end else known


def requeue(allocation: Allocation) -> None:
    """Raise UnsupportedRequest, because PBS leaves that to its operators."""
    raise UnsupportedRequest(f"job {allocation.job_id} cannot be requeued: PBS lets only operators do that (qrerun); submit it again")


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    job_id = os.environ.get(JOB_ID)
    try:
        ours = (job_id, restart_count(os.environ)) if job_id in {holder.job_id for holder in holders} else (None, 0)
    except AllocationError:
        ours = (None, 0)
    return inside_job.holders_alive(holders, ours, lambda ids: query_jobs(ids, limit_s))
