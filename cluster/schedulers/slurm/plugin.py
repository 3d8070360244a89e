"""What Snakemake's slurm plugin reads, and what it makes of that: the resources of a job, and its sbatch command."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, Final

from base.errors import SchedulerOutputError
from cluster.schedulers.jobs import RUN, JobSize, RunJob

DEFAULT_QUEUE: Final = "<default>"
LOG: Final = f".slipway/slurm-logs/rule_{RUN}/{{run}}/%j.log"
"""As profiles/slurm says, in the directory where Snakemake works."""
OWNED: Final = {
    "nodes": r"--nodes\b|-N\b",
    "tasks": r"--ntasks(-per-gpu)?(=|\s|$)|-n\b",
    "cores": r"--cpus-per-(task|gpu)\b|-c\b",
    "walltime": r"--time(=|\s|$)|-t\b",
    "memory": r"--mem(-per-cpu)?(=|\s|$)",
    "GPUs": r"--gres\b|--gpus(=|\s|$)|-G\b",
    "queue": r"--partition\b|-p\b",
    "account": r"--account\b|-A\b",
    "qos": r"--qos\b|-q\b",
    "constraint": r"--constraint\b|-C\b",
    "name": r"--job-name\b|-J\b",
    "output": r"--(output|error|open-mode|parsable|wrap)\b|-[oe]\b",
    "environment": r"--export(=|\s|$)|--comment\b|--(chdir|workdir)\b|-D\b",
    "cluster": r"--clusters?\b|-M\b",
    "array": r"--array\b|-a\b",
}
"""Options of sbatch that are set from the study, from another key of the site file, or by us."""


class AllMemory(int):
    """`--mem=0`, all memory of the node, as the plugin must be told it: it leaves out a memory that is false, and refuses text."""

    def __bool__(self) -> bool:
        return True


class Resources(dict[str, Any]):
    """As Snakemake hands them to its plugin: what is not set is not there, and each is an attribute too."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def resources(size: JobSize) -> dict[str, Any]:
    """`mpi` makes Snakemake run on the first node of several, outside of any step; one node has no such way."""
    several = size.nodes > 1
    return {
        "nodes": size.nodes,
        "gres": None if size.gpus is None else f"gpu:{size.gpus}",
        "mpi": "srun" if several else None,
        "tasks": size.nodes if several else None,
        "tasks_per_gpu": 0 if several and size.gpus else None,
        "cpus_per_task": size.cores or -1,
        "mem_mb": AllMemory(0) if size.memory_mb == 0 else size.memory_mb,
        "runtime": size.minutes,
        "slurm_partition": size.queue,
        "slurm_account": size.account,
        "qos": size.qos,
        "constraint": size.constraint,
        "slurm_extra": shlex.join(_other_options(size)),
    }


def run_words(job: RunJob) -> str:
    """The sbatch command of a run, as the plugin makes it; what is decided at the start stands in <>."""
    call = " ".join(shlex.quote(word) for word in _plugin_argv(job))
    return f"{call} --wrap='<snakemake of this run>'"


def submission_argv(job: RunJob) -> list[str]:
    """As the plugin would submit it, but for a queue that nobody has chosen."""
    argv = shlex.split(run_words(job))
    if DEFAULT_QUEUE in argv:
        place = argv.index(DEFAULT_QUEUE)
        del argv[place - 1 : place + 1]
    return argv


def owned_by_us(directive: str) -> str | None:
    """What of OWNED a directive sets; None if nothing."""
    return next((what for what, pattern in OWNED.items() if re.search(rf"(^|\s)({pattern})", directive)), None)


def _plugin_argv(job: RunJob) -> list[str]:
    """By the plugin's own code, which asks scontrol when it is imported. Raises SchedulerOutputError for an answer that it cannot take."""
    try:
        from snakemake_executor_plugin_slurm.submit_string import get_submit_command
        from snakemake_executor_plugin_slurm.utils import set_gres_string
    except (OSError, UnicodeError) as error:
        raise SchedulerOutputError(f"Snakemake's slurm plugin cannot take what `scontrol show config` answers: {error}") from error

    size = job.size
    asked = Resources({name: value for name, value in resources(size).items() if value is not None})
    told = SimpleNamespace(resources=asked, threads=1, is_group=lambda: False)
    params = {
        "run_uuid": "<uuid>",
        "slurm_logfile": str(PurePath(job.directory, LOG.format(run=job.run_id))),
        "comment_str": f"rule_{RUN}_wildcards_{job.run_id}",
        "account": f"-A {shlex.quote(size.account)}" if size.account else "",
        "partition": f"-p {shlex.quote(size.queue or DEFAULT_QUEUE)}",
        "workdir": job.directory,
    }
    settings = SimpleNamespace(requeue=True, no_requeue=False, qos=None, reservation=None)
    return shlex.split(get_submit_command(told, params, settings) + set_gres_string(told))


def _other_options(size: JobSize) -> list[str]:
    """A requeued job goes on in its log, and the site's own directives come last."""
    options = ["--exclusive"] if size.whole_nodes else []
    return [*options, "--open-mode=append", *(word for line in size.directives for word in shlex.split(line))]
