"""What the server of PBS knows of jobs: short questions, asked again while it is silent, with answers read into frozen values.

Everything here may wait up to `patience_s`: processes that must not, call it in a child with a time limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError
from base.foreign import text
from cluster.pbs_tasks.commands import command
from cluster.schedulers.asking import Server, ask, in_english, one_try
from cluster.schedulers.limits import ANSWER_S, PATIENCE_S
from cluster.schedulers.pbs.answers import JobInfo, parse_jobs, parse_version

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


def pbs_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: for a command of PBS, which writes times in the zone of its caller."""
    return {**in_english(environ), "TZ": "UTC"}


PBS: Final = Server(
    title="PBS",
    name="the server of PBS",
    silence=SILENCE,
    nowhere=NO_SERVER,
    nowhere_first=True,
    cluster="knows no server of PBS",
    advice="do this on a login node of the cluster",
    environment=pbs_environment,
    path=command,
)


def job_info(job_id: str, patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, *, history: bool = False) -> JobInfo | None:
    """What the server knows of a job; None when it does not know it. `history`: also of one that is over, where PBS keeps those."""
    try:
        answer = ask(PBS, ("qstat", *(("-x",) if history else ()), "-f", "-F", "json", job_id), patience_s, timeout_s)
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
        result, _ = one_try(PBS, ("pbsnodes", "--version"), ANSWER_S)
    except SlipwayError:
        return None
    return parse_version(result.stdout + result.stderr) if result is not None and result.returncode == 0 else None
