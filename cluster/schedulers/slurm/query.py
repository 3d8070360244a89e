"""What slurmctld knows of jobs: short questions, asked again while it is silent, with answers read into frozen values.

Times are asked for as seconds since 1970 (SLURM_TIME_FORMAT=%s), so that no time zone has a part in them. Everything here may wait up to
`patience_s`: processes that must not, call it in a child with a time limit.
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
from cluster.schedulers.slurm.answers import JobInfo, parse_job, parse_node_addresses, parse_version
from cluster.schedulers.slurm.environ import job_environ
from cluster.schedulers.slurm.limits import ANSWER_S, PATIENCE_S
from cluster.schedulers.submission import pauses

SILENCE: Final = (
    "Unable to contact slurm controller",
    "Socket timed out on send/recv operation",
    "Connection refused",
    "Connection timed out",
    "Zero Bytes were transmitted or received",
    "Slurm backup controller in standby mode",
    "Slurm temporarily unable to accept",
    "Transport endpoint is not connected",
    "Unexpected message received",
)
"""What Slurm's commands say when slurmctld does not answer: it is restarted, busy, or cut off."""
NO_CLUSTER: Final = ("Could not establish a configuration source", "DNS SRV lookup failed", "Unable to process configuration file")
"""What they say where there is no slurm.conf, and no controller to ask for one."""
UNKNOWN_JOB: Final = ("Invalid job id specified", "Invalid job id")


def ask(argv: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> str:
    """The standard output of a question. While the controller is silent it is asked again, with growing pauses, for `patience_s`.

    Raises SchedulerSilent then, and SchedulerOutputError when the command itself fails.
    """
    give_up = time.monotonic() + patience_s
    env = slurm_environment(os.environ)
    for pause in pauses():
        result, silence = one_try(argv, timeout_s, env)
        if result is not None and not silence:
            if result.returncode:
                raise SchedulerOutputError(refusal_words(result))
            return result.stdout
        if time.monotonic() + pause > give_up:
            raise SchedulerSilent(f"slurmctld does not answer `{shlex.join(argv)}`, asked for {patience_s:g} s: {silence}")
        time.sleep(pause)
    raise AssertionError("pauses() has no end")


def refusal_words(result: CommandResult) -> str:
    """Pure: what a command of Slurm's that failed means, and what to do."""
    if any(words in result.stderr for words in NO_CLUSTER):
        return (
            f"this machine belongs to no Slurm cluster that `{result.argv[0]}` could ask ({result.stderr.strip().splitlines()[-1]}): "
            "do this on a login node of the cluster, or choose a site with scheduler: local (`slipway doctor` says what is here)"
        )
    return describe(result)


def slurm_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a command of Slurm: times as numbers, English, and the configuration of our job's cluster where it was taken away."""
    env = {**environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    if "SLURM_CONF" not in env:
        configuration = job_environ(environ).get("SLURM_CONF")
        if configuration is not None:
            env["SLURM_CONF"] = configuration
    return env


def job_info(job_id: str, patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> JobInfo | None:
    """What slurmctld knows of a job; None when it does not know it: it has ended, longer ago than MinJobAge, or never was."""
    try:
        answer = ask(("scontrol", "-o", "show", "job", job_id), patience_s, timeout_s)
    except SchedulerSilent:
        raise
    except SchedulerOutputError as error:
        if any(words in str(error) for words in UNKNOWN_JOB):
            return None
        raise
    return parse_job(answer, job_id)


class AskedJobs:
    """What slurmctld knows of several jobs: each is asked for once, all within a limit of time."""

    def __init__(self, limit_s: float) -> None:
        self._give_up = time.monotonic() + limit_s
        self._known: dict[str, JobInfo | SchedulerOutputError | None] = {}
        self._silence: SchedulerSilent | None = None

    def info(self, job_id: str) -> JobInfo | None:
        """As job_info. Raises SchedulerSilent from the first silence on, and when the time is over."""
        if job_id not in self._known:
            if self._silence is not None:
                raise self._silence
            self._known[job_id] = self._asked(job_id)
        found = self._known[job_id]
        if isinstance(found, SchedulerOutputError):
            raise found
        return found

    def _asked(self, job_id: str) -> JobInfo | SchedulerOutputError | None:
        left = self._give_up - time.monotonic()
        if left <= 0:
            self._silence = SchedulerSilent(f"no time is left to ask for job {job_id}")
            return self._silence
        try:
            return job_info(job_id, left, max(1.0, min(left, ANSWER_S)))
        except SchedulerSilent as error:
            self._silence = error
            return error
        except SchedulerOutputError as error:
            return error


def node_addresses(names: Sequence[str], patience_s: float = PATIENCE_S) -> dict[str, str]:
    """NodeAddr of each node, as far as slurmctld says it now; one question for all. Empty while it is silent."""
    if not names:
        return {}
    try:
        answer = ask(("scontrol", "-o", "show", "node", ",".join(names)), patience_s)
    except SchedulerOutputError:
        return {}
    return parse_node_addresses(answer)


def slurm_version() -> str | None:
    """Such as `22.05.8`; None where there is no Slurm that can be used."""
    try:
        result = run(("scontrol", "--version"), timeout_s=ANSWER_S, env=slurm_environment(os.environ))
    except SlipwayError:
        return None
    return parse_version(result.stdout) if result.returncode == 0 else None


def one_try(
    argv: Sequence[str], timeout_s: float, env: Mapping[str, str], stdin: str = "", error_class: type[SlipwayError] = SchedulerOutputError
) -> tuple[CommandResult | None, str]:
    """The result, and what sounds like silence. Raises `error_class` where the command cannot be started."""
    try:
        result = run(argv, timeout_s=timeout_s, env=env, stdin=stdin)
    except SlipwayError as error:
        if isinstance(error.__cause__, subprocess.TimeoutExpired):
            return None, f"no answer within {timeout_s:g} s"
        raise error_class(str(error)) from error
    return result, silence_of(result)


def silence_of(result: CommandResult) -> str:
    """Pure: the words by which a command of Slurm's says that slurmctld does not answer; "" where it does."""
    return last_words(result) if result.returncode and any(words in result.stderr for words in SILENCE) else ""


def last_words(result: CommandResult) -> str:
    """Pure: why a command of Slurm's failed, in one line of its own words."""
    return text("; ".join(line.strip() for line in last_lines(result.stderr, 2).splitlines())) or f"exit code {result.returncode}"
