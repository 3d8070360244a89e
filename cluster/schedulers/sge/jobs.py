"""Submit, list and cancel jobs of Grid Engine."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from base.errors import ConfigError
from base.system import account_name
from cluster.schedulers import inside_job, jobs, sge
from cluster.schedulers.jobs import BatchJob, JobSize, QueuedJob
from cluster.schedulers.queries import submit_script
from cluster.schedulers.sge import BEGUN, answers

# The batch script.
#
# `qdel` and `h_rt` kill without a warning. With `-notify` all processes of the job, on every node, get USR2 before: a minute before, if the
# queue has no other time. All processes ignore it, except for the supervisor, which ends its run, and this script, which signals its
# program to end as any other scheduler does.
#
# When the script ends, all processes of the job are killed, on every node and without a warning. So if its program was killed, such as a
# Snakemake when memory is short, the script waits for the processes that the program has started: a supervisor notices the end of its
# parent, and ends its run. The script looks twice, a second apart, before it takes them for gone: a process in the moment of an execve
# shows no environment.


EXITS_WITH_A_MEANING: Final = (99, 100)
"""Exit codes of a batch script by which Grid Engine puts the job back into the queue, or into an error state."""
NOT_IN_PATHS: Final = frozenset("$,'\"#")
"""Characters in a working directory or log that qsub reads as variables, a second path, quotations or a comment."""
ENDING: Final = """\
trap '' USR2
{begun}="$JOB_ID.$SGE_TASK_ID" {command} &
child=$!
told=
trap 'told=1; kill -TERM "$child" 2>/dev/null' USR2 TERM
code=0; wait "$child" || code=$?
while [ "$told" ]; do told=; code=0; wait "$child" || code=$?; done
orphans() {{ grep -qszxF "{begun}=$JOB_ID.$SGE_TASK_ID" /proc/[0-9]*/environ; }}
for ((waited = 0; code > 128 && waited < {orphans_s}; waited++)); do orphans || {{ sleep 1; orphans; }} || break; sleep 1; done
case $code in {meant}) code=1 ;; esac
exit "$code"
"""
_ENVIRONMENT: Final = re.compile(r"(?P<name>[\w.+-]+)(?:\s+(?P<slots>[1-9][0-9]{0,5}))?", re.ASCII)


def qsub_options(job: BatchJob) -> tuple[str, ...]:
    """Return the options of qsub, one per line of the script, with the site's directives last and as they are. Raises ConfigError."""
    size = job.size
    if size.qos is not None:
        raise ConfigError(f"qos: {size.qos!r}: Grid Engine has no quality of service; take it out of the site file, or name a queue for it")
    limits = [f"h_rt={size.minutes * 60}", *([f"h_vmem={_memory(job)}M"] if size.memory_mb else [])]
    limits += [f"hostname=!({'|'.join(size.exclude)})"] if size.exclude else []
    options = [
        ("-N", job.name),
        ("-S", "/bin/bash"),
        ("-wd", _path(job.directory)),
        ("-o", f":{_path(job.output).replace(jobs.JOB_ID_PLACEHOLDER, '$JOB_ID')}"),  # before the colon stands a host, here none
        ("-j", "y"),
        ("-r", "y"),
        ("-l", ",".join([*limits, *([size.constraint] if size.constraint else [])])),
        ("-q", size.queue),
        ("-P", size.account),
        ("-ac", None if job.work is None else f"{answers.WORK}={jobs.work_words(job.work)}"),
    ]
    said = [f"{name} {_quoted(name, str(value))}" for name, value in options if value is not None]
    places = [] if job.is_shard else [f"-pe {' '.join(_slots(size))}"]
    verified = ["-w e"] if size.exclude else []  # refused, where too few nodes are left: it would wait for ever
    return (*said, *places, "-V", *verified, "-notify", *(jobs.one_line("directives", line) for line in size.directives))


def batch_script(job: BatchJob) -> str:
    """Build the text of the batch script, which waits for its program: after `exec` nobody would notice USR2."""
    *before, last = jobs.script_lines(job)
    meant = "|".join(map(str, EXITS_WITH_A_MEANING))
    lines = [
        "#!/bin/bash",
        *(f"#$ {option}" for option in qsub_options(job)),
        "",
        f"export {inside_job.STARTED}=$(date +%s) {inside_job.SECONDS}={job.size.minutes * 60}",
        *before,
        ENDING.format(begun=BEGUN, command=last.removeprefix("exec "), orphans_s=answers.ORPHANS_S, meant=meant).rstrip(),
    ]
    return "\n".join(lines) + "\n"


def _slots(size: JobSize) -> tuple[str, str]:
    """Return the parallel environment, and the number of its slots. Raises ConfigError."""
    said = size.parallel_environment
    match = _ENVIRONMENT.fullmatch(said.strip()) if said else None
    if match is None:
        raise ConfigError(
            f"parallel_environment: found {said!r}; Grid Engine gives out nodes by a parallel environment that the site has: "
            "`qconf -spl` lists them, `qconf -sp NAME` shows one. Needed is one with control_slaves TRUE and a fixed number of slots per "
            "node as allocation_rule; valid in the site file: `parallel_environment: NAME SLOTS`, SLOTS of it being one node"
        )
    return match["name"], str(size.nodes * slots_per_node(size))


def slots_per_node(size: JobSize) -> int:
    """Return the number in the site file, else a slot per core."""
    match = _ENVIRONMENT.fullmatch((size.parallel_environment or "").strip())
    return int(match["slots"]) if match is not None and match["slots"] else (size.cores or 1)


def _memory(job: BatchJob) -> int:
    """Return the MB of one slot: Grid Engine counts `h_vmem` per slot."""
    return math.ceil((job.size.memory_mb or 0) / (1 if job.is_shard else slots_per_node(job.size)))


def _path(path: str) -> str:
    """Return a path, which may have blanks and colons. Raises ConfigError for one that Grid Engine would take for another."""
    bad = sorted(set(path) & NOT_IN_PATHS)
    if bad:
        raise ConfigError(
            f"Grid Engine cannot use the path {path!r}: it holds {' and '.join(map(repr, bad))}, which qsub reads as something "
            f"else (none of {' '.join(sorted(NOT_IN_PATHS))} may stand in it); name another `storage` in the "
            "site file, or work in another directory"
        )
    return path


def _quoted(what: str, value: str) -> str:
    """Put a value between quotation marks, for a line that Grid Engine splits at blanks. Raises ConfigError."""
    jobs.one_line(what, value)
    if not set(value) & set(" \t'\""):
        return value
    if '"' in value:
        raise ConfigError(f"{what}: {value!r} holds a quotation mark, which no line for Grid Engine can carry")
    return f'"{value}"'


# Our jobs in Grid Engine's queue: a list, and one query for what the list lacks about the jobs with our names.


ON_SILENT: Final = ("-qs", "u")
"""Options of qstat for the queues of silent nodes.

qstat lists a job by the queue of its first node only. A job that has lost another node ends by itself.
"""
ENDED_TOO: Final = "prsz"
"""States for `qstat -s`: pending, running, suspended, and just ended."""


def our_jobs(patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
    listed = answers.listed_jobs(patience_s, timeout_s)
    ours = [job for job in listed if job.name.startswith(jobs.OUR_NAMES)]
    details = answers.job_details([job.job_id for job in ours], patience_s, timeout_s)
    on_nodes = any(job.stage in ("runs", "ends") for job in ours)
    silent = answers.listed_jobs(patience_s, timeout_s, queues=ON_SILENT) if on_nodes else ()
    return with_lost((answers.with_details(job, details.get(job.job_id, {})) for job in listed), silent)


def with_lost(queued: Iterable[QueuedJob], silent: Iterable[QueuedJob]) -> tuple[QueuedJob, ...]:
    """Mark the jobs whose first node is silent as lost."""
    nodes = {job.job_id: job.nodes for job in silent}
    return tuple(replace(job, lost=nodes.get(job.job_id, job.lost)) for job in queued)


def jobs_named(name: str, patience_s: float) -> tuple[QueuedJob, ...]:
    return tuple(job for job in answers.listed_jobs(patience_s, states=ENDED_TOO) if job.name == name)


def known_jobs(job_ids: Sequence[str], patience_s: float) -> tuple[QueuedJob, ...]:
    """Query the list and the accounting.

    The end of a job appears in the accounting some 15 s late, and never if qmaster was killed meanwhile: callers read the job's exit file
    first.
    """
    listed = {job.job_id: job for job in answers.listed_jobs(patience_s, states=ENDED_TOO) if job.job_id in job_ids}
    records = accounting([job_id for job_id in job_ids if job_id not in listed or listed[job_id].stage == "over"], patience_s)
    told = {job_id: QueuedJob(job_id=job_id, stage="over", state="over", name=one.get("jobname", "")) for job_id, one in records.items()}
    found = (told | listed).values()
    return tuple(replace(job, ended_by=answers.ended_by_of(records.get(job.job_id, {}))) for job in found)


def accounting(job_ids: Sequence[str], patience_s: float) -> dict[str, dict[str, str]]:
    """Query the last record of each job that has one (yet), by one query for all: qacct reads the whole file of the cell each time."""
    if not job_ids:
        return {}
    which = (job_ids[0],) if len(job_ids) == 1 else (f"{jobs.OUR_NAMES}*",)
    answer = answers.ask_about(("qacct", "-o", account_name(), "-j", *which), (*answers.NO_SUCH_JOB, "No such file"), patience_s)
    found = answers.parse_accounting(answer)
    return {job_id: found[job_id] for job_id in job_ids if job_id in found}


# The submission.


SERVER = answers.SGE
script, options = batch_script, qsub_options


def submit(job: BatchJob, patience_s: float) -> str:
    return submit_script(answers.SGE, job.name, batch_script(job), jobs_named, patience_s)


def cancel(job_ids: Sequence[str], patience_s: float) -> None:
    answers.ask_about(("qdel", *job_ids), (*answers.NO_SUCH_JOB, "already in deletion"), patience_s)


def num_nodes_of_job(environ: Mapping[str, str]) -> int | None:
    return len(sge.hosts_of_job(environ)) or None


def end_of_job(environ: Mapping[str, str], patience_s: float) -> float | None:  # noqa: ARG001 - no query
    """Return the end that the batch script has exported: nodes may be no submit hosts, and then nobody answers them."""
    return inside_job.exported_end(environ)
