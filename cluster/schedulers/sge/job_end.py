"""What becomes of a job: when it ends, why it ends, whether its holder still runs, and how it goes back into the queue."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base.errors import SchedulerOutputError, SchedulerSilent
from base.sanitize import digits
from cluster.schedulers import job_end
from cluster.schedulers.queries import SHORT_PATIENCE_S
from cluster.schedulers.sge.answers import SGE, Listed, job_details, listed_job, listed_jobs, submitted_of
from cluster.types import Allocation, Holder

# What Grid Engine and our batch script tell a job by its environment and by the file of its hosts.


JOB_ID: Final = "JOB_ID"
HOST_FILE: Final = "PE_HOSTFILE"
STARTED: Final = "SLIPWAY_JOB_STARTED"
"""When the batch script of this start of the job began, in unix seconds; exported by the script."""
SECONDS: Final = "SLIPWAY_JOB_SECONDS"
"""Its `h_rt`; exported by the script, since Grid Engine has no variable for it."""
BEGUN: Final = "SLIPWAY_JOB_BEGUN"
"""In the environment of what the batch script has started, and not in its own: of which job."""
OF_ONE_PROCESS: Final = frozenset(
    {
        *("PE_HOSTFILE", "JOB_SCRIPT", "HOSTNAME", "TMPDIR", "TMP", "NHOSTS", "NSLOTS", "NQUEUES", "QUEUE", "REQUEST", "REQNAME"),
        *("SGE_JOB_SPOOL_DIR", "SGE_STDOUT_PATH", "SGE_STDERR_PATH", "SGE_STDIN_PATH", "JOB_NAME", "PWD", "OLDPWD", "_"),
    }
)
"""What holds of one process or one node; on another one Grid Engine sets its own."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_hosts(text: str) -> dict[str, int]:
    """Pure: slots by host, of a PE_HOSTFILE, in its order. A host has a line for each of its queues."""
    found: dict[str, int] = {}
    for words in map(str.split, text.splitlines()):
        slots = digits(words[1]) if len(words) > 1 else None
        if slots is not None:
            found[words[0]] = found.get(words[0], 0) + slots
    return found


def hosts_of_job(environ: Mapping[str, str]) -> dict[str, int]:
    """Slots by host of the job that `environ` is of; a job without a parallel environment has this host only. Empty outside of jobs."""
    with contextlib.suppress(OSError):
        if environ.get(HOST_FILE):
            return parse_hosts(Path(environ[HOST_FILE]).read_text())
    return {os.uname().nodename: 1} if environ.get(JOB_ID) else {}


def restart_count(environ: Mapping[str, str]) -> int:
    """Pure: which start of the job this is. Grid Engine says only whether it is the first: later ones are told apart by their time."""
    if environ.get("RESTARTED", "0") in ("", "0"):
        return 0
    return digits(environ.get(STARTED, "")) or 1


def end_of_job(environ: Mapping[str, str]) -> float | None:
    """Pure: when the job must have ended, in unix time, by what our script has exported."""
    started, seconds = digits(environ.get(STARTED, "")), digits(environ.get(SECONDS, ""))
    return None if started is None or seconds is None else float(started + seconds)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: the environment of a program on another node, which `qrsh -V` takes along: without what holds here only, and without what
    Grid Engine cannot write down. QRSH_COMMAND has bytes that are no text."""
    return {
        name: value
        for name, value in environ.items()
        if name not in OF_ONE_PROCESS and not name.startswith("QRSH_") and _NAME.fullmatch(name) and not set(value) & set("\n\r")
    }


# Times that only Grid Engine has.


EARLY_S: Final = 10.0
"""So long before `h_rt` is over the job must have ended: on other nodes than the first its clock begins at dispatch, up to 3 s earlier."""
SHORT_NOTICE_S: Final = 15.0
"""A queue that kills sooner after its warning may leave no record of a cancelled run."""
ORPHANS_S: Final = 60
"""So long the script waits for what a killed program has started: as long as `-notify` leaves before the end of a job."""


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    """When the job ends, when it was submitted and started. Where this node may not ask (it is no submit host), nothing but the end that
    the batch script has told. Raises SchedulerSilent."""
    unknown = {"deadline": allocation.deadline, "submitted": None, "started": None}
    try:
        job = listed_job(allocation.job_id)
        fields = job_details([allocation.job_id]).get(allocation.job_id, {})
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return unknown
    if job is None or job.stage == "waits":
        return unknown
    end = None if job.started is None or job.h_rt_s is None else job.started + job.h_rt_s - EARLY_S
    ends = [moment for moment in (end, allocation.deadline) if moment is not None]
    return {"deadline": min(ends, default=None), "submitted": submitted_of(fields), "started": job.started}


def ended_by(allocation: Allocation) -> str | None:
    """By the letters of the job's state. None where this node may not ask. Raises SchedulerSilent."""
    try:
        job = listed_job(allocation.job_id, SHORT_PATIENCE_S)
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None
    return None if job is None else reason_of(job, allocation.restart_count, time.time())


def reason_of(job: Listed, restart_count: int, now: float) -> str | None:
    """Pure. At `h_rt` and at qdel a job has the same letters: the time tells which it was. One that was put back into the queue may run
    again (`Rr`, `Rt`) before we can ask; of a start that was not its first one cannot tell that."""
    if "R" in job.letters and (job.stage == "waits" or (restart_count == 0 and "d" not in job.letters)):
        return "requeued"
    if job.started is not None and job.h_rt_s is not None and now - job.started >= job.h_rt_s - EARLY_S:
        return "timeout"
    return "cancelled" if "d" in job.letters else None


def requeue(allocation: Allocation) -> None:
    """`qmod -rj`, which kills all of the job, and puts it back into the queue."""
    job_end.requeue(SGE, allocation, ("qmod", "-rj", allocation.job_id), done="rescheduling")


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """As holder_alive, by one question for all of them."""

    def by_job(others: Sequence[Holder]) -> list[bool]:
        jobs = {job.job_id: job for job in listed_jobs(limit_s)}
        return [is_running(jobs.get(holder.job_id), holder) for holder in others]

    return job_end.holders_alive(holders, (os.environ.get(JOB_ID), restart_count(os.environ)), by_job)


def is_running(job: Listed | None, holder: Holder) -> bool:
    """Pure: whether a job may have processes of the start that the holder was of. It runs again since: that start is over."""
    if job is None or job.stage == "waits":
        return False
    return not ("R" in job.letters and holder.restart_count == 0)


# `qrsh -inherit`: a program on one node of our job. Pure.
#
# Its words are put together and read again by a shell of that node, so each is quoted. Output and exit code come back, standard input goes
# there. A program that ends by a signal would end the whole job: a shell stands between, which makes an exit code of it. When the client
# is killed, Grid Engine kills the program. USR2, which announces the end of a job (batch_script), goes to all processes: both shells make
# it be ignored by what they start.


LOCAL: Final = "trap '' USR2; exec \"$@\""
REMOTE: Final = "trap '' USR2; {command}; exit $?"


def launch_argv(host: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The environment goes along (-V): see environ.passed_on."""
    words = ("/bin/sh", "-c", REMOTE.format(command=shlex.join(argv)))
    return ("/bin/sh", "-c", LOCAL, "slipway-launch", "qrsh", "-inherit", "-V", host, *map(shlex.quote, words))
