"""Hand a job to Slurm once, however sbatch is answered: see cluster/schedulers/submission.py."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Final

from base.command import CommandResult, describe
from base.errors import SubmitError, SubmitUnsure
from cluster.schedulers.asking import last_words, one_try
from cluster.schedulers.carried import carried
from cluster.schedulers.jobs import BatchJob
from cluster.schedulers.limits import SUBMIT_S
from cluster.schedulers.slurm.batch_script import batch_script
from cluster.schedulers.slurm.query import SLURM
from cluster.schedulers.slurm.queue import jobs_named
from cluster.schedulers.submission import Words, by_name, submit_once

SBATCH: Final = ("sbatch", "--parsable")


def submit(job: BatchJob, patience_s: float) -> str:
    """The id that `job` has got. Its name is found in the queue where sbatch did not say it. Raises SubmitError."""
    script = batch_script(job)
    words = Words(command="sbatch", server="slurmctld", look="squeue --me", end="scancel", job=f"--job-name={job.name}")
    return submit_once(partial(sbatch, script), by_name(jobs_named, job.name), parse_job_id, patience_s, words)


def sbatch(script: str) -> tuple[CommandResult | None, str]:
    """One try. The job inherits what `carried` lets through of our environment. Raises SubmitError."""
    return one_try(SLURM, SBATCH, SUBMIT_S, script, SubmitError, carried(os.environ))


def parse_job_id(result: CommandResult) -> str:
    """Pure: of `sbatch --parsable`. Raises SubmitError for a refusal, and for an answer without an id."""
    if result.returncode:
        raise SubmitError(f"Slurm refused the job: {last_words(SLURM, result)}\n{describe(result)}")
    match = re.search(r"^(\d+)(;\S*)?$", result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "")
    if match is None:
        raise SubmitUnsure(f"sbatch ended well and named no job: {result.stdout[-400:]!r}; {describe(result)}")
    return match[1]
