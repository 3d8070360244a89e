"""What LSF's commands print, after what OpenLava 4.0 printed (tests/captured/lsf) and the manual of LSF 10.1. Pure."""

import time
from collections.abc import Iterable, Sequence

from tests.cluster.fake_lsf.jobs import Job

WIDTH, MARGIN = 79, 21
REASONS = {
    "OWNER": "job killed by owner",
    "REQUEUE_OWNER": "job killed and requeued by owner",
    "RUNLIMIT": "job killed after reaching LSF run time limit",
}
QUEUE_ROW = "{name:15} 30  Open:Active       -    -    -    -     0     0     0     0"
QUEUE_HEAD = "QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP"


def short_time(moment: float | None) -> str:
    return "-" if moment is None else time.strftime("%b %d %H:%M", time.localtime(moment))


def long_time(moment: float) -> str:
    return time.strftime("%a %b %e %H:%M:%S", time.localtime(moment))


def row(job: Job, fields: Sequence[str], delimiter: str) -> str:
    """Of `bjobs -noheader -o`."""
    values = {
        "jobid": job.job_id,
        "stat": job.state,
        "submit_time": short_time(job.submitted),
        "start_time": short_time(job.started),
        "exec_host": ":".join(f"{slots}*{host}" for host, slots in job.hosts.items()) or "-",
        "sub_cwd": job.directory,
        "job_name": job.options.name,
    }
    return delimiter.join(values[field] for field in fields)


def folded(text: str) -> str:
    """A paragraph as LSF breaks it, in the middle of words."""
    first, rest = text[:WIDTH], text[WIDTH:]
    size = WIDTH - MARGIN
    return "\n".join([first, *(" " * MARGIN + rest[at : at + size] for at in range(0, len(rest), size))])


def details(job: Job, reasons: str) -> str:
    """Of `bjobs -l`."""
    head = (
        f"Job <{job.job_id}>, Job Name <{job.options.name}>, User <{job.user}>, Project <{job.options.project}>, Status <{job.state}>, "
        f"Queue <normal>, Command <{';'.join(job.script.splitlines())}>"
    )
    lines = ["", folded(head), folded(f"{long_time(job.submitted)}: {submitted(job)}")]
    if job.options.minutes is not None:
        lines += ["", " RUNLIMIT                ", f" {job.options.minutes:.1f} min", ""]
    if job.started is not None:
        hosts = " ".join(f"<{slots}*{host}>" for host, slots in job.hosts.items())
        count = sum(job.hosts.values())
        started = f"Started {count} Task(s) on Host(s) {hosts}, Allocated {count} Slot(s) on Host(s) {hosts}, Execution Home </>"
        lines.append(folded(f"{long_time(job.started)}: {started}, Execution CWD <{job.directory}>;"))
    if job.state == "PEND":
        lines += [" PENDING REASONS:", f" {reasons};", ""]
    if job.ended is not None and job.state in ("DONE", "EXIT"):
        lines.append(folded(f"{long_time(job.ended)}: {job.how}. The CPU time used is 0.1 seconds."))
        if job.reason is not None:
            lines.append(folded(f"{long_time(job.ended)}: Completed <exit>; TERM_{job.reason}: {REASONS[job.reason]}."))
    return "\n".join([*lines, "", " SCHEDULING PARAMETERS:", "           r15s   r1m  r15m   ut", " loadSched   -     -     -     -", ""])


def submitted(job: Job) -> str:
    options = job.options
    more = [*(["Re-runnable"] if options.rerunnable else []), *(["Exclusive Execution"] if options.exclusive else [])]
    more += [f"{options.slots} Task(s)", f"Requested Resources <{options.requirement}>"]
    return f"Submitted from host <login>, CWD <{job.directory}>, {', '.join(more)};"


def history(job: Job) -> str:
    """Of `bhist -l`."""
    head = (
        f"Job <{job.job_id}>, Job Name <{job.options.name}>, User <{job.user}>, Project <{job.options.project}>, "
        f"Command <{';'.join(job.script.splitlines())}>"
    )
    return "\n".join(["", folded(head), *(folded(f"{long_time(when)}: {words}") for when, words in job.events), ""])


def queues(names: Iterable[str]) -> str:
    return "\n".join([QUEUE_HEAD, *(QUEUE_ROW.format(name=name) for name in names), ""])
