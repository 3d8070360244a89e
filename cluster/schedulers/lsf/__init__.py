"""Read the nodes of a job of IBM Spectrum LSF or OpenLava and when and why it ends, requeue it, and start a node program by each blaunch.

blaunch loses the exit codes of what it starts: node programs end by their own link to the supervisor and by its deadline. In `profiles/lsf`
the job is the run's own; in `profiles/lsf-allocation` many runs share one job, and each takes nodes of it by lock files.
"""

import contextlib
import dataclasses
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base.errors import AllocationError, SchedulerOutputError, SchedulerSilent
from base.sanitize import ascii_int
from cluster.detection import scheduler_of
from cluster.schedulers import inside_job
from cluster.schedulers.lsf.answers import EARLY_S, LSF, Details, ended_by_of, job_details, listed_jobs, signal_of
from cluster.schedulers.queries import ANSWER_S, QUICK_ANSWER_S, SHORT_PATIENCE_S, ask
from cluster.types import Allocation, AllocationRequest, Holder, Launch

NAME = "lsf"
LIMIT_SIGNAL: int | None = signal.SIGUSR2
SILENCE: Final = ("ls_initrex() failed", "lsb_init() failed", "LIM is down", "Communication time out", "daemon not responding")
"""Messages of blaunch while the daemons of this node are silent."""


# The environment of a job, which LSF and our batch script set.


JOB_ID: Final = "LSB_JOBID"
STARTS: Final = "SLIPWAY_JOB_STARTS"
"""How often the job was started before, which the script counts in its log: LSF has no variable for that either."""
NODE: Final = "SLIPWAY_LSF_NODE"
"""LSF's name of the node that a program was started on; set by our launches."""
POLL: Final = "LSB_BLAUNCH_SLEEPTIME"
"""How often OpenLava's blaunch looks for the end of its programs, in seconds; LSF's own does not need it."""
OF_ONE_PROCESS: Final = frozenset({"HOSTNAME", "TMPDIR", "TMP", "LS_JOBPID", "LS_EXEC_T", "PWD", "OLDPWD", "_"})
"""Variables of one process or one node. On another one LSF sets its own."""


def hosts_of_job(environ: Mapping[str, str]) -> dict[str, int]:
    """Return slots by host, in LSF's order, of the job that `environ` belongs to; empty outside of jobs.

    A variable is not set if it would be too long. The file names a host once for each slot.
    """
    pairs = environ.get("LSB_MCPU_HOSTS", "").split()
    counts = [ascii_int(word) for word in pairs[1::2]]
    if pairs and len(pairs) % 2 == 0 and all(counts):
        found: Counter[str] = Counter()
        for host, count in zip(pairs[::2], counts, strict=True):
            found[host] += count or 0
        return dict(found)
    if environ.get("LSB_DJOB_HOSTFILE"):
        with contextlib.suppress(OSError):
            return dict(Counter(Path(environ["LSB_DJOB_HOSTFILE"]).read_text().split()))
    return dict(Counter(environ.get("LSB_HOSTS", "").split()))


def restart_count(environ: Mapping[str, str]) -> int:
    return ascii_int(environ.get(STARTS, "")) or 0


def job_start(environ: Mapping[str, str]) -> str | None:
    return f"{environ[JOB_ID]}-{restart_count(environ)}" if scheduler_of(environ) == NAME else None


# The allocation.


def allocate(request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:  # noqa: ARG001 - the job counts
    if scheduler_of(environ) != NAME:
        raise AllocationError("the site says scheduler: lsf, and this process is not inside a job of LSF: see docs/how-to/schedulers.md")
    hosts = hosts_of_job(environ)
    if not hosts:
        raise AllocationError(
            f"job {environ[JOB_ID]}: none of LSB_MCPU_HOSTS, LSB_DJOB_HOSTFILE and LSB_HOSTS names its hosts; was its environment changed?"
        )
    return plan_allocation(request, environ, hosts, inside_job.resolved([*hosts]))


def plan_allocation(
    request: AllocationRequest, environ: Mapping[str, str], slots: Mapping[str, int], addresses: Mapping[str, str]
) -> Allocation:
    found = inside_job.job_allocation(
        (NAME, environ[JOB_ID]),
        request,
        environ,
        addresses,
        is_batch=environ.get("LSB_INTERACTIVE") != "Y",
        advice=f" with {sum(slots.values())} slots; submit it with -n SLOTS -R 'span[ptile=SLOTS_PER_NODE]'",
    )
    cpus = min(slots[node.name] for node in found.nodes)
    return dataclasses.replace(found, restart_count=restart_count(environ), deadline=inside_job.exported_end(environ), cpus_per_node=cpus)


# The node programs.
#
# Output comes back and standard input goes there, the exit code is lost: the link of a node program tells how it ended. When the client is
# killed, LSF kills the program. OpenLava passes the words on as they are, where LSF may give them to a shell of the node once more: only
# words that mean the same both times are passed on. USR2, which all processes of a job get when its time is over, would end the client, and
# with it the program.
#
# OpenLava's client ends at times with 0 and without a word, just after its program was started: it asks at once for the program's usage,
# and takes the program for ended if the node does not know it yet. The program may live on, or not.


def launches(allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
    return inside_job.launch_each(allocation, node_argv, launch_argv, SILENCE, may_be_mute=True)


def launch_argv(host: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Build the blaunch of `argv` on a host, with LSF's name of that node. Raises AllocationError for words that a shell would change."""
    words = ("env", f"{NODE}={host}", *argv)
    changed = next((word for word in words if not re.fullmatch(r"[\w@%+=:,./-]+", word, re.ASCII)), None)
    if changed is not None:
        raise AllocationError(
            f"blaunch cannot hand over {changed!r}: a shell of the node may change it; in paths of Slipway and its Python use "
            "letters, digits and @ % + = : , . / - _ only"
        )
    return ("/bin/sh", "-c", inside_job.IGNORE_USR2, "slipway-launch", "blaunch", "-z", host, *words)


def launch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return our environment without what belongs to this process or node. blaunch takes it along to the other node."""
    return {name: value for name, value in environ.items() if name not in OF_ONE_PROCESS} | {POLL: "1"}


# The end of the job.


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    """Query the times of the job. Where this node may not query, only the end is known, which the batch script has exported."""
    try:
        found = job_details([allocation.job_id]).get(allocation.job_id, Details())
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        found = Details()
    return {"deadline": inside_job.earliest(found.end, allocation.deadline), "submitted": found.submitted, "started": found.started}


def ended_by(allocation: Allocation) -> str | None:
    """Derive the reason from the job's time and state, and from its history, which alone shows the requests while the job runs.
    The reason is unknown where this node may not query."""
    if allocation.deadline is not None and time.time() >= allocation.deadline - EARLY_S:
        return "timeout"
    try:
        jobs = listed_jobs(SHORT_PATIENCE_S, QUICK_ANSWER_S, "-a", allocation.job_id)
        found = next((job for job in jobs if job.job_id == allocation.job_id), None)
        if found is None:
            return None
        if found.waits:
            return "requeued"
        if found.stage == "over":
            return ended_by_of(found.state, job_details([found.job_id], SHORT_PATIENCE_S).get(found.job_id, Details()))
        return signal_of(ask(LSF, ("bhist", "-l", found.job_id), SHORT_PATIENCE_S, ANSWER_S))
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None


def requeue(allocation: Allocation) -> None:
    """Run `brequeue`, which signals all of the job, kills it 20 s later and puts it back into the queue."""
    inside_job.requeue(LSF, allocation, ("brequeue", allocation.job_id), done="is being requeued")


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """Return for each holder whether it lives, with one query for all of them. LSF does not tell which start of a job runs."""
    ours = (os.environ.get(JOB_ID), restart_count(os.environ))
    return inside_job.holders_alive(holders, ours, lambda _ids: listed_jobs(limit_s), lambda job, _holder: not job.waits)
