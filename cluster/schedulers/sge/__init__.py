"""Read the nodes of a job of Grid Engine and when and why it ends, requeue it, and start a node program by each `qrsh -inherit`.

Son of Grid Engine, Univa and Altair Grid Engine, and Open Cluster Scheduler are meant. In `profiles/sge` the job is the run's own; in
`profiles/sge-allocation` many runs share one job, and each takes nodes of it by lock files. A job needs a parallel environment with
control_slaves TRUE, whose name only the site knows: `parallel_environment` in its file.
"""

import contextlib
import dataclasses
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base.errors import AllocationError, SchedulerOutputError, SchedulerSilent
from base.sanitize import ascii_int
from cluster.detection import scheduler_of
from cluster.schedulers import inside_job, queries
from cluster.schedulers.jobs import QueuedJob
from cluster.schedulers.sge.answers import EARLY_S, SGE, job_details, listed_job, listed_jobs, with_details
from cluster.types import Allocation, AllocationRequest, Holder, Launch

NAME = "sge"
LIMIT_SIGNAL: int | None = None
REFUSAL: Final = "didn't accept task"
"""The message of qrsh when all slots of a node have programs already."""
SILENCE: Final = ("got select error", "got send error", "unable to contact")
"""Messages of qrsh while the daemon of a node is silent."""


# The environment of a job, which Grid Engine and our batch script set.


JOB_ID: Final = "JOB_ID"
HOST_FILE: Final = "PE_HOSTFILE"
BEGUN: Final = "SLIPWAY_JOB_BEGUN"
"""The job; exported to the programs that the batch script starts, and not set in the script itself."""
OF_ONE_PROCESS: Final = frozenset(
    {
        *("PE_HOSTFILE", "JOB_SCRIPT", "HOSTNAME", "TMPDIR", "TMP", "NHOSTS", "NSLOTS", "NQUEUES", "QUEUE", "REQUEST", "REQNAME"),
        *("SGE_JOB_SPOOL_DIR", "SGE_STDOUT_PATH", "SGE_STDERR_PATH", "SGE_STDIN_PATH", "JOB_NAME", "PWD", "OLDPWD", "_"),
    }
)
"""Variables of one process or one node. On another one Grid Engine sets its own."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_hosts(text: str) -> dict[str, int]:
    """Parse a PE_HOSTFILE into slots by host, in its order. A host has a line for each of its queues."""
    found: dict[str, int] = {}
    for words in map(str.split, text.splitlines()):
        slots = ascii_int(words[1]) if len(words) > 1 else None
        if slots is not None:
            found[words[0]] = found.get(words[0], 0) + slots
    return found


def hosts_of_job(environ: Mapping[str, str]) -> dict[str, int]:
    """Return slots by host of the job of `environ`; empty outside of jobs. Without a parallel environment it has this host only."""
    with contextlib.suppress(OSError):
        if environ.get(HOST_FILE):
            return parse_hosts(Path(environ[HOST_FILE]).read_text())
    return {os.uname().nodename: 1} if environ.get(JOB_ID) else {}


def restart_count(environ: Mapping[str, str]) -> int:
    """Return 0 in the first start of the job. Grid Engine does not number the later ones: they have the time when they began."""
    if environ.get("RESTARTED", "0") in ("", "0"):
        return 0
    return ascii_int(environ.get(inside_job.STARTED, "")) or 1


def job_start(environ: Mapping[str, str]) -> str | None:
    return f"{environ[JOB_ID]}-{restart_count(environ)}" if scheduler_of(environ) == NAME else None


# The allocation.


def allocate(request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:  # noqa: ARG001 - the job counts
    if scheduler_of(environ) != NAME:
        raise AllocationError(
            "the site says scheduler: sge, and this process is not inside a job of Grid Engine: see docs/how-to/schedulers.md"
        )
    if not environ.get(HOST_FILE):
        raise AllocationError(
            f"job {environ[JOB_ID]} has no parallel environment, and Grid Engine starts no programs for it: submit it with -pe NAME N, "
            "of which control_slaves is TRUE (docs/how-to/schedulers.md)"
        )
    hosts = hosts_of_job(environ)
    return plan_allocation(request, environ, hosts, inside_job.resolved([*hosts]))


def plan_allocation(
    request: AllocationRequest, environ: Mapping[str, str], slots: Mapping[str, int], addresses: Mapping[str, str]
) -> Allocation:
    found = inside_job.job_allocation(
        (NAME, environ[JOB_ID]),
        request,
        environ,
        addresses,
        is_batch=environ.get("ENVIRONMENT") == "BATCH",
        advice=f" with {sum(slots.values())} slots of {environ.get('PE', 'no')!r}; it makes nodes of slots by the rule of the parallel "
        "environment (qconf -sp): name one with a fixed number per node, and that number (`parallel_environment: NAME SLOTS` in the site "
        "file)",
    )
    end = inside_job.exported_end(environ)
    return dataclasses.replace(found, restart_count=restart_count(environ), deadline=None if end is None else end - EARLY_S)


# The node programs.
#
# A shell of the node puts the words of `qrsh -inherit` together and reads them again, so each is quoted. Output and exit code come back,
# standard input goes there. A program that ends by a signal would end the whole job: a shell stands between, which makes an exit code of
# it. When the client is killed, Grid Engine kills the program. USR2, which announces the end of a job (batch_script), goes to all
# processes: both shells make what they start ignore it.


REMOTE: Final = "trap '' USR2; {command}; exit $?"


def launches(allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
    return inside_job.launch_each(allocation, node_argv, launch_argv, SILENCE, REFUSAL)


def launch_argv(host: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Build the qrsh that runs `argv` on a host, with the environment of launch_environ (-V)."""
    words = ("/bin/sh", "-c", REMOTE.format(command=shlex.join(argv)))
    return ("/bin/sh", "-c", inside_job.IGNORE_USR2, "slipway-launch", "qrsh", "-inherit", "-V", host, *map(shlex.quote, words))


def launch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return our environment without what belongs to this process or node, and without QRSH_COMMAND, which has bytes that are no text."""
    return {
        name: value
        for name, value in environ.items()
        if name not in OF_ONE_PROCESS and not name.startswith("QRSH_") and _NAME.fullmatch(name) and not set(value) & set("\n\r")
    }


# The end of the job.


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    """Query the times of the job. Where this node is no submit host, only the end is known, which the batch script has exported."""
    unknown = {"deadline": allocation.deadline, "submitted": None, "started": None}
    try:
        job = listed_job(allocation.job_id)
        fields = job_details([allocation.job_id]).get(allocation.job_id, {})
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return unknown
    if job is None or job.waits:
        return unknown
    job = with_details(job, fields)
    return {"deadline": inside_job.earliest(job.end, allocation.deadline), "submitted": job.submitted, "started": job.expected}


def ended_by(allocation: Allocation) -> str | None:
    """Read the reason from the letters of the job's state. It is unknown where this node may not query."""
    try:
        job = listed_job(allocation.job_id, queries.SHORT_PATIENCE_S)
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None
    return None if job is None else reason_of(job, allocation.restart_count, time.time())


def reason_of(job: QueuedJob, restart_count: int, now: float) -> str | None:
    """Derive the reason why a job ends.

    At `h_rt` and at qdel a job has the same letters: the time tells which it was. A job that was put back into the queue may run again
    (`Rr`, `Rt`) before this query; for a start that was not its first one that cannot be told.
    """
    if job.restarts and (job.waits or (restart_count == 0 and job.stage != "ends")):
        return "requeued"
    if job.end is not None and now >= job.end:
        return "timeout"
    return "cancelled" if job.stage == "ends" else None


def requeue(allocation: Allocation) -> None:
    """Run `qmod -rj`, which kills all of the job, and puts it back into the queue."""
    inside_job.requeue(SGE, allocation, ("qmod", "-rj", allocation.job_id), done="rescheduling")


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    ours = (os.environ.get(JOB_ID), restart_count(os.environ))
    return inside_job.holders_alive(holders, ours, lambda _ids: listed_jobs(limit_s), is_running)


def is_running(job: QueuedJob, holder: Holder) -> bool:
    """Return True if a job may have processes of the start that the holder belonged to."""
    return not job.waits and not (job.restarts and holder.restart_count == 0)
