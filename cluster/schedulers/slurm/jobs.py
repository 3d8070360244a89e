"""What commands ask of Slurm's jobs: the functions of the Protocol `Jobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from base.errors import SchedulerOutputError, SchedulerSilent
from base.foreign import digits
from cluster.schedulers.asking import ask
from cluster.schedulers.carried import carried_names
from cluster.schedulers.slurm.acceptance import never_starts as never_starts
from cluster.schedulers.slurm.acceptance import refusal_of as refusal_of
from cluster.schedulers.slurm.batch_script import batch_script, sbatch_options
from cluster.schedulers.slurm.directives import owned_by_us as owned_by_us
from cluster.schedulers.slurm.environ import JOB_ID
from cluster.schedulers.slurm.limits import SHORT_ANSWER_S
from cluster.schedulers.slurm.query import SLURM, UNKNOWN_JOB, job_info
from cluster.schedulers.slurm.queue import jobs_named as jobs_named
from cluster.schedulers.slurm.queue import known_jobs as known_jobs
from cluster.schedulers.slurm.queue import our_jobs as our_jobs
from cluster.schedulers.slurm.submit import submit as submit

TITLE = "Slurm"
SERVER = "Slurm's controller"
SUBMIT = "sbatch"
PROFILE = "slurm"
SHARED_PROFILE = "slurm-allocation"
script, options, inherited = batch_script, sbatch_options, carried_names


def cancel(job_ids: Sequence[str], patience_s: float) -> None:
    """One scancel for all. Raises SchedulerSilent, SchedulerOutputError."""
    try:
        ask(SLURM, ("scancel", *job_ids), patience_s, SHORT_ANSWER_S)
    except SchedulerSilent:
        raise
    except SchedulerOutputError as error:
        if not any(words in str(error) for words in (*UNKNOWN_JOB, "already completing or completed")):
            raise


forget = cancel
"""No job of it is `lost`: it ends those of a silent node by itself."""


def list_words() -> str:
    """Ours, of all partitions."""
    return "squeue --me"


def show_words(job_id: str) -> str:
    """Pure: one job."""
    return f"squeue -j {job_id}"


def cancel_words(job_ids: Sequence[str]) -> str:
    """Pure: all of them at once."""
    return f"scancel {' '.join(job_ids)}"


def enter_words(job_id: str, node: str) -> str:
    """Pure: a step beside those that run."""
    return f"srun --jobid={job_id} --overlap -N1 -n1 -w {node} --pty"


def num_nodes_of_job(environ: Mapping[str, str]) -> int | None:
    """Pure: by its own variable, which a step may have changed no more than its job."""
    return digits(environ.get("SLURM_JOB_NUM_NODES", ""))


def end_of_job(environ: Mapping[str, str], patience_s: float) -> float | None:
    """By the controller: the variable that says it came with 23.02. Raises SchedulerOutputError."""
    job_id = environ.get(JOB_ID)
    info = job_info(job_id, patience_s) if job_id else None
    return None if info is None else info.end_time
