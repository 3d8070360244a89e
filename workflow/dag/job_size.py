"""How large the job of a run is, and that of a shard. Pure."""

from __future__ import annotations

import math
from typing import Any, Final

from base.errors import ConfigError
from cluster.schedulers import jobs_of, with_jobs
from cluster.schedulers.jobs import JobSize
from workflow.study.cell import Cell
from workflow.study.site import Site

START_S: Final = 60.0
"""Between the start of a job and that of its run: Snakemake starts twice in it."""
SHARD_MINUTES: Final = 240
SHARD_MEM_MB: Final = 2000
MIB: Final = 1 << 20


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


def run_size(cell: Cell, site: Site, limit_s: float) -> JobSize:
    """Of the job of a run. GPUs are asked for where the site says that its nodes have some."""
    cores, memory = node_share(cell, site)
    return JobSize(
        nodes=cell.nodes,
        minutes=job_minutes(limit_s, site),
        cores=cores,
        memory_mb=memory,
        gpus=cell.gpus_per_node if site.gpus_per_node else None,
        whole_nodes=not site.share_nodes,
        **of_the_site(site),
    )


def shard_size(site: Site) -> JobSize:
    """Of the job that builds one shard: a core of some node, shared with others."""
    limit = SHARD_MINUTES if site.walltime_s is None else min(SHARD_MINUTES, math.ceil(site.walltime_s / 60))
    return JobSize(nodes=1, minutes=limit, cores=1, memory_mb=SHARD_MEM_MB, whole_nodes=False, **of_the_site(site))


def of_the_site(site: Site) -> dict[str, Any]:
    """Whose hours, which queue, which nodes: what all jobs of a site ask for."""
    return {name: getattr(site, name) for name in ("queue", "account", "qos", "constraint", "parallel_environment", "directives")}


def refuse_owned_directives(site: Site) -> None:
    """Raise ConfigError for a directive that sets what another key says: one of the two would be lost. Where the site's scheduler takes no
    jobs, it may be meant for any other."""
    own = jobs_of(site.scheduler)
    every = with_jobs().values() if own is None else (own,)
    for line in site.directives:
        if what := next((what for jobs in every if (what := jobs.owned_by_us(line))), None):
            raise ConfigError(
                f"the site {site.name!r}: directives: {line!r} sets the {what}, which Slipway sets itself; take it out "
                f"(queue, account, qos, constraint, walltime and gpus_per_node are keys of the site file, nodes of the study)"
            )
