"""The batch script of a job, for one run or for a whole study. Pure: `slipway submit --print` shows it as it would be sent.

Its log is written by the script itself: LSF would keep it on the first node until the job ends, and put a report around it. In that log the
script counts its starts, which LSF tells no job. At the run limit LSF sends USR2 to all processes: they ignore it, but for the supervisor.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

from base.errors import ConfigError
from cluster.schedulers.jobs import JOB_ID, SHARD, BatchJob, JobSize, script_lines, work_words
from cluster.schedulers.lsf.environ import SECONDS, STARTED, STARTS

LONGEST_NAME: Final = 500
"""Characters of a job's name: OpenLava cuts it at 511."""
_OWNED: Final = {
    "-n": "number of slots",
    "-J": "name of the job",
    "-Jd": "name of the job",
    "-W": "walltime",
    "-q": "queue",
    "-P": "account",
    "-o": "output",
    "-oo": "output",
    "-e": "output",
    "-eo": "output",
    "-cwd": "directory",
    "-r": "restart",
    "-rn": "restart",
    "-x": "exclusive use of nodes (the key share_nodes)",
    "-gpu": "GPUs",
    "-K": "waiting (slipway submit --wait)",
    "-I": "batch job",
    "-Is": "batch job",
    "-Ip": "batch job",
    "-Zs": "script",
    "-env": "environment",
}


def bsub_options(job: BatchJob) -> tuple[str, ...]:
    """The options of bsub, one per line of the script, the site's directives last and as they are. Raises ConfigError."""
    size = job.size
    if size.qos is not None:
        raise ConfigError(
            f"qos: {size.qos!r} in the site file: LSF has none; for a service class `directives: ['-sla NAME']`, else its queues"
        )
    slots = slots_per_node(size)
    name = job.name if job.work is None else f"{job.name} {work_words(job.work)}"
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
    alone = ["-x"] if size.whole_nodes and not _is_shard(job) else []
    return (*said, *alone, "-r", *(_one_line("directives", line) for line in size.directives))


def resources(job: BatchJob, slots: int) -> str:
    """The resource requirement: so many slots of each node, which of them, and memory in LSF's unit, MB where the site has no other."""
    size = job.size
    chosen = [*([size.constraint] if size.constraint else []), *(f"hname!='{name}'" for name in size.exclude)]
    parts = [f"select[{' && '.join(chosen)}]"] if chosen else []
    parts += [f"rusage[mem={size.memory_mb}]"] if size.memory_mb else []
    return " ".join([*parts, f"span[ptile={slots}]"])


def batch_script(job: BatchJob) -> str:
    """The script; it ends in `exec`, so that signals reach the program."""
    place = '"$LSB_JOBID"'.join(shlex.quote(part) if part else "" for part in job.output.split(JOB_ID))
    lines = [
        "#!/bin/bash",
        *(f"#BSUB {option}" for option in bsub_options(job)),
        "",
        f"log={place}",
        f'export {STARTS}=$(grep -c "^slipway: job $LSB_JOBID starts" "$log" 2>/dev/null)',
        'exec >>"$log" 2>&1',
        'echo "slipway: job $LSB_JOBID starts on ${LSB_MCPU_HOSTS:-its nodes}"',
        f"export {STARTED}=$(date +%s) {SECONDS}={job.size.minutes * 60}",
        "trap '' USR2",
        *script_lines(job),
    ]
    return "\n".join(lines) + "\n"


def owned_by_us(directive: str) -> str | None:
    """What a directive of the site sets although Slipway does; None if nothing."""
    words = directive.split()
    if "-R" in words and re.search(r"span\[", directive):
        return "number of slots per node"
    return next((_OWNED[word] for word in words if word in _OWNED), None)


def slots_per_node(size: JobSize) -> int:
    """One for each core that a run has of a node."""
    return size.cores or 1


def _is_shard(job: BatchJob) -> bool:
    return job.work is not None and job.work.rule == SHARD


def _quoted(what: str, value: str) -> str:
    """For a line of the script, which bsub splits as a shell does. Raises ConfigError."""
    _one_line(what, value)
    if re.fullmatch(r"[\w@%+=:,./-]+", value, re.ASCII):
        return value
    if set(value) & set('"\\`$'):
        raise ConfigError(f'{what}: {value!r} holds one of the characters " \\ ` $, which no line for LSF can carry')
    return f'"{value}"'


def _one_line(what: str, value: str) -> str:
    if set(value) & set("\n\r\0"):
        raise ConfigError(f"{what}: {value!r} holds the end of a line, which would begin another line of the batch script")
    return value
