"""Submit, list and cancel jobs of PBS."""

import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from base.errors import AllocationError, ConfigError, SchedulerOutputError
from base.system import account_name
from cluster.schedulers.jobs import JOB_ID_PLACEHOLDER, BatchJob, JobSize, QueuedJob, one_line, script_lines, work_words
from cluster.schedulers.pbs import JOB_ID, answers, node_names
from cluster.schedulers.queries import ANSWER_S, QUICK_ANSWER_S, ask, inherited_environ, submit_script

# Nodes instead of those that failed an earlier attempt, as PBS cannot exclude nodes.


Entries = Mapping[str, Mapping[str, object]]
NODES = ("pbsnodes", "-a", "-F", "json")
UNUSABLE: Final = ("down", "offline", "state-unknown", "unresolvable")
"""Words in the state of a node that takes no jobs."""


def others(nodes: Entries, size: JobSize) -> tuple[str, ...]:
    """Return as many nodes as the job needs, without those that it excludes, free ones first; empty if there are too few."""
    asked = {"ncpus": size.cores or 0, "ngpus": size.gpus or 0, "mem": (size.memory_mb or 0) << 20}
    fitting = {}
    for name, node in nodes.items():
        state, has = str(node.get("state", "")), answers.resources_of(node, "resources_available")
        usable = name not in size.exclude and not any(word in state for word in UNUSABLE)
        if usable and all((answers.parse_size(str(has.get(key, ""))) or 0) >= number for key, number in asked.items()):
            fitting[name] = state
    names = sorted(fitting, key=lambda name: fitting[name] != "free")  # in the server's order otherwise
    return tuple(names[: size.nodes]) if len(names) >= size.nodes else ()


def instead_of_failed(size: JobSize) -> tuple[str, ...]:
    """Query the nodes for a job that excludes some. The result is empty for other jobs, and if the server does not answer."""
    if not size.exclude:
        return ()
    try:
        return others(answers.parse_entries(ask(answers.PBS, NODES, 0.0, QUICK_ANSWER_S)), size)
    except SchedulerOutputError:
        return ()


# The batch script.
#
# Its log is written by the script itself: PBS would keep it on the first node until the job ends, and its paths cannot hold the job's id.
# The variables of the submitting shell stand in the script, which only we and PBS can read: those of `qsub -v` are shown to everybody by
# `qstat -f`, and OpenPBS changes quotes and backslashes in them.


NOT_INHERITED: Final = re.compile(r"PBS_|SLURM_|SBATCH_|TMPDIR$")
"""Variables that PBS sets itself in each job."""


def qsub_options(job: BatchJob, hosts: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the options of qsub, one per line of the script, with the site's directives last. Raises ConfigError.

    `hosts` are the nodes that the job is to get, as PBS cannot exclude nodes.
    """
    size = job.size
    if size.qos is not None:
        raise ConfigError(f"qos: {size.qos!r} in the site file: PBS has none; use its queues, or `directives`")
    chunk = [
        ("ncpus", size.cores),
        ("mem", f"{size.memory_mb}mb" if size.memory_mb else None),
        ("ngpus", size.gpus),
        ("mpiprocs", 1),
    ]
    each = [*(f"{name}={value}" for name, value in chunk if value is not None), *([size.constraint] if size.constraint else [])]
    if re.search(r"[\s+]", wanted := ":".join(each)):
        raise ConfigError(
            f"constraint: {wanted!r} of `qsub -l select` holds a space or a plus; valid: resources of one chunk, such as `gpu_model=a100`"
        )
    select = "+".join(":".join(["1", f"host={host}", *each]) for host in hosts) or ":".join([str(size.nodes), *each])
    said = [
        ("-N", job.name),
        ("-l", f"select={select}"),
        ("-l", f"place=scatter{':exclhost' if size.whole_nodes else ''}"),
        ("-l", f"walltime={clock(size.minutes)}"),
        ("-q", size.queue),
        ("-A", size.account),
        ("-S", "/bin/bash"),
        ("-r", "y"),
        ("-j", "oe"),
        ("-o", "/dev/null"),
        ("-v", None if job.work is None else f"{answers.WORK}={work_words(job.work)}"),
    ]
    options = [f"{option} {shlex.quote(one_line(option, value))}" for option, value in said if value is not None]
    return (*options, *(one_line("directives", line) for line in size.directives))


def batch_script(job: BatchJob, environ: Mapping[str, str], hosts: Sequence[str] = ()) -> str:
    """Build the text of the batch script, which exports the variables of `environ` that a job inherits. See qsub_options for `hosts`."""
    directory, _, name = job.output.rpartition("/")
    log = "".join(
        f'"$PBS_JOBID"{shlex.quote(part)}' if place else shlex.quote(part) for place, part in enumerate(name.split(JOB_ID_PLACEHOLDER))
    )
    lines = [
        "#!/bin/bash",
        *(f"#PBS {option}" for option in qsub_options(job, hosts)),
        "",
        f"exec >>{shlex.quote(f'{directory}/')}{log} 2>&1",
        *(f"export {name}={shlex.quote(value)}" for name, value in sorted(taken_along(environ).items())),
        *script_lines(job),
    ]
    return "\n".join(lines) + "\n"


def taken_along(environ: Mapping[str, str]) -> dict[str, str]:
    """Select the variables that a job inherits. Functions come from the login shell that PBS starts for a job."""
    return {name: value for name, value in inherited_environ(environ).items() if name.isidentifier() and not NOT_INHERITED.match(name)}


def clock(minutes: int) -> str:
    """Format minutes as `26:03:00`: PBS knows no days."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


# Our jobs in PBS's queue. A job for one run or shard has its work in its variable SLIPWAY_WORK, a job of `slipway submit` in its name.


ALL: Final = ("qstat", "-f", "-F", "json")
"""The query for the jobs of everybody that are not over. If jobs are named, OpenPBS shows only the first; 100 jobs take 0.4 s."""
FEW: Final = 16
"""How many jobs are queried one by one, 0.1 s each: the jobs of everybody may be thousands."""


def our_jobs(patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
    """Query the ids of our jobs, then each of them, or the jobs of everybody."""
    give_up = time.monotonic() + patience_s
    ids = ask(answers.PBS, ("qselect", "-u", account_name()), patience_s, timeout_s).split()
    left = max(0.0, give_up - time.monotonic())
    found = answers.parse_jobs(ask(answers.PBS, ALL, left, timeout_s)) if len(ids) > FEW else answers.query_jobs(ids, left, timeout_s)
    ours = set(ids)
    return oldest_first(job for job in found if job.job_id in ours and job.stage != "over")


def jobs_named(name: str, patience_s: float) -> tuple[QueuedJob, ...]:
    answer = ask(answers.PBS, ("qselect", "-x", "-u", account_name(), "-N", name), patience_s)
    return tuple(job for job in known_jobs(answer.split(), patience_s) if job.name == name)


def known_jobs(job_ids: Sequence[str], patience_s: float) -> tuple[QueuedJob, ...]:
    return oldest_first(answers.query_jobs(job_ids, patience_s, history=True))


def oldest_first(jobs: Iterable[QueuedJob]) -> tuple[QueuedJob, ...]:
    return tuple(sorted(jobs, key=lambda job: (job.submitted or 0.0, len(job.job_id), job.job_id)))


# The submission.


SERVER = answers.PBS
options = qsub_options


def script(job: BatchJob) -> str:
    return batch_script(job, os.environ, instead_of_failed(job.size))


def submit(job: BatchJob, patience_s: float) -> str:
    """Submit a job, whose variables stand in its script."""
    return submit_script(answers.PBS, job.name, script(job), jobs_named, patience_s)


def cancel(job_ids: Sequence[str], patience_s: float) -> None:
    """Cancel all jobs by one qdel, which goes on after one that it cannot end."""
    ask(answers.PBS, ("qdel", *job_ids), patience_s, ANSWER_S)


def num_nodes_of_job(environ: Mapping[str, str]) -> int | None:
    try:
        return len(node_names(environ)) if environ.get(JOB_ID) else None
    except AllocationError:
        return None


def end_of_job(environ: Mapping[str, str], patience_s: float) -> float | None:
    job_id = environ.get(JOB_ID)
    job = answers.job_info(job_id, patience_s) if job_id else None
    return None if job is None else job.end
