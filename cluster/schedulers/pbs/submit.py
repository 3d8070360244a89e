"""Hand a job to PBS once, however qsub is answered: see cluster/schedulers/submission.py."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Final

from base.command import CommandResult, describe
from base.errors import SubmitError, SubmitUnsure
from cluster.schedulers.asking import last_words, one_try, refusal_words
from cluster.schedulers.jobs import BatchJob
from cluster.schedulers.limits import SUBMIT_S
from cluster.schedulers.pbs.acceptance import instead_of_failed
from cluster.schedulers.pbs.batch_script import batch_script
from cluster.schedulers.pbs.query import PBS
from cluster.schedulers.pbs.queue import jobs_named
from cluster.schedulers.submission import Words, by_name, submit_once

ROOT: Final = "Bad UID for job execution"


def submit(job: BatchJob, patience_s: float) -> str:
    """The id that `job` has got. Its name is found in the queue where qsub did not say it. Raises SubmitError."""
    script = batch_script(job, os.environ if job.export is None else None, instead_of_failed(job.size))
    words = Words(command="qsub", server="the server of PBS", look="qstat -u $USER", end="qdel", job=f"qsub -N {job.name}")
    attempt = partial(one_try, PBS, ("qsub",), SUBMIT_S, script, SubmitError)
    return submit_once(attempt, by_name(jobs_named, job.name), parse_job_id, patience_s, words)


def parse_job_id(result: CommandResult) -> str:
    """Pure: of qsub. Raises SubmitError for a refusal, and for an answer without an id."""
    if result.returncode:
        if ROOT in result.stderr:
            raise SubmitError("PBS takes no jobs of root (or of a user that its nodes do not know): submit as an ordinary user")
        raise SubmitError(f"PBS refused the job: {last_words(PBS, result)}\n{refusal_words(PBS, result)}")
    match = re.search(r"^([0-9]+(\[\])?(\.\S+)?)$", result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "")
    if match is None:
        raise SubmitUnsure(f"qsub ended well and named no job: {result.stdout[-400:]!r}; {describe(result)}")
    return match[1]
