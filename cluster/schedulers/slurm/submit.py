"""Hand a job to Slurm once: an sbatch that the controller did not answer may have been accepted, so the job is looked for before a second
try (faults: two of two such jobs ran).
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from base.command import CommandResult, describe
from base.errors import SchedulerOutputError, SubmitError
from cluster.schedulers.jobs import BatchJob
from cluster.schedulers.slurm.batch_script import batch_script
from cluster.schedulers.slurm.carried import carried
from cluster.schedulers.slurm.limits import SBATCH_S, SETTLE_S, SUBMIT_PATIENCE_S
from cluster.schedulers.slurm.query import last_words, one_try, pauses
from cluster.schedulers.slurm.queue import jobs_named

SBATCH: Final = ("sbatch", "--parsable")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One sbatch: its argv, what it reads, and its environment (None: ours), of which the job inherits what `carried` lets through."""

    argv: tuple[str, ...] = SBATCH
    script: str = ""
    env: Mapping[str, str] | None = None


Say = Callable[[str], None]
Find = Callable[[float], str | None]
"""The id of the job if it is in the queue, asked for at most so many seconds."""


def submit(job: BatchJob, patience_s: float = SUBMIT_PATIENCE_S) -> str:
    """The id that `job` has got. Its name is found in the queue where sbatch did not say it. Raises SubmitError."""

    def find(patience: float) -> str | None:
        jobs = jobs_named(job.name, patience)
        return jobs[-1].job_id if jobs else None

    return submit_once(Call(script=batch_script(job)), find, patience_s)


def submit_once(call: Call, find: Find, patience_s: float, say: Say | None = None, wait: Callable[[float], None] = time.sleep) -> str:
    """The id of the one job that `call` submits; while the controller is silent it is tried again for `patience_s`. Raises SubmitError."""
    give_up = time.monotonic() + patience_s
    for pause in pauses():
        env = carried(os.environ if call.env is None else call.env)
        result, silence = one_try(call.argv, SBATCH_S, env, call.script, SubmitError)
        if result is not None and not silence:
            return parse_job_id(result)
        (say or tell)(f"sbatch got no answer ({silence}); looking whether the job is in the queue before another try")
        found = _look(call, find, give_up, wait)
        if found is not None:
            return found
        if time.monotonic() + pause > give_up:
            raise SubmitError(f"slurmctld does not answer sbatch, tried for {patience_s:g} s, and the job is not in the queue: {silence}")
        wait(pause)
    raise AssertionError("pauses() has no end")


def parse_job_id(result: CommandResult) -> str:
    """Pure: of `sbatch --parsable`. Raises SubmitError for a refusal, and for an answer without an id."""
    if result.returncode:
        raise SubmitError(f"Slurm refused the job: {last_words(result)}\n{describe(result)}")
    match = re.search(r"^(\d+)(;\S*)?$", result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "")
    if match is None:
        raise SubmitError(f"sbatch ended well and named no job: {result.stdout[-400:]!r}; {describe(result)}")
    return match[1]


def find_by_comment(name: str, comment: str, patience_s: float) -> str | None:
    """The job of that name and comment, where many jobs have the name."""
    return next((job.job_id for job in jobs_named(name, patience_s) if job.comment == comment), None)


def tell(words: str) -> None:
    """To the person at the terminal."""
    sys.stderr.write(f"slipway: {words}\n")
    sys.stderr.flush()


def _look(call: Call, find: Find, give_up: float, wait: Callable[[float], None]) -> str | None:
    """Asked twice, since the controller may take the submission in after the first question."""
    try:
        found = find(max(10.0, give_up - time.monotonic()))
        if found is None:
            wait(SETTLE_S)
            found = find(10.0)
    except SchedulerOutputError as error:
        raise SubmitError(
            f"nobody can say whether Slurm has taken the job: neither sbatch nor the question for it got an answer; when slurmctld is "
            f"back, look with `squeue --me`, and end what is not wanted with scancel ({describe_call(call)}): {error}"
        ) from error
    return found


def describe_call(call: Call) -> str:
    """Pure: what names the job of a call."""
    said = re.search(r"^#SBATCH (--job-name=\S+)", call.script, re.MULTILINE)
    return said[1] if said else shlex.join(call.argv[:8])
