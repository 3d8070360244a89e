"""Submit a job exactly once, even if the scheduler does not answer.

A submission without an answer may have been accepted: the job is looked for before another try. Without that, two jobs ran.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from base.command import CommandResult
from base.errors import SchedulerOutputError, SubmitError, SubmitUnsure
from base.sanitize import printable
from cluster.schedulers.jobs import QueuedJob
from cluster.schedulers.queries import LEAST_S, SETTLE_S, pauses

Try = Callable[[], tuple[CommandResult | None, str]]
"""A function that submits once, and returns the result and the words that sound like silence."""
Find = Callable[[float], str | None]
"""A function that returns the id of the job if it is in the queue, and searches for at most the given seconds.

It raises SchedulerOutputError.
"""


@dataclass(frozen=True, kw_only=True)
class Words:
    """The words for messages: `command` submits to `server`, `look` shows the job, `end` ends it, `job` names it."""

    command: str
    server: str
    look: str
    end: str
    job: str


def submit_once(
    attempt: Try,
    find: Find,
    parse_job_id: Callable[[CommandResult], str],
    patience_s: float,
    words: Words,
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """Submit one job by `attempt`, and return its id.

    While nobody answers, the submission is repeated for `patience_s`, which may be infinite; a message says so once. Raises SubmitError.
    """
    give_up, said = time.monotonic() + patience_s, False
    for pause in pauses():
        result, silence = attempt()
        if result is not None and not silence:
            return parse_job_id(result)
        if not said:
            tell(f"{words.command} got no answer ({silence}); looking whether the job is in the queue before another try")
            said = True
        found = _look(find, give_up, words, wait)
        if found is not None:
            return found
        if time.monotonic() + pause > give_up:
            raise SubmitError(
                f"{words.server} does not answer {words.command}, tried for {patience_s:g} s, and the job is not in the queue: {silence}"
            )
        wait(pause)
    raise AssertionError("pauses() has no end")


def by_name(jobs_named: Callable[[str, float], Sequence[QueuedJob]], name: str) -> Find:
    """Build a function that finds the last job of a unique name."""

    def find(patience_s: float) -> str | None:
        jobs = jobs_named(name, patience_s)
        return jobs[-1].job_id if jobs else None

    return find


def _look(find: Find, give_up: float, words: Words, wait: Callable[[float], None]) -> str | None:
    """Search twice, because the server may process the submission only after the first query."""
    try:
        found = find(max(LEAST_S, give_up - time.monotonic()))
        if found is None:
            wait(SETTLE_S)
            found = find(max(LEAST_S, give_up - time.monotonic()))
    except SchedulerOutputError as error:
        raise SubmitUnsure(
            f"nobody can say whether {words.server} has taken the job: neither {words.command} nor the question for it got an answer; when "
            f"it is back, look with `{words.look}`, and end what is not wanted with {words.end} ({words.job}): {error}"
        ) from error
    return found


def tell(words: str) -> None:
    """Print a message on standard error."""
    sys.stderr.write(f"slipway: {printable(words)}\n")
    sys.stderr.flush()
