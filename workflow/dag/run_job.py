"""The batch job of one run, or of one shard: what it asks for, under which names Snakemake hears of that, and what it executes. Pure.

The job runs the shell command of the rule itself, and no Snakemake, which would start twice in it for 3.5 s: the Snakemake that submits
prepares the outputs of a job before it, waits for them and touches them after it, and deletes those of a failed one (its
`Job.prepare` and `Job.postprocess`, which it calls for jobs wherever they run), so in the job nothing is left to do but the command.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from cluster.schedulers.jobs import BatchJob, JobSize, Work, work_name

PLACE: Final = PurePath(".slipway", "jobs")
"""In the directory where Snakemake works: logs of jobs, and their exit codes."""
THREADS: Final = (
    *("OMP_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"),
)
"""As Snakemake tells a command of one thread, which these are: a run decides for its programs."""


def run_job(work: Work, size: JobSize, command: str, directory: str, token: str, umask: int = 0o077) -> BatchJob:
    """`command`: of the rule, for bash. `directory`: where Snakemake works, which jobs see too. `token`: 8 hex digits."""
    name = work_name(work, token)
    return BatchJob(
        name=name,
        size=size,
        work=work,
        environ=tuple((variable, "1") for variable in THREADS),
        output=str(PurePath(directory, PLACE, f"{name}.log")),
        directory=directory,
        argv=(sys.executable, "-P", "-m", "cluster.exit_file", str(exit_file(directory, name)), command),
        setup=(f"umask {umask:04o}",),
    )


def exit_file(directory: str, name: str) -> PurePath:
    """Where the job of that name, submitted in `directory`, leaves its exit code."""
    return PurePath(directory, PLACE, f"{name}.exit")


def resources_of(size: JobSize) -> dict[str, Any]:
    """What a job asks for, as resources of its rule: numbers and words. None: not asked for."""
    return {
        "nodes": size.nodes,
        "runtime": size.minutes,
        "cores": size.cores,
        "memory_mb": size.memory_mb,
        "gpus": size.gpus,
        "whole_nodes": int(size.whole_nodes),
        "queue": size.queue,
        "account": size.account,
        "qos": size.qos,
        "constraint": size.constraint,
        "parallel_environment": size.parallel_environment,
        "directives": shlex.join(size.directives) or None,
    }


def size_of(resources: Mapping[str, Any]) -> JobSize:
    """The reverse, of the resources of a job, which the user may have changed by --set-resources. Raises ValueError."""
    return JobSize(
        nodes=_number(resources, "nodes") or 1,
        minutes=_number(resources, "runtime") or 1,
        whole_nodes=bool(_number(resources, "whole_nodes")),
        directives=tuple(shlex.split(str(resources.get("directives") or ""))),
        cores=_number(resources, "cores"),
        memory_mb=_number(resources, "memory_mb"),
        gpus=_number(resources, "gpus"),
        queue=_word(resources, "queue"),
        account=_word(resources, "account"),
        qos=_word(resources, "qos"),
        constraint=_word(resources, "constraint"),
        parallel_environment=_word(resources, "parallel_environment"),
    )


def _word(resources: Mapping[str, Any], name: str) -> str | None:
    return str(resources[name]) if resources.get(name) else None


def _number(resources: Mapping[str, Any], name: str) -> int | None:
    value = resources.get(name)
    if value is None or isinstance(value, int):
        return value
    raise ValueError(f"the resource {name} must be a whole number, found {value!r}")
