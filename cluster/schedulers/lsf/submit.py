"""Hand a job to LSF once, however bsub is answered: see cluster/schedulers/submission.py."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from base.command import CommandResult, describe
from base.errors import SchedulerOutputError, SchedulerSilent, SubmitError, SubmitUnsure
from base.names import choices
from cluster.schedulers.asking import ask, in_english, last_words, one_try
from cluster.schedulers.carried import carried
from cluster.schedulers.jobs import BatchJob, JobSize
from cluster.schedulers.limits import QUICK_ANSWER_S, SUBMIT_S
from cluster.schedulers.lsf.answers import parse_queues
from cluster.schedulers.lsf.batch_script import batch_script
from cluster.schedulers.lsf.query import LSF
from cluster.schedulers.lsf.queue import jobs_named
from cluster.schedulers.submission import Words, by_name, submit_once

CLUSTER: Final = ("LSF_ENVDIR", "LSF_SERVERDIR", "LSF_BINDIR", "LSF_LIBDIR", "XLSF_UIDDIR", "EGO_TOP", "EGO_CONFDIR")
"""What the commands need to find their cluster."""
NOT_CARRIED: Final = ("SLURM_", "SBATCH_", "LSB_")


def submit(job: BatchJob, patience_s: float) -> str:
    """The id that `job` has got. Its name is found in the queue where bsub did not say it. Raises SubmitError."""
    script = batch_script(job)
    words = Words(command="bsub", server="LSF's mbatchd", look="bjobs", end="bkill", job=f"bsub -J {job.name}")
    attempt = partial(one_try, LSF, ("bsub",), SUBMIT_S, script, SubmitError, submitting(os.environ))
    return submit_once(attempt, by_name(jobs_named, job.name), parse_job_id, patience_s, words)


def submitting(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: of our environment what a job inherits, and what bsub needs."""
    taken = {name: value for name, value in carried(environ).items() if not name.startswith(NOT_CARRIED)}
    return in_english({**taken, **{name: environ[name] for name in CLUSTER if name in environ}})


def inherited(environ: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG001 - bsub takes all of them
    """Pure: none that would have to be named: bsub takes the whole environment along."""
    return ()


def parse_job_id(result: CommandResult) -> str:
    """Pure: of `Job <7> is submitted to queue <q>.` Raises SubmitError for a refusal, and for an answer without an id."""
    if result.returncode:
        raise SubmitError(f"LSF refused the job: {last_words(LSF, result)}\n{describe(result)}")
    match = re.search(r"^Job <(\d+)> is submitted", result.stdout, re.MULTILINE)
    if match is None:
        raise SubmitUnsure(f"bsub ended well and named no job: {result.stdout[-400:]!r}; {describe(result)}")
    return match[1]


def refusal_of(job: BatchJob) -> str | None:
    """What LSF would refuse of `job` without submitting it. bsub has no trial: only the queue can be looked at."""
    try:
        return never_starts(job.size)
    except SchedulerSilent:
        return None


def never_starts(size: JobSize) -> str | None:
    """Why such a job never starts here: its queue is none. All else bsub refuses by itself. Raises SchedulerSilent."""
    if size.queue is None:
        return None
    try:
        queues = parse_queues(ask(LSF, ("bqueues", "-w"), 0.0, QUICK_ANSWER_S))
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None
    return None if size.queue in queues else f"queue: {size.queue!r} is none of this cluster; {choices(size.queue, queues)}"
