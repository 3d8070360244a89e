"""Submit a job exactly once, even if the scheduler does not answer.

A submission without an answer may have been accepted: the job is looked for before another try. Without that, two jobs ran.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from base.command import CommandResult, describe
from base.errors import SchedulerOutputError, SubmitError, SubmitUnsure
from base.sanitize import printable
from cluster.schedulers.jobs import BatchJob, QueuedJob
from cluster.schedulers.queries import LEAST_S, SETTLE_S, SUBMIT_S, Server, last_words, one_try, pauses, refusal_words

Try = Callable[[], tuple[CommandResult | None, str]]
"""A function that submits once, and returns the result and the words that sound like silence."""
Find = Callable[[float], str | None]
"""A function that returns the id of the job if it is in the queue, and searches for at most the given seconds.
It raises SchedulerOutputError."""


@dataclass(frozen=True, kw_only=True)
class Submitter:
    """The command that submits jobs: `argv` reads a script, and prints the job's id, the first group of the pattern `job_id`.
    `look` shows the jobs, `end` ends one, for messages."""

    server: Server
    argv: tuple[str, ...]
    job_id: str
    look: str
    end: str

    def parse_job_id(self, result: CommandResult) -> str:
        """Parse the answer. Raises SubmitError for a refusal, and SubmitUnsure for an answer without an id."""
        if result.returncode:
            reason = last_words(self.server, result)
            raise SubmitError(f"{self.server.title} refused the job: {reason}\n{refusal_words(self.server, result)}")
        found = [match[1] for match in re.finditer(self.job_id, result.stdout, re.MULTILINE)]
        if not found:
            raise SubmitUnsure(f"{result.argv[0]} ended well and named no job: {result.stdout[-400:]!r}; {describe(result)}")
        return str(found[-1])  # before it the shell may have said something


def submit_script(
    submitter: Submitter,
    job: BatchJob,
    script: str,
    jobs_named: Callable[[str, float], Sequence[QueuedJob]],
    patience_s: float,
    env: Mapping[str, str] | None = None,
) -> str:
    """Submit the script of a job exactly once, and return its id, which is found by the job's name if the command gives none.
    `env` replaces the environment of a query. Raises SubmitError."""

    def find(search_s: float) -> str | None:
        jobs = jobs_named(job.name, search_s)
        return jobs[-1].job_id if jobs else None

    attempt = partial(one_try, submitter.server, submitter.argv, SUBMIT_S, script, SubmitError, env)
    return submit_once(submitter, attempt, find, job.name, patience_s)


def submit_once(
    submitter: Submitter,
    attempt: Try,
    find: Find,
    name: str,
    patience_s: float,
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """Submit the job of that name by `attempt`, and return its id.

    While nobody answers, the submission is repeated for `patience_s`, which may be infinite; a message says so once. Raises SubmitError.
    """
    command, server = submitter.argv[0], submitter.server.name
    give_up, said = time.monotonic() + patience_s, False
    for pause in pauses():
        result, silence = attempt()
        if result is not None and not silence:
            return submitter.parse_job_id(result)
        if not said:
            tell(f"{command} got no answer ({silence}); looking whether the job is in the queue before another try")
            said = True
        found = _look(submitter, find, name, give_up, wait)
        if found is not None:
            return found
        if time.monotonic() + pause > give_up:
            raise SubmitError(f"{server} does not answer {command}, tried for {patience_s:g} s, and the job is not in the queue: {silence}")
        wait(pause)
    raise AssertionError("pauses() has no end")


def _look(submitter: Submitter, find: Find, name: str, give_up: float, wait: Callable[[float], None]) -> str | None:
    """Search twice, because the server may process the submission only after the first query."""
    try:
        found = find(max(LEAST_S, give_up - time.monotonic()))
        if found is None:
            wait(SETTLE_S)
            found = find(max(LEAST_S, give_up - time.monotonic()))
    except SchedulerOutputError as error:
        raise SubmitUnsure(
            f"nobody can say whether {submitter.server.name} has taken the job {name}: neither {submitter.argv[0]} nor the question for it "
            f"got an answer; when it is back, look with `{submitter.look}`, and end what is not wanted with {submitter.end}: {error}"
        ) from error
    return found


def tell(words: str) -> None:
    """Print a message on standard error."""
    sys.stderr.write(f"slipway: {printable(words)}\n")
    sys.stderr.flush()
