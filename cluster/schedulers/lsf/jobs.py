"""Submit, list and cancel jobs of LSF."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from base.errors import ConfigError
from cluster.schedulers import inside_job, jobs, lsf
from cluster.schedulers.lsf.answers import LSF, job_details, listed_jobs, with_details
from cluster.schedulers.queries import ANSWER_S, ask, submit_script

# The batch script.
#
# Its log is written by the script itself: LSF would keep it on the first node until the job ends, and put a report around it. In that log
# the script counts its starts, which LSF tells no job. At the run limit LSF sends USR2 to all processes: they ignore it, but for the
# supervisor.


LONGEST_NAME: Final = 500
"""The number of characters of a job's name: OpenLava cuts it at 511."""


def bsub_options(job: jobs.BatchJob) -> tuple[str, ...]:
    """Return the options of bsub, one per line of the script, with the site's directives last and as they are. Raises ConfigError."""
    size = job.size
    if size.qos is not None:
        raise ConfigError(
            f"qos: {size.qos!r} in the site file: LSF has none; for a service class `directives: ['-sla NAME']`, else its queues"
        )
    slots = slots_per_node(size)
    name = job.name if job.work is None else f"{job.name} {jobs.work_words(job.work)}"
    if len(name) > LONGEST_NAME:
        raise ConfigError(f"the job's name for LSF has {len(name)} characters, at most {LONGEST_NAME} go: shorten the name of the study")
    options = [
        ("-J", name),
        ("-n", str(size.nodes * slots)),
        ("-R", resources(job, slots)),
        ("-gpu", f"num={size.gpus}/host:mode=shared:j_exclusive=yes" if size.gpus else None),
        ("-W", str(size.minutes)),
        ("-q", size.queue),
        ("-P", size.account),
        ("-cwd", job.directory),
        ("-o", "/dev/null"),
    ]
    said = [f"{option} {_quoted(option, value)}" for option, value in options if value is not None]
    alone = ["-x"] if size.whole_nodes and not job.is_shard else []
    return (*said, *alone, "-r", *(jobs.one_line("directives", line) for line in size.directives))


def resources(job: jobs.BatchJob, slots: int) -> str:
    """Return the resource requirement: slots per node, the choice of nodes, and memory in LSF's unit, MB if the site has no other."""
    size = job.size
    chosen = [*([size.constraint] if size.constraint else []), *(f"hname!='{name}'" for name in size.exclude)]
    parts = [f"select[{' && '.join(chosen)}]"] if chosen else []
    parts += [f"rusage[mem={size.memory_mb}]"] if size.memory_mb else []
    return " ".join([*parts, f"span[ptile={slots}]"])


def batch_script(job: jobs.BatchJob) -> str:
    """Build the text of the batch script, which ends in `exec`, so that signals reach the program."""
    place = '"$LSB_JOBID"'.join(shlex.quote(part) if part else "" for part in job.output.split(jobs.JOB_ID_PLACEHOLDER))
    lines = [
        "#!/bin/bash",
        *(f"#BSUB {option}" for option in bsub_options(job)),
        "",
        f"log={place}",
        f'export {lsf.STARTS}=$(grep -c "^slipway: job $LSB_JOBID starts" "$log" 2>/dev/null)',
        'exec >>"$log" 2>&1',
        'echo "slipway: job $LSB_JOBID starts on ${LSB_MCPU_HOSTS:-its nodes}"',
        f"export {inside_job.STARTED}=$(date +%s) {inside_job.SECONDS}={job.size.minutes * 60}",
        "trap '' USR2",
        *jobs.script_lines(job),
    ]
    return "\n".join(lines) + "\n"


def slots_per_node(size: jobs.JobSize) -> int:
    """Return a slot for each core that a run has of a node."""
    return size.cores or 1


def _quoted(what: str, value: str) -> str:
    """Put a value between quotation marks, for a line that bsub splits as a shell does. Raises ConfigError."""
    jobs.one_line(what, value)
    if re.fullmatch(r"[\w@%+=:,./-]+", value, re.ASCII):
        return value
    if set(value) & set('"\\`$'):
        raise ConfigError(f'{what}: {value!r} holds one of the characters " \\ ` $, which no line for LSF can carry')
    return f'"{value}"'


# Our jobs in LSF's queues: a list, and one query for what the list lacks about the jobs with our names.


ENDED_TOO: Final = "-a"


def our_jobs(patience_s: float, timeout_s: float) -> tuple[jobs.QueuedJob, ...]:
    listed = listed_jobs(patience_s, timeout_s)
    details = job_details([job.job_id for job in listed if job.name.startswith(jobs.OUR_NAMES)], patience_s, timeout_s)
    return tuple(with_details(job, details.get(job.job_id)) for job in listed)


def jobs_named(name: str, patience_s: float) -> tuple[jobs.QueuedJob, ...]:
    return tuple(job for job in listed_jobs(patience_s, ANSWER_S, ENDED_TOO) if job.name == name)


def known_jobs(job_ids: Sequence[str], patience_s: float) -> tuple[jobs.QueuedJob, ...]:
    """Query the list, and the details of jobs that are over. LSF knows them for an hour unless CLEAN_PERIOD says otherwise."""
    listed = listed_jobs(patience_s, ANSWER_S, ENDED_TOO, *job_ids) if job_ids else ()
    details = job_details([job.job_id for job in listed if job.stage == "over"], patience_s)
    return tuple(with_details(job, details.get(job.job_id)) for job in listed)


# The submission.


SERVER = LSF
script, options = batch_script, bsub_options


def submit(job: jobs.BatchJob, patience_s: float) -> str:
    """Submit a job, whose name contains its work."""
    return submit_script(LSF, job.name, batch_script(job), jobs_named, patience_s)


def cancel(job_ids: Sequence[str], patience_s: float) -> None:
    ask(LSF, ("bkill", *job_ids), patience_s, ANSWER_S)


def num_nodes_of_job(environ: Mapping[str, str]) -> int | None:
    return len(lsf.hosts_of_job(environ)) or None


def end_of_job(environ: Mapping[str, str], patience_s: float) -> float | None:  # noqa: ARG001 - no query
    return inside_job.exported_end(environ)
