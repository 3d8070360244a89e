"""What mbatchd knows of jobs: short questions, asked again while it is silent.

Everything here may wait up to `patience_s`: processes that must not, call it in a child with a time limit.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base.command import CommandResult, describe, last_lines, run
from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError
from base.foreign import text
from cluster.schedulers.lsf.answers import FORMAT, Details, Listed, parse_details, parse_list
from cluster.schedulers.lsf.limits import ANSWER_S, PATIENCE_S
from cluster.schedulers.submission import pauses

SILENCE: Final = (
    "daemon not responding",
    "LSF is down",
    "Cannot connect to LSF",
    "LIM is down",
    "LIM is not responding",
    "Communication time out",
    "Connection reset by peer",
    "Connection refused",
    "Failed in sending/receiving a message",
    "Server host is not responding",
)
"""What LSF's commands say when mbatchd or lim does not answer: it is restarted, busy, or cut off. Most of them wait until it is back."""
NO_CLUSTER: Final = ("LSF_ENVDIR", "lsf.conf", "LSF_CONFDIR", "ls_initdebug", "Unable to open file")
"""What they say where no cluster is configured."""
NO_SUCH_JOB: Final = (
    *("is not found", "No matching job found", "No job found", "No unfinished job found", "No pending job found"),
    *("Job has already finished", "Job has finished", "No such job", "Operation has already been", "is being terminated"),
)


def ask(argv: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> str:
    """The standard output of a question. While mbatchd is silent it is asked again, with growing pauses, for `patience_s`. Jobs that are
    not known are no failure.

    Raises SchedulerSilent then, and SchedulerOutputError when the command itself fails.
    """
    give_up = time.monotonic() + patience_s
    for pause in pauses():
        result, silence = one_try(argv, timeout_s)
        if result is not None and not silence:
            if result.returncode and not only_unknown_jobs(result):
                raise SchedulerOutputError(refusal_words(result))
            return result.stdout
        if time.monotonic() + pause > give_up:
            raise SchedulerSilent(f"mbatchd does not answer `{shlex.join(argv)}`, asked for {patience_s:g} s: {silence}")
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


def only_unknown_jobs(result: CommandResult) -> bool:
    """Pure: whether all that a command complains of are jobs that LSF does not know, or that are over."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return bool(lines) and all(any(words in line for words in NO_SUCH_JOB) for line in lines)


def last_words(result: CommandResult) -> str:
    """Pure: why a command failed, in one line of its own words."""
    lines = [line.strip() for line in last_lines(f"{result.stdout}\n{result.stderr}", 6).splitlines() if line.strip()]
    return text("; ".join(dict.fromkeys(lines[-3:]))) or f"exit code {result.returncode}"


def refusal_words(result: CommandResult) -> str:
    """Pure: what a command that failed means, and what to do."""
    if any(words in result.stderr for words in NO_CLUSTER):
        return (
            f"this machine belongs to no cluster of LSF that `{result.argv[0]}` could ask ({last_words(result)}): source the cluster's "
            "profile.lsf, or choose a site with scheduler: local (`slipway doctor` says what is here)"
        )
    return describe(result)


def listed_jobs(patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, *more: str) -> tuple[Listed, ...]:
    """All of this user that are not over; `more`: options and ids of bjobs, such as `-a` for those that are over too."""
    answer = ask(("bjobs", "-noheader", *more[:1], "-o", FORMAT, *more[1:]), patience_s, timeout_s)
    return parse_list(answer, time.time(), str(Path.home()))


def job_details(job_ids: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> dict[str, Details]:
    """The long form of these jobs, by one question; a job that LSF has forgotten is not among them."""
    return parse_details(ask(("bjobs", "-l", *job_ids), patience_s, timeout_s), time.time()) if job_ids else {}
