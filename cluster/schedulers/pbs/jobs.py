"""What commands ask of PBS's jobs: the functions of the Protocol `Jobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from base.errors import AllocationError, SchedulerOutputError
from cluster.schedulers.asking import asked, complains_only_of, refusal_words
from cluster.schedulers.limits import ANSWER_S
from cluster.schedulers.pbs.acceptance import never_starts as never_starts
from cluster.schedulers.pbs.acceptance import refusal_of as refusal_of
from cluster.schedulers.pbs.batch_script import batch_script, qsub_options
from cluster.schedulers.pbs.batch_script import inherited as inherited
from cluster.schedulers.pbs.batch_script import owned_by_us as owned_by_us
from cluster.schedulers.pbs.environ import JOB_ID, node_names
from cluster.schedulers.pbs.fate import end_of
from cluster.schedulers.pbs.query import GONE, PBS, job_info
from cluster.schedulers.pbs.queue import jobs_named as jobs_named
from cluster.schedulers.pbs.queue import known_jobs as known_jobs
from cluster.schedulers.pbs.queue import our_jobs as our_jobs
from cluster.schedulers.pbs.submit import submit as submit

TITLE = "PBS"
SERVER = "the server of PBS"
SUBMIT = "qsub"
PROFILE = "pbs"
SHARED_PROFILE = "pbs-allocation"
script, options = batch_script, qsub_options


def cancel(job_ids: Sequence[str], patience_s: float) -> None:
    """One qdel for all: it goes on after one that it cannot end. Raises SchedulerSilent, SchedulerOutputError."""
    result = asked(PBS, ("qdel", *job_ids), patience_s, ANSWER_S)
    if result.returncode and not complains_only_of(result, GONE):
        raise SchedulerOutputError(refusal_words(PBS, result))


forget = cancel
"""No job of it is `lost`: it ends those of a silent node by itself."""


def list_words() -> str:
    """Ours, of all queues."""
    return "qstat -u $USER"


def show_words(job_id: str) -> str:
    """Pure: one job, also when it is over."""
    return f"qstat -xf {job_id}"


def cancel_words(job_ids: Sequence[str]) -> str:
    """Pure: all of them at once."""
    return f"qdel {' '.join(job_ids)}"


def enter_words(job_id: str, node: str) -> str:  # noqa: ARG001 - the same of all schedulers
    """Pure: only programs of the job itself can start others there."""
    return ""


def num_nodes_of_job(environ: Mapping[str, str]) -> int | None:
    """By the file of its nodes."""
    try:
        return len(node_names(environ)) if environ.get(JOB_ID) else None
    except AllocationError:
        return None


def end_of_job(environ: Mapping[str, str], patience_s: float) -> float | None:
    """By the server. Raises SchedulerOutputError."""
    job_id = environ.get(JOB_ID)
    job = job_info(job_id, patience_s) if job_id else None
    return None if job is None else end_of(job)
