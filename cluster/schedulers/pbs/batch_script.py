"""The batch script of a job, for one run or for a whole study. Pure: `slipway submit --print` shows it as it would be sent.

Its log is written by the script itself: PBS would keep it on the first node until the job ends, and its paths cannot hold the job's id. The
variables of the submitting shell stand in the script, which only we and PBS can read: those of `qsub -v` are shown to everybody by
`qstat -f`, and OpenPBS changes quotes and backslashes in them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from base.errors import ConfigError
from cluster.schedulers.carried import carried
from cluster.schedulers.jobs import JOB_ID, BatchJob, script_lines, work_words
from cluster.schedulers.pbs.answers import WORK

OWNED: Final = {
    "nodes": r"select\b|nodes\b|nodect\b|ncpus\b|mpiprocs\b|ngpus\b|mem\b|place\b",
    "walltime": r"walltime\b",
}
"""Resources that are set from the study, from another key of the site file, or by us."""
OWNED_OPTIONS: Final = {
    "name": "-N",
    "queue": "-q",
    "account": "-A",
    "output": "-o|-e|-j|-k|-R",
    "environment": "-v|-V|-S",
    "array": "-J",
    "rerun": "-r",
    "directive": "-C|-z|-I|-X",
}
NOT_CARRIED: Final = re.compile(r"PBS_|SLURM_|SBATCH_|TMPDIR$")
"""PBS sets its own in each job."""


def qsub_options(job: BatchJob, hosts: Sequence[str] = ()) -> tuple[str, ...]:
    """The options of qsub, one per line of the script, the site's directives last and as they are. `hosts`: the nodes that it is to get, as
    PBS cannot be told which ones it is not to get. Raises ConfigError."""
    size = job.size
    if size.qos is not None:
        raise ConfigError(f"qos: {size.qos!r} in the site file: PBS has none; use its queues, or `directives`")
    chunk = [
        ("ncpus", size.cores),
        ("mem", f"{size.memory_mb}mb" if size.memory_mb else None),
        ("ngpus", size.gpus),
        ("mpiprocs", 1),
    ]
    each = [*(f"{name}={value}" for name, value in chunk if value is not None), *_words(size.constraint)]
    _one_word("constraint", ":".join(each))
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
        ("-v", None if job.work is None else f"{WORK}={work_words(job.work)}"),
        ("-v", ",".join(job.export) if job.export else None),
    ]
    if job.work is not None and job.export:
        raise ConfigError("a job for one run is submitted by Slipway alone")
    options = [f"{option} {shlex.quote(_one_line(option, value))}" for option, value in said if value is not None]
    return (*options, *(_one_line("directives", line) for line in size.directives))


def batch_script(job: BatchJob, environ: Mapping[str, str] | None = None, hosts: Sequence[str] = ()) -> str:
    """The script. `environ`: of the submitting process, where the job inherits what `carried` lets through; `hosts`: see qsub_options."""
    directory, _, name = job.output.rpartition("/")
    log = "".join(f'"$PBS_JOBID"{shlex.quote(part)}' if place else shlex.quote(part) for place, part in enumerate(name.split(JOB_ID)))
    lines = [
        "#!/bin/bash",
        *(f"#PBS {option}" for option in qsub_options(job, hosts)),
        "",
        f"exec >>{shlex.quote(f'{directory}/')}{log} 2>&1",
        *(f"export {name}={shlex.quote(value)}" for name, value in sorted(taken_along(environ or {}).items())),
        *script_lines(job),
    ]
    return "\n".join(lines) + "\n"


def taken_along(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: of `environ`, what a job inherits. Functions come from the login shell that PBS starts for a job."""
    return {name: value for name, value in carried(environ).items() if name.isidentifier() and not NOT_CARRIED.match(name)}


def inherited(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Pure: the same as names for `qsub -v`, for a script that is submitted by hand: those whose values OpenPBS leaves as they are."""
    return tuple(sorted(name for name, value in taken_along(environ).items() if not set(value) & set("\"'\\,\n")))


def owned_by_us(directive: str) -> str | None:
    """What of OWNED a directive sets; None if nothing."""
    for what, pattern in OWNED.items():
        if re.search(rf"(^|\s)-l\s*(\S*,)?({pattern})", directive):
            return what
    return next((what for what, options in OWNED_OPTIONS.items() if re.search(rf"(^|\s)({options})", directive)), None)


def clock(minutes: int) -> str:
    """`26:03:00`: PBS knows no days."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _words(constraint: str | None) -> list[str]:
    return [constraint] if constraint else []


def _one_word(what: str, value: str) -> str:
    if re.search(r"[\s+]", value):
        raise ConfigError(
            f"{what}: {value!r} of `qsub -l select` holds a space or a plus; valid: resources of one chunk, such as `gpu_model=a100`"
        )
    return value


def _one_line(what: str, value: str) -> str:
    if set(value) & set("\n\r\0"):
        raise ConfigError(f"{what}: {value!r} holds the end of a line, which would begin another line of the batch script")
    return value
