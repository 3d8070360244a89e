"""What the server of PBS knows of jobs: short questions, asked again while it is silent, with answers read into frozen values.

Everything here may wait up to `patience_s`: processes that must not, call it in a child with a time limit.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

from base.command import CommandResult, describe, last_lines, run
from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError
from base.foreign import text
from cluster.pbs_tasks.commands import command
from cluster.schedulers.pbs.answers import JobInfo, parse_jobs, parse_version
from cluster.schedulers.pbs.limits import ANSWER_S, PATIENCE_S
from cluster.schedulers.submission import pauses

SILENCE: Final = (
    "cannot connect to server",
    "Couldn't connect to cluster",
    "Connection refused",
    "Connection timed out",
    "Communication failure",
    "Premature end of message",
    "End of File",
    "Server shutting down",
    "No free connections",
    "Server connection table full",
)
"""What PBS's commands say when the server does not answer: it is restarted, busy, or cut off."""
NO_SERVER: Final = ("Unknown Host", "PBS_SERVER", "pbs.conf")
"""What they say where no server is configured."""
GONE: Final = ("Unknown Job Id", "Job has finished")
"""Of a job that is over: with job_history_enable the second, for a while."""


def ask(argv: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> str:
    """The standard output of a question. While the server is silent it is asked again, with growing pauses, for `patience_s`.

    Raises SchedulerSilent then, and SchedulerOutputError when the command itself fails.
    """
    give_up = time.monotonic() + patience_s
    for pause in pauses():
        result, silence = one_try(argv, timeout_s)
        if result is not None and not silence:
            if result.returncode:
                raise SchedulerOutputError(refusal_words(result))
            return result.stdout
        if time.monotonic() + pause > give_up:
            raise SchedulerSilent(f"the server of PBS does not answer `{shlex.join(argv)}`, asked for {patience_s:g} s: {silence}")
        time.sleep(pause)
    raise AssertionError("pauses() has no end")


def refusal_words(result: CommandResult) -> str:
    """Pure: what a command of PBS's that failed means, and what to do."""
    if any(words in result.stderr for words in NO_SERVER):
        return (
            f"this machine knows no server of PBS that `{result.argv[0]}` could ask ({last_words(result)}): do this on a login node of the "
            f"cluster, or choose a site with scheduler: local (`slipway doctor` says what is here)"
        )
    return describe(result)


def one_try(
    argv: Sequence[str], timeout_s: float, stdin: str = "", error_class: type[SlipwayError] = SchedulerOutputError
) -> tuple[CommandResult | None, str]:
    """The result, and what sounds like silence. Raises `error_class` where the command cannot be started."""
    try:
        result = run((command(argv[0]), *argv[1:]), timeout_s=timeout_s, env=pbs_environment(os.environ), stdin=stdin)
    except SlipwayError as error:
        if isinstance(error.__cause__, subprocess.TimeoutExpired):
            return None, f"no answer within {timeout_s:g} s"
        raise error_class(str(error)) from error
    return result, silence_of(result)


def silence_of(result: CommandResult) -> str:
    """Pure: the words by which a command of PBS's says that the server does not answer; "" where it does."""
    if not result.returncode or any(words in result.stderr for words in NO_SERVER):
        return ""
    return last_words(result) if any(words in result.stderr for words in SILENCE) else ""


def last_words(result: CommandResult) -> str:
    """Pure: why a command of PBS's failed, in one line of its own words."""
    return text("; ".join(line.strip() for line in last_lines(result.stderr, 2).splitlines())) or f"exit code {result.returncode}"


def pbs_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: for a command of PBS, which writes times in the zone of its caller."""
    return {**environ, "TZ": "UTC", "LC_ALL": "C"}


def job_info(job_id: str, patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, *, history: bool = False) -> JobInfo | None:
    """What the server knows of a job; None when it does not know it. `history`: also of one that is over, where PBS keeps those."""
    try:
        answer = ask(("qstat", *(("-x",) if history else ()), "-f", "-F", "json", job_id), patience_s, timeout_s)
    except SchedulerSilent:
        raise
    except SchedulerOutputError as error:
        if any(words in str(error) for words in GONE):
            return None
        raise
    found = next((job for job in parse_jobs(answer) if job.job_id == job_id), None)
    if found is None:
        raise SchedulerOutputError(f"the answer of `qstat -f -F json {job_id}` holds no job that can be read: {text(answer, 400)!r}")
    return found


def pbs_version() -> str | None:
    """Such as `23.06.06`; None where there is no PBS that can be used."""
    try:
        result = run((command("pbsnodes"), "--version"), timeout_s=ANSWER_S, env=pbs_environment(os.environ))
    except SlipwayError:
        return None
    return parse_version(result.stdout + result.stderr) if result.returncode == 0 else None
