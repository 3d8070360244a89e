"""What qmaster knows of jobs: short questions, asked again while it is silent.

Everything here may wait up to `patience_s`: processes that must not, call it in a child with a time limit.
"""

from __future__ import annotations

import getpass
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

from base.command import CommandResult, describe, last_lines, run
from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError
from base.foreign import text
from cluster.schedulers.sge.answers import Listed, parse_details, parse_list
from cluster.schedulers.sge.limits import ANSWER_S, PATIENCE_S
from cluster.schedulers.submission import pauses

SILENCE: Final = (
    "unable to send message to qmaster",
    "unable to contact qmaster",
    "got select error",
    "got send error",
    "got read error",
    "got no connection",
    "can't connect to service",
    "failed receiving gdi request",
    "communication error",
)
"""What Grid Engine's commands say when qmaster does not answer: it is restarted, busy, or cut off."""
NO_CELL: Final = ("SGE_ROOT", "cell directory", "act_qmaster")
"""What they say where no cell is configured."""
NO_SUCH_JOB: Final = ("do not exist", "does not exist", "not found")


def ask(argv: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> str:
    """The standard output of a question. While qmaster is silent it is asked again, with growing pauses, for `patience_s`.

    Raises SchedulerSilent then, and SchedulerOutputError when the command itself fails.
    """
    result = asked(argv, patience_s, timeout_s)
    if result.returncode:
        raise SchedulerOutputError(refusal_words(result))
    return result.stdout


def asked(argv: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> CommandResult:
    """The same, whatever its exit code. Raises SchedulerSilent; SchedulerOutputError where the command cannot be started."""
    give_up = time.monotonic() + patience_s
    for pause in pauses():
        result, silence = one_try(argv, timeout_s)
        if result is not None and not silence:
            return result
        if time.monotonic() + pause > give_up:
            raise SchedulerSilent(f"sge_qmaster does not answer `{shlex.join(argv)}`, asked for {patience_s:g} s: {silence}")
        time.sleep(pause)
    raise AssertionError("pauses() has no end")


def one_try(
    argv: Sequence[str],
    timeout_s: float,
    stdin: str = "",
    error_class: type[SlipwayError] = SchedulerOutputError,
    env: Mapping[str, str] | None = None,
) -> tuple[CommandResult | None, str]:
    """The result, and what sounds like silence. Raises `error_class` where the command cannot be started."""
    try:
        result = run(argv, timeout_s=timeout_s, env={**(os.environ if env is None else env), "LC_ALL": "C"}, stdin=stdin)
    except SlipwayError as error:
        if isinstance(error.__cause__, subprocess.TimeoutExpired):
            return None, f"no answer within {timeout_s:g} s"
        raise error_class(str(error)) from error
    silent = result.returncode != 0 and any(words in result.stderr for words in SILENCE)
    return result, last_words(result) if silent else ""


def last_words(result: CommandResult) -> str:
    """Pure: why a command failed, in one line of its own words; `Exiting.` says nothing."""
    lines = [
        line.strip() for line in last_lines(f"{result.stdout}\n{result.stderr}", 6).splitlines() if line.strip() not in ("", "Exiting.")
    ]
    return text("; ".join(lines[-3:])) or f"exit code {result.returncode}"


def refusal_words(result: CommandResult) -> str:
    """Pure: what a command that failed means, and what to do."""
    if any(words in result.stderr for words in NO_CELL):
        return (
            f"this machine belongs to no cell of Grid Engine that `{result.argv[0]}` could ask ({last_words(result)}): source the cell's "
            "settings.sh, do this on a submit host, or choose a site with scheduler: local (`slipway doctor` says what is here)"
        )
    if "neither submit nor admin host" in result.stderr:
        return f"{last_words(result)}: do this on a submit host, or ask the site for `qconf -as` of this one"
    return describe(result)


def listed_jobs(patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, states: str = "prs") -> tuple[Listed, ...]:
    """All of this user in the queue; with `z` among the states also those that have just ended."""
    return parse_list(ask(("qstat", "-xml", "-r", "-s", states, "-u", getpass.getuser()), patience_s, timeout_s))


def job_details(job_ids: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> dict[str, dict[str, str]]:
    """Fields by job, by one question; a job that is over is not among them."""
    if not job_ids:
        return {}
    result = asked(("qstat", "-j", ",".join(job_ids)), patience_s, timeout_s)
    if result.returncode and not any(words in result.stdout + result.stderr for words in NO_SUCH_JOB):
        raise SchedulerOutputError(refusal_words(result))
    return parse_details(result.stdout)


def listed_job(job_id: str, patience_s: float = PATIENCE_S) -> Listed | None:
    """The job of that id, if it is in the queue."""
    return next((job for job in listed_jobs(patience_s) if job.job_id == job_id), None)
