"""What commands ask of LSF's jobs: the functions of the Protocol `Jobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster.schedulers.asking import ask
from cluster.schedulers.limits import ANSWER_S
from cluster.schedulers.lsf import environ as job_environ
from cluster.schedulers.lsf.batch_script import batch_script, bsub_options
from cluster.schedulers.lsf.batch_script import owned_by_us as owned_by_us
from cluster.schedulers.lsf.query import LSF
from cluster.schedulers.lsf.queue import jobs_named as jobs_named
from cluster.schedulers.lsf.queue import known_jobs as known_jobs
from cluster.schedulers.lsf.queue import our_jobs as our_jobs
from cluster.schedulers.lsf.submit import inherited as inherited
from cluster.schedulers.lsf.submit import never_starts as never_starts
from cluster.schedulers.lsf.submit import refusal_of as refusal_of
from cluster.schedulers.lsf.submit import submit as submit

TITLE = "LSF"
SERVER = "LSF's mbatchd"
SUBMIT = "bsub"
PROFILE = "lsf"
SHARED_PROFILE = "lsf-allocation"
script, options = batch_script, bsub_options


def cancel(job_ids: Sequence[str], patience_s: float) -> None:
    """One bkill for all. Raises SchedulerSilent, SchedulerOutputError."""
    ask(LSF, ("bkill", *job_ids), patience_s, ANSWER_S)


forget = cancel
"""No job of it is `lost`: it ends those of a silent node by itself."""


def list_words() -> str:
    """Ours, of all queues."""
    return "bjobs -w"


def show_words(job_id: str) -> str:
    """Pure: one job."""
    return f"bjobs -l {job_id}"


def cancel_words(job_ids: Sequence[str]) -> str:
    """Pure: all of them at once."""
    return f"bkill {' '.join(job_ids)}"


def enter_words(job_id: str, node: str) -> str:  # noqa: ARG001 - the same of all schedulers
    """Pure: only programs of the job itself can start others there."""
    return ""


def num_nodes_of_job(environ: Mapping[str, str]) -> int | None:
    """By the hosts in its environment."""
    return len(job_environ.hosts_of_job(environ)) or None


def end_of_job(environ: Mapping[str, str], patience_s: float) -> float | None:  # noqa: ARG001 - nobody is asked
    """By what the batch script has told."""
    return job_environ.end_of_job(environ)
