"""What commands ask of Grid Engine's jobs: the functions of the Protocol `Jobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from base.errors import SchedulerOutputError
from cluster.schedulers.asking import asked, refusal_words
from cluster.schedulers.limits import ANSWER_S
from cluster.schedulers.sge import environ as job_environ
from cluster.schedulers.sge.batch_script import batch_script, exported_names, qsub_options
from cluster.schedulers.sge.batch_script import owned_by_us as owned_by_us
from cluster.schedulers.sge.query import NO_SUCH_JOB, SGE
from cluster.schedulers.sge.queue import jobs_named as jobs_named
from cluster.schedulers.sge.queue import known_jobs as known_jobs
from cluster.schedulers.sge.queue import our_jobs as our_jobs
from cluster.schedulers.sge.submit import never_starts as never_starts
from cluster.schedulers.sge.submit import refusal_of as refusal_of
from cluster.schedulers.sge.submit import submit as submit

TITLE = "Grid Engine"
SERVER = "Grid Engine's qmaster"
SUBMIT = "qsub"
PROFILE = "sge"
SHARED_PROFILE = "sge-allocation"
script, options, inherited = batch_script, qsub_options, exported_names


def cancel(job_ids: Sequence[str], patience_s: float) -> None:
    """One qdel for all. Raises SchedulerSilent, SchedulerOutputError."""
    result = asked(SGE, ("qdel", *job_ids), patience_s, ANSWER_S)
    words = f"{result.stdout}\n{result.stderr}"
    if result.returncode and not any(known in words for known in (*NO_SUCH_JOB, "already in deletion")):
        raise SchedulerOutputError(refusal_words(SGE, result))


def forget(job_ids: Sequence[str], patience_s: float) -> None:
    """qdel alone waits for the node. A job that is being deleted and is put back into the queue by force is gone at once, and its
    owner may do that. Raises SchedulerSilent, SchedulerOutputError."""
    cancel(job_ids, patience_s)
    result = asked(SGE, ("qmod", "-f", "-rj", *job_ids), patience_s, ANSWER_S)
    if result.returncode and "invalid queue or job" not in f"{result.stdout}\n{result.stderr}":
        raise SchedulerOutputError(refusal_words(SGE, result))


def list_words() -> str:
    """Ours, of all queues."""
    return "qstat"


def show_words(job_id: str) -> str:
    """Pure: one job."""
    return f"qstat -j {job_id}"


def cancel_words(job_ids: Sequence[str]) -> str:
    """Pure: all of them at once."""
    return f"qdel {' '.join(job_ids)}"


def enter_words(job_id: str, node: str) -> str:  # noqa: ARG001 - the same of all schedulers
    """Pure: only programs of the job itself can start others there."""
    return ""


def num_nodes_of_job(environ: Mapping[str, str]) -> int | None:
    """By the file of the job's hosts."""
    return len(job_environ.hosts_of_job(environ)) or None


def end_of_job(environ: Mapping[str, str], patience_s: float) -> float | None:  # noqa: ARG001 - nobody is asked
    """By what the batch script has told: nodes may be no submit hosts, and then nobody answers them."""
    return job_environ.end_of_job(environ)
