"""What the job of one run asks of Slurm, as resources under the names that Snakemake's slurm plugin reads. Pure. None: not asked for."""

from __future__ import annotations

import math
import re
import shlex
from typing import Any, Final

from base.errors import ConfigError
from workflow.study.cell import Cell
from workflow.study.site import Site

START_S: Final = 60.0
"""Between the start of a job and that of its run: Snakemake starts twice in it."""
SHARD_MINUTES: Final = 240
SHARD_MEM_MB: Final = 2000
MIB: Final = 1 << 20
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


def job_minutes(limit_s: float, site: Site) -> int:
    """Whole minutes of the job of a run that may take `limit_s`: the run's clock ends it first, with time to push; at most the site's."""
    wanted = limit_s + site.deadline_margin_s + START_S
    return math.ceil(min(wanted, site.walltime_s or math.inf) / 60)


def node_share(cell: Cell, site: Site) -> tuple[int | None, int | None]:
    """Cores and MB of each node. None: what the node has, or what the scheduler gives; 0 MB: all of the node's."""
    if not site.share_nodes:
        return site.cpus_per_node, 0
    threads = cell.threads if isinstance(cell.threads, int) else 1
    cores, memory = cell.gpus_per_node * threads, None
    if site.gpus_per_node:
        part = min(1.0, cell.gpus_per_node / site.gpus_per_node)
        cores = max(cores, int((site.cpus_per_node or 0) * part))
        memory = int(site.memory_per_node_bytes * part) // MIB if site.memory_per_node_bytes else None
    return cores, memory


def gres_of(cell: Cell, site: Site) -> str | None:
    """GPUs of each node, where the site says that its nodes have some."""
    return f"gpu:{cell.gpus_per_node}" if site.gpus_per_node else None


def run_resources(cell: Cell, site: Site, limit_s: float) -> dict[str, Any]:
    """Of the job of a run. `mpi` makes Snakemake run on the first node of several, outside of any step; one node has no such way."""
    cores, memory = node_share(cell, site)
    several = cell.nodes > 1
    gres = gres_of(cell, site)
    return {
        "nodes": cell.nodes,
        "gres": gres,
        "mpi": "srun" if several else None,
        "tasks": cell.nodes if several else None,
        "tasks_per_gpu": 0 if several and gres else None,
        "cpus_per_task": cores or -1,
        "mem_mb": memory,
        "runtime": job_minutes(limit_s, site),
        **queue_resources(site),
        "slurm_extra": shlex.join(extra_options(site, whole_nodes=not site.share_nodes)),
    }


def shard_resources(site: Site) -> dict[str, Any]:
    """Of the job that builds one shard: a core of some node, shared with others."""
    limit = SHARD_MINUTES if site.walltime_s is None else min(SHARD_MINUTES, math.ceil(site.walltime_s / 60))
    return {
        "nodes": 1,
        "cpus_per_task": 1,
        "mem_mb": SHARD_MEM_MB,
        "runtime": limit,
        **queue_resources(site),
        "slurm_extra": shlex.join(extra_options(site, whole_nodes=False)),
    }


def queue_resources(site: Site) -> dict[str, Any]:
    """Whose hours, which queue."""
    return {"slurm_partition": site.queue, "slurm_account": site.account, "qos": site.qos, "constraint": site.constraint}


def extra_options(site: Site, whole_nodes: bool) -> list[str]:
    """The remaining options: a requeued job goes on in its log, and the site's own directives come last."""
    options = ["--exclusive"] if whole_nodes else []
    return [*options, "--open-mode=append", *(word for line in site.directives for word in shlex.split(line))]


def refuse_owned_directives(site: Site) -> None:
    """Raise ConfigError for a directive that sets what another key says: one of the two would be lost."""
    for line in site.directives:
        for what, pattern in OWNED.items():
            if re.search(rf"(^|\s)({pattern})", line):
                raise ConfigError(
                    f"the site {site.name!r}: directives: {line!r} sets the {what}, which Slipway sets itself; take it out "
                    f"(queue, account, qos, constraint, walltime and gpus_per_node are keys of the site file, nodes of the study)"
                )
