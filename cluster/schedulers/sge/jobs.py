"""What commands ask of Grid Engine's jobs: the functions of the Protocol `Jobs`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final

from base.account import account_name
from base.command import CommandResult, describe
from base.errors import ConfigError, SchedulerOutputError, SchedulerSilent, SubmitError, SubmitUnsure
from base.names import choices
from cluster.schedulers.jobs import (
    JOB_ID_PLACEHOLDER,
    OUR_NAMES,
    SHARD,
    BatchJob,
    JobSize,
    QueuedJob,
    one_line,
    parse_work,
    script_lines,
    work_words,
)
from cluster.schedulers.queries import (
    ANSWER_S,
    QUICK_ANSWER_S,
    SUBMIT_S,
    ask,
    asked,
    carried,
    carried_names,
    in_english,
    last_words,
    one_try,
    refusal_words,
)
from cluster.schedulers.sge import job_end as job_environ
from cluster.schedulers.sge.answers import (
    NO_SUCH_JOB,
    SGE,
    Listed,
    context_of,
    ended_by_of,
    job_details,
    listed_jobs,
    parse_accounting,
    parse_settings,
    submitted_of,
    why_waiting,
)
from cluster.schedulers.sge.job_end import BEGUN, ORPHANS_S, SECONDS, STARTED
from cluster.schedulers.submission import Words, by_name, submit_once

# The batch script of a job, for one run or for a whole study. Pure: `slipway submit --print` shows it as it would be sent.
#
# `qdel` and `h_rt` kill without a warning. With `-notify` all processes of the job, on every node, get USR2 before: a minute where the
# queue says nothing else. All inherit that they ignore it, but the supervisor, which ends its run, and this script, which tells its
# program to end as any other scheduler does.
#
# When the script ends, all processes of the job are killed, on every node and without a warning. So where its program was killed, such as
# a Snakemake by who frees memory, it waits for those whom that one started: a supervisor hears the end of its parent, and ends its run. It
# looks twice, a second apart, before it believes that none is left: a process that is just becoming another program (execve) shows no
# environment for that moment.


WORK: Final = "work"
"""The name of the word in a job's context that says what it makes."""
EXITS_WITH_A_MEANING: Final = (99, 100)
"""Of a batch script: Grid Engine puts the job back into the queue, or into an error state."""
NOT_IN_PATHS: Final = frozenset("$,'\"#")
"""Of a working directory or log: qsub reads variables, a second path, quotations or a comment; the job is
refused, or never starts."""
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
OWNED: Mapping[str, str] = {
    "walltime": r"-l\s+(\S*,)?[hs]_rt=",
    "parallel environment (the key parallel_environment)": r"-pe\b",
    "name of the job": r"-N\b",
    "queue": r"-q\b",
    "account": r"-P\b",
    "output": r"-[oje]\b",
    "number of tasks": r"-t\b",
    "waiting (slipway submit --wait)": r"-sync\b",
    "warning before the end": r"-notify\b",
    "restart": r"-r\b",
    "context": r"-ac\b",
    "shell": r"-S\b",
    "environment": r"-V\b",
    "answer of qsub": r"-terse\b",
}


def qsub_options(job: BatchJob) -> tuple[str, ...]:
    """The options of qsub, one per line of the script, the site's directives last and as they are. Raises ConfigError."""
    size = job.size
    if size.qos is not None:
        raise ConfigError(f"qos: {size.qos!r}: Grid Engine has no quality of service; take it out of the site file, or name a queue for it")
    limits = [f"h_rt={size.minutes * 60}", *([f"h_vmem={_memory(job)}M"] if size.memory_mb else [])]
    limits += [f"hostname=!({'|'.join(size.exclude)})"] if size.exclude else []
    options = [
        ("-N", job.name),
        ("-S", "/bin/bash"),
        ("-wd", _path(job.directory)),
        ("-o", f":{_path(job.output).replace(JOB_ID_PLACEHOLDER, '$JOB_ID')}"),  # what stands before the colon, here nothing, is a host
        ("-j", "y"),
        ("-r", "y"),
        ("-l", ",".join([*limits, *([size.constraint] if size.constraint else [])])),
        ("-q", size.queue),
        ("-P", size.account),
        ("-ac", None if job.work is None else f"{WORK}={work_words(job.work)}"),
        ("-v", None if job.export is None else ",".join(job.export) or None),
    ]
    said = [f"{name} {_quoted(name, str(value))}" for name, value in options if value is not None]
    places = [] if _is_alone(job) else [f"-pe {' '.join(_slots(size))}"]
    every = ["-V"] if job.export is None else []
    verified = ["-w e"] if size.exclude else []  # refused, where too few nodes are left: it would wait for ever
    return (*said, *places, *every, *verified, "-notify", *(one_line("directives", line) for line in size.directives))


def batch_script(job: BatchJob) -> str:
    """The script. Its program is no child of nobody: the script waits for it, since `exec` would leave nobody who hears USR2."""
    *before, last = script_lines(job)
    meant = "|".join(map(str, EXITS_WITH_A_MEANING))
    lines = [
        "#!/bin/bash",
        *(f"#$ {option}" for option in qsub_options(job)),
        "",
        f"export {STARTED}=$(date +%s) {SECONDS}={job.size.minutes * 60}",
        *before,
        ENDING.format(begun=BEGUN, command=last.removeprefix("exec "), orphans_s=ORPHANS_S, meant=meant).rstrip(),
    ]
    return "\n".join(lines) + "\n"


def exported_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names for `-v`, whose list ends at a comma or a blank in no name."""
    return carried_names(environ)


def _is_alone(job: BatchJob) -> bool:
    """Whether it needs one slot of any node, and starts nothing on others."""
    return job.work is not None and job.work.rule == SHARD


def _slots(size: JobSize) -> tuple[str, str]:
    """The parallel environment, and how many slots of it are asked. Raises ConfigError."""
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
    """As the site says it, else a slot per core."""
    match = _ENVIRONMENT.fullmatch((size.parallel_environment or "").strip())
    return int(match["slots"]) if match is not None and match["slots"] else (size.cores or 1)


def _memory(job: BatchJob) -> int:
    """MB of one slot: Grid Engine counts `h_vmem` per slot."""
    return math.ceil((job.size.memory_mb or 0) / (1 if _is_alone(job) else slots_per_node(job.size)))


def _path(path: str) -> str:
    """Raises ConfigError for one that Grid Engine would take for another, or for several; blanks and colons it can have."""
    bad = sorted(set(path) & NOT_IN_PATHS)
    if bad:
        raise ConfigError(
            f"Grid Engine cannot use the path {path!r}: it holds {' and '.join(map(repr, bad))}, which qsub reads as something "
            f"else (none of {' '.join(sorted(NOT_IN_PATHS))} may stand in it); name another `storage` in the "
            "site file, or work in another directory"
        )
    return path


def _quoted(what: str, value: str) -> str:
    """For a line of the script, which Grid Engine splits at blanks. Raises ConfigError."""
    one_line(what, value)
    if not set(value) & set(" \t'\""):
        return value
    if '"' in value:
        raise ConfigError(f"{what}: {value!r} holds a quotation mark, which no line for Grid Engine can carry")
    return f'"{value}"'


# Our jobs in Grid Engine's queue: a list, and one question for what the list does not say of those that are ours by their names.


ON_SILENT: Final = ("-qs", "u")
"""Of qstat: queues on nodes of which qmaster does not hear. It lists a job by the queue of its first node only; of a job that has lost
another one it hears the end."""
ENDED_TOO: Final = "prsz"
"""Of `qstat -s`: pending, running, suspended, and those that have just ended."""


def our_jobs(patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
    """All of this user that are not over, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    listed = listed_jobs(patience_s, timeout_s)
    ours = [job for job in listed if job.name.startswith(OUR_NAMES)]
    details = job_details([job.job_id for job in ours], patience_s, timeout_s)
    on_nodes = any(job.stage in ("runs", "ends") for job in ours)
    silent = listed_jobs(patience_s, timeout_s, queues=ON_SILENT) if on_nodes else ()
    return with_lost(joined(listed, details), silent)


def with_lost(jobs: Iterable[QueuedJob], silent: Iterable[Listed]) -> tuple[QueuedJob, ...]:
    """Pure. `silent`: jobs whose first node does not answer; a waiting one has none."""
    nodes = {job.job_id: job.host for job in silent}
    return tuple(replace(job, lost=nodes.get(job.job_id, job.lost)) for job in jobs)


def jobs_named(name: str, patience_s: float) -> tuple[QueuedJob, ...]:
    """Ours of exactly that name, in any stage that qstat still shows, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    return joined((job for job in listed_jobs(patience_s, states=ENDED_TOO) if job.name == name), {})


def known_jobs(job_ids: Sequence[str], patience_s: float) -> tuple[QueuedJob, ...]:
    """Those of them that are still known. How one has ended stands in the accounting, some 15 s late, and not at all where qmaster was
    killed meanwhile: who waits for a job goes by its exit file first. Raises SchedulerSilent, SchedulerOutputError."""
    wanted = set(job_ids)
    listed = [job for job in listed_jobs(patience_s, states=ENDED_TOO) if job.job_id in wanted]
    in_queue = {job.job_id for job in listed if job.stage != "over"}
    records = accounting([job_id for job_id in job_ids if job_id not in in_queue], patience_s)
    known = {job.job_id for job in listed}
    told = [Listed(job_id=job_id, name=record.get("jobname", ""), letters="z", slots=1) for job_id, record in records.items()]
    return joined([*listed, *(job for job in told if job.job_id not in known)], {}, records)


def accounting(job_ids: Sequence[str], patience_s: float) -> dict[str, dict[str, str]]:
    """The last record of each that has one (yet): by one question for all of ours by their names, since qacct reads the whole file of the
    cell for every question; of one job, for that one. Raises SchedulerSilent, SchedulerOutputError."""
    if not job_ids:
        return {}
    which = (job_ids[0],) if len(job_ids) == 1 else (f"{OUR_NAMES}*",)
    result = asked(SGE, ("qacct", "-o", account_name(), "-j", *which), patience_s, ANSWER_S)
    if result.returncode and not any(words in result.stderr for words in (*NO_SUCH_JOB, "No such file")):
        raise SchedulerOutputError(refusal_words(SGE, result))
    found = {} if result.returncode else parse_accounting(result.stdout)
    return {job_id: found[job_id] for job_id in job_ids if job_id in found}


def joined(
    listed: Iterable[Listed], details: Mapping[str, Mapping[str, str]], records: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[QueuedJob, ...]:
    """Pure: jobs of the list with what else is known of them."""
    return tuple(_queued(job, details.get(job.job_id, {}), (records or {}).get(job.job_id, {})) for job in listed)


def _queued(job: Listed, fields: Mapping[str, str], record: Mapping[str, str]) -> QueuedJob:
    work = parse_work(context_of(fields, WORK))
    return QueuedJob(
        job_id=job.job_id,
        stage=job.stage,
        state=job.words,
        why=why_waiting(job, fields) if job.stage == "waits" else "",
        hold=job.hold,
        ended_by=ended_by_of(record) if job.stage == "over" else None,
        restarts=int("R" in job.letters),
        submitted=job.submitted if job.submitted is not None else submitted_of(fields),
        expected=job.started,
        name=job.name,
        nodes=job.host,
        lost=job.host if job.starts_again else "",
        directory=fields.get("cwd", ""),
        **({} if work is None else asdict(work)),
    )


# Hand a job to Grid Engine once, however qsub is answered: see cluster/schedulers/submission.py.


QSUB: Final = ("qsub", "-terse")
CELL: Final = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT", "SGE_CLUSTER_NAME")
"""What the commands need to find their cell."""


def submit(job: BatchJob, patience_s: float) -> str:
    """The id that `job` has got. Its name is found in the queue where qsub did not say it. Raises SubmitError."""
    script = batch_script(job)
    words = Words(command="qsub", server="sge_qmaster", look="qstat", end="qdel", job=f"qsub -N {job.name}")
    attempt = partial(one_try, SGE, QSUB, SUBMIT_S, script, SubmitError, submitting_environ())
    return submit_once(attempt, by_name(jobs_named, job.name), parse_job_id, patience_s, words)


def submitting_environ() -> dict[str, str]:
    """Of our environment what a job inherits, and what qsub needs."""
    return in_english({**carried(os.environ), **{name: os.environ[name] for name in CELL if name in os.environ}})


def parse_job_id(result: CommandResult) -> str:
    """Pure: of `qsub -terse`. Raises SubmitError for a refusal, and for an answer without an id."""
    if result.returncode:
        raise SubmitError(f"Grid Engine refused the job: {last_words(SGE, result)}\n{describe(result)}")
    match = re.fullmatch(r"(\d+)(\.\S+)?", result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "")
    if match is None:
        raise SubmitUnsure(f"qsub ended well and named no job: {result.stdout[-400:]!r}; {describe(result)}")
    return match[1]


def never_starts(size: JobSize) -> str | None:
    """Why such a job never starts here: its parallel environment is none, or gives other nodes than asked. Raises SchedulerSilent."""
    name = (size.parallel_environment or "").split(None, 1)[:1]
    if not name:
        return None
    try:
        names = ask(SGE, ("qconf", "-spl"), 0.0, QUICK_ANSWER_S).split()
        if name[0] not in names:
            return f"parallel_environment: {name[0]!r} is none of this cell; {choices(name[0], names)}"
        return environment_problem(name[0], parse_settings(ask(SGE, ("qconf", "-sp", name[0]), 0.0, QUICK_ANSWER_S)), size)
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None


def environment_problem(name: str, settings: dict[str, str], size: JobSize) -> str | None:
    """Pure: why a job of that size cannot use a parallel environment; None if it can."""
    if settings.get("control_slaves", "").upper() != "TRUE":
        return (
            f"parallel_environment: {name!r} has control_slaves FALSE: no programs can be started on its nodes; name another (qconf -spl)"
        )
    rule, slots = settings.get("allocation_rule", ""), slots_per_node(size)
    if rule.isdecimal() and int(rule) != slots:
        return (
            f"parallel_environment: {name!r} gives {rule} slots of each node (allocation_rule), and {slots} were asked as one node: "
            f"`parallel_environment: {name} {rule}` in the site file"
        )
    if rule == "$pe_slots" and size.nodes > 1:
        return f"parallel_environment: {name!r} gives slots of one node only (allocation_rule $pe_slots), and {size.nodes} nodes were asked"
    return None


TITLE = "Grid Engine"
SERVER = "Grid Engine's qmaster"
SUBMIT = "qsub"
LIST = "qstat"
SHOW = "qstat -j"
CANCEL = "qdel"
ENTER = ""
script, options, inherited = batch_script, qsub_options, exported_names


def cancel(job_ids: Sequence[str], patience_s: float) -> None:
    """One qdel for all. Raises SchedulerSilent, SchedulerOutputError."""
    result = asked(SGE, ("qdel", *job_ids), patience_s, ANSWER_S)
    words = f"{result.stdout}\n{result.stderr}"
    if result.returncode and not any(known in words for known in (*NO_SUCH_JOB, "already in deletion")):
        raise SchedulerOutputError(refusal_words(SGE, result))


def forget(job_ids: Sequence[str], patience_s: float) -> None:
    """Delete jobs whose node does not answer, for which qdel alone waits: a job that is being deleted and is put back into the queue by
    force is gone at once, and its owner may do that. Raises SchedulerSilent, SchedulerOutputError."""
    cancel(job_ids, patience_s)
    result = asked(SGE, ("qmod", "-f", "-rj", *job_ids), patience_s, ANSWER_S)
    if result.returncode and "invalid queue or job" not in f"{result.stdout}\n{result.stderr}":
        raise SchedulerOutputError(refusal_words(SGE, result))


def num_nodes_of_job(environ: Mapping[str, str]) -> int | None:
    """By the file of the job's hosts."""
    return len(job_environ.hosts_of_job(environ)) or None


def end_of_job(environ: Mapping[str, str], patience_s: float) -> float | None:  # noqa: ARG001 - nobody is asked
    """By what the batch script has told: nodes may be no submit hosts, and then nobody answers them."""
    return job_environ.end_of_job(environ)
