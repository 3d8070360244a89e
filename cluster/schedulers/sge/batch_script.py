"""The batch script of a job, for one run or for a whole study. Pure: `slipway submit --print` shows it as it would be sent.

`qdel` and `h_rt` kill without a warning. With `-notify` all processes of the job, on every node, get USR2 before: a minute where the queue
says nothing else. All inherit that they ignore it, but the supervisor, which ends its run, and this script, which tells its program to end
as any other scheduler does.

When the script ends, all processes of the job are killed, on every node and without a warning. So where its program was killed, such as a
Snakemake by who frees memory, it waits for those whom that one started: a supervisor hears the end of its parent, and ends its run.
It looks twice, a second apart, before it believes that none is left: a process that is just becoming another program (execve) shows no
environment for that moment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from base.errors import ConfigError
from cluster.schedulers.carried import carried_names
from cluster.schedulers.jobs import JOB_ID, SHARD, BatchJob, JobSize, script_lines, work_words
from cluster.schedulers.sge.environ import BEGUN, SECONDS, STARTED
from cluster.schedulers.sge.limits import ORPHANS_S

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
_OWNED: Final = {
    "-pe": "parallel environment (the key parallel_environment)",
    "-N": "name of the job",
    "-q": "queue",
    "-P": "account",
    "-o": "output",
    "-j": "output",
    "-e": "output",
    "-t": "number of tasks",
    "-sync": "waiting (slipway submit --wait)",
    "-notify": "warning before the end",
    "-r": "restart",
    "-ac": "context",
    "-S": "shell",
    "-V": "environment",
    "-terse": "answer of qsub",
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
        ("-o", f":{_path(job.output).replace(JOB_ID, '$JOB_ID')}"),  # what stands before the colon, here nothing, is a host
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
    return (*said, *places, *every, *verified, "-notify", *(_one_line("directives", line) for line in size.directives))


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


def owned_by_us(directive: str) -> str | None:
    """What a directive of the site sets although Slipway does; None if nothing."""
    words = directive.split()
    if "-l" in words[:-1] and re.search(r"(^|,)(h_rt|s_rt)=", words[words.index("-l") + 1]):
        return "walltime"
    return next((_OWNED[word] for word in words if word in _OWNED), None)


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
    _one_line(what, value)
    if not set(value) & set(" \t'\""):
        return value
    if '"' in value:
        raise ConfigError(f"{what}: {value!r} holds a quotation mark, which no line for Grid Engine can carry")
    return f'"{value}"'


def _one_line(what: str, value: str) -> str:
    if set(value) & set("\n\r\0"):
        raise ConfigError(f"{what}: {value!r} holds the end of a line, which would begin another line of the batch script")
    return value
