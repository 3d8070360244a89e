"""Size the jobs of runs and shards: nodes, walltime in whole minutes, cores, memory, GPUs, and what the site requests for all. Pure."""

import math
import shlex
from collections.abc import Mapping
from typing import Any, Final

from cluster.schedulers.jobs import JobSize
from workflow.study.cell import Cell
from workflow.study.site import Site

NUMBERS: Final = {"nodes": "nodes", "runtime": "minutes", "cores": "cores", "memory_mb": "memory_mb", "gpus": "gpus"}
"""Snakemake's resources that are numbers, and the fields of a job's size that they mean."""
WORDS: Final = ("queue", "account", "qos", "constraint", "parallel_environment")
"""Resources that are words, and fields of a job's size and of a site."""


Resources = dict[str, int | str | None]


def resources_of(size: JobSize) -> Resources:
    """Return the Snakemake resources of a job as numbers and words. A resource that the job does not request is None."""
    return {
        **{name: getattr(size, field) for name, field in NUMBERS.items()},
        "whole_nodes": int(size.whole_nodes),
        **{name: getattr(size, name) for name in WORDS},
        "directives": shlex.join(size.directives) or None,
    }


def size_of(resources: Mapping[str, Any]) -> JobSize:
    """Return the job size that Snakemake's resources mean, which the user may have changed by --set-resources. Raises ValueError."""
    for name in (*NUMBERS, "whole_nodes"):
        if not isinstance(resources.get(name), int | None):
            raise ValueError(f"the resource {name} must be a whole number, found {resources[name]!r}")
    values: dict[str, Any] = {field: resources.get(name) for name, field in NUMBERS.items()}
    values |= {name: str(resources[name]) for name in WORDS if resources.get(name)}
    values |= {"nodes": values["nodes"] or 1, "minutes": values["minutes"] or 1, "whole_nodes": bool(resources.get("whole_nodes"))}
    return JobSize(**values, directives=tuple(shlex.split(str(resources.get("directives") or ""))))


START_S: Final = 60.0
"""The seconds between the start of a job and that of its run: Snakemake starts twice in it."""
SHARD_MINUTES: Final = 240
SHARD_MEM_MB: Final = 2000
MIB: Final = 1 << 20


def job_minutes(limit_s: float, site: Site) -> int:
    """Return the whole minutes of the job of a run that may take `limit_s`, at most the site's.

    The run's own clock ends it first, with time to push.
    """
    return whole_minutes(limit_s + site.deadline_margin_s + START_S, site)


def whole_minutes(needed_s: float, site: Site) -> int:
    """Return a time as whole minutes of a job's walltime, rounded up; the site's walltime, beyond which its queue may refuse, is rounded
    down."""
    minutes = math.ceil(needed_s / 60)
    return minutes if site.walltime_s is None else min(minutes, max(1, int(site.walltime_s // 60)))


def node_share(cell: Cell, site: Site) -> tuple[int | None, int | None]:
    """Return the cores and the MB of memory of each node.

    None: what the node has, or what the scheduler gives; 0 MB: all of the node's.
    """
    if not site.share_nodes:
        return site.cpus_per_node, 0
    threads = cell.threads if isinstance(cell.threads, int) else 1
    cores, memory = cell.gpus_per_node * threads, None
    if site.gpus_per_node:
        part = min(1.0, cell.gpus_per_node / site.gpus_per_node)
        cores = max(cores, int((site.cpus_per_node or 0) * part))
        memory = int(site.memory_per_node_bytes * part) // MIB if site.memory_per_node_bytes else None
    return cores, memory


def run_size(cell: Cell, site: Site, limit_s: float) -> JobSize:
    """Return the size of the job of a run. GPUs are requested where the site says that its nodes have some."""
    cores, memory = node_share(cell, site)
    return JobSize(
        nodes=cell.nodes,
        minutes=job_minutes(limit_s, site),
        cores=cores,
        memory_mb=memory,
        gpus=cell.gpus_per_node if site.gpus_per_node else None,
        whole_nodes=not site.share_nodes,
        **requests_of_site(site),
    )


def shard_size(site: Site) -> JobSize:
    """Return the size of the job that builds one shard: one core of a node that is shared with others."""
    return JobSize(
        nodes=1,
        minutes=whole_minutes(60.0 * SHARD_MINUTES, site),
        cores=1,
        memory_mb=SHARD_MEM_MB,
        whole_nodes=False,
        **requests_of_site(site),
    )


def requests_of_site(site: Site) -> dict[str, Any]:
    """Return what all jobs of a site request: account, queue, constraint and directives."""
    return {name: getattr(site, name) for name in (*WORDS, "directives")}
