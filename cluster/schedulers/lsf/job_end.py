"""What becomes of a job: when it ends, why it ends, whether its holder still runs, and how it goes back into the queue."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from base.errors import AllocationError, SchedulerOutputError, SchedulerSilent
from base.sanitize import digits
from cluster.schedulers import job_end
from cluster.schedulers.lsf.answers import LSF, Details, Listed, ended_by_of, job_details, listed_jobs, signal_of
from cluster.schedulers.queries import ANSWER_S, QUICK_ANSWER_S, SHORT_PATIENCE_S, ask
from cluster.types import Allocation, Holder

# What LSF and our batch script tell a job by its environment.


JOB_ID: Final = "LSB_JOBID"
STARTED: Final = "SLIPWAY_JOB_STARTED"
"""When the batch script of this start of the job began, in unix seconds; exported by the script."""
SECONDS: Final = "SLIPWAY_JOB_SECONDS"
"""Its run limit; exported by the script, since LSF has no variable for it."""
STARTS: Final = "SLIPWAY_JOB_STARTS"
"""How often the job was started before, as the script counts it in its log: LSF has no variable for that either."""
NODE: Final = "SLIPWAY_LSF_NODE"
"""LSF's name of the node that a program was started on; set by our launches."""
POLL: Final = "LSB_BLAUNCH_SLEEPTIME"
"""OpenLava's blaunch looks for the end of its programs so often, in seconds; LSF's own does not need it."""
OF_ONE_PROCESS: Final = frozenset({"HOSTNAME", "TMPDIR", "TMP", "LS_JOBPID", "LS_EXEC_T", "PWD", "OLDPWD", "_"})
"""What holds of one process or one node; on another one LSF sets its own."""


def hosts_of_job(environ: Mapping[str, str]) -> dict[str, int]:
    """Slots by host, in LSF's order, of the job that `environ` is of; empty outside of jobs. A variable is not set where it would be too
    long; the file names a host once for each slot."""
    pairs = environ.get("LSB_MCPU_HOSTS", "").split()
    counts = [digits(word) for word in pairs[1::2]]
    if pairs and len(pairs) % 2 == 0 and all(counts):
        return _summed(zip(pairs[::2], (count or 0 for count in counts), strict=True))
    if environ.get("LSB_DJOB_HOSTFILE"):
        with contextlib.suppress(OSError):
            return _summed((host, 1) for host in Path(environ["LSB_DJOB_HOSTFILE"]).read_text().split())
    return _summed((host, 1) for host in environ.get("LSB_HOSTS", "").split())


def _summed(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for host, slots in pairs:
        found[host] = found.get(host, 0) + slots
    return found


def restart_count(environ: Mapping[str, str]) -> int:
    """Pure: how often the job was started before."""
    return digits(environ.get(STARTS, "")) or 0


def end_of_job(environ: Mapping[str, str]) -> float | None:
    """Pure: when the job must have ended, in unix time, by what our script has exported."""
    started, seconds = digits(environ.get(STARTED, "")), digits(environ.get(SECONDS, ""))
    return None if started is None or seconds is None else float(started + seconds)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: the environment of blaunch, which takes it along to the other node."""
    return {name: value for name, value in environ.items() if name not in OF_ONE_PROCESS} | {POLL: "1"}


# Times that only LSF has.


EARLY_S: Final = 5.0
"""LSF looks at run limits every few seconds: so long before its end a job that is ended counts as one whose time is over."""


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    """When the job ends, when it was submitted and started. Where this node may not ask, nothing but the end that the batch script
    has told. Raises SchedulerSilent."""
    try:
        found = job_details([allocation.job_id]).get(allocation.job_id, Details())
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        found = Details()
    end = None if found.started is None or found.limit_s is None else found.started + found.limit_s
    ends = [moment for moment in (end, allocation.deadline) if moment is not None]
    return {"deadline": min(ends, default=None), "submitted": found.submitted, "started": found.started}


def ended_by(allocation: Allocation) -> str | None:
    """By the job's state, by its time, and by what somebody has asked for, which only its history tells while it runs. None where this node
    may not ask. Raises SchedulerSilent."""
    if allocation.deadline is not None and time.time() >= allocation.deadline - EARLY_S:
        return "timeout"
    try:
        jobs = listed_jobs(SHORT_PATIENCE_S, QUICK_ANSWER_S, "-a", allocation.job_id)
        found = next((job for job in jobs if job.job_id == allocation.job_id), None)
        if found is None:
            return None
        if found.stage == "waits":
            return "requeued"
        if found.stage == "over":
            return ended_by_of(found.state, job_details([found.job_id], SHORT_PATIENCE_S).get(found.job_id, Details()))
        return signal_of(ask(LSF, ("bhist", "-l", found.job_id), SHORT_PATIENCE_S, ANSWER_S))
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None


def requeue(allocation: Allocation) -> None:
    """`brequeue`, which signals all of the job, kills it 20 s later and puts it back into the queue."""
    job_end.requeue(LSF, allocation, ("brequeue", allocation.job_id), done="is being requeued")


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """As holder_alive, by one question for all of them."""

    def by_job(others: Sequence[Holder]) -> list[bool]:
        jobs = {job.job_id: job for job in listed_jobs(limit_s)}
        return [is_running(jobs.get(holder.job_id)) for holder in others]

    return job_end.holders_alive(holders, (os.environ.get(JOB_ID), restart_count(os.environ)), by_job)


def is_running(job: Listed | None) -> bool:
    """Pure: whether a job may have processes. Which start of it they are of LSF does not say."""
    return job is not None and job.stage != "waits"


# `blaunch`: a program on one node of our job. Pure.
#
# Output comes back and standard input goes there, the exit code is lost: what became of a node program its link says. When the client is
# killed, LSF kills the program. OpenLava hands the words over as they are, where LSF may give them to a shell of the node once more: only
# words that mean the same both times are handed over. USR2, which all of a job get whose time is over, would end the client, and with it
# the program.
#
# OpenLava's client ends at times with 0 and without a word, just after its program was started: it asks at once what the program uses, and
# takes it for ended where the node cannot say that yet. The program may live on, or not.


DEAF: Final = "trap '' USR2; exec \"$@\""


def launch_argv(host: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The program learns LSF's name of its node. Raises AllocationError for words that a shell would change."""
    words = ("env", f"{NODE}={host}", *argv)
    changed = next((word for word in words if not re.fullmatch(r"[\w@%+=:,./-]+", word, re.ASCII)), None)
    if changed is not None:
        raise AllocationError(
            f"blaunch cannot hand over {changed!r}: a shell of the node may change it; in paths of Slipway and its Python use "
            "letters, digits and @ % + = : , . / - _ only"
        )
    return ("/bin/sh", "-c", DEAF, "slipway-launch", "blaunch", "-z", host, *words)
