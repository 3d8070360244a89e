"""Grid Engine (Son of Grid Engine, Univa/Altair, Open Cluster Scheduler): the nodes of the job we are in, one `qrsh -inherit` per node
program, and what qmaster says of jobs.

In `profiles/sge` the job is the run's own; in `profiles/sge-allocation` many runs share one job, and each takes nodes of it by their locks.
A job needs a parallel environment with control_slaves TRUE, whose name only the site knows: `parallel_environment` in its file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from base.errors import AllocationError
from cluster.addresses import resolve
from cluster.detection import scheduler_of
from cluster.schedulers.job_nodes import claimed, device_of, launch_each, names_for, of_sets, read_grant
from cluster.schedulers.jobs import SUBMISSION
from cluster.schedulers.sge.job_end import EARLY_S, HOST_FILE, JOB_ID, end_of_job, hosts_of_job, launch_argv, passed_on, restart_count
from cluster.schedulers.sge.job_end import ended_by as ended_by
from cluster.schedulers.sge.job_end import holders_alive as holders_alive
from cluster.schedulers.sge.job_end import job_facts as job_facts
from cluster.schedulers.sge.job_end import requeue as requeue
from cluster.types import Allocation, AllocationRequest, Grant, Launch, Node

NAME = "sge"
LIMIT_SIGNAL: int | None = None
KILLS_UNTOLD = True
REFUSAL = "didn't accept task"
"""What qrsh says where all slots of a node have programs already."""
SILENCE = ("got select error", "got send error", "unable to contact")
"""What it says where the daemon of a node does not answer now."""


# -- what was granted


def allocate(request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:  # noqa: ARG001 - the job counts
    """The job's nodes, by name; what they hold, their node programs tell. Where runs share the job, all its nodes: the run takes some."""
    if scheduler_of(environ) != NAME:
        raise AllocationError("the site says scheduler: sge, and this process is not inside a job of Grid Engine: see docs/sge.md")
    if not environ.get(HOST_FILE):
        raise AllocationError(
            f"job {environ[JOB_ID]} has no parallel environment, and Grid Engine starts no programs for it: submit it with -pe NAME N, "
            "of which control_slaves is TRUE (docs/sge.md)"
        )
    hosts = hosts_of_job(environ)
    return plan_allocation(request, environ, hosts, {name: resolve(name) or name for name in hosts})


def plan_allocation(
    request: AllocationRequest, environ: Mapping[str, str], slots: Mapping[str, int], addresses: Mapping[str, str]
) -> Allocation:
    """Pure. `slots` and `addresses`: of every node. Raises AllocationError where there are fewer nodes than asked."""
    names = names_for(request, tuple(addresses))
    if len(names) < request.nodes:
        raise AllocationError(
            f"job {environ[JOB_ID]}: {request.nodes} nodes were asked, {len(names)} granted ({', '.join(addresses)}"
            f"{of_sets(request)}) with {sum(slots.values())} slots of {environ.get('PE', 'no')!r}; it makes "
            "nodes of slots by the rule of the parallel environment (qconf -sp): name one with a fixed number per node, and that number "
            "(`parallel_environment: NAME SLOTS` in the site file)"
        )
    end = end_of_job(environ)
    return Allocation(
        scheduler=NAME,
        job_id=environ[JOB_ID],
        restart_count=restart_count(environ),
        nodes=tuple(Node(name=name, hostname=name, address=addresses[name]) for name in names),
        device=device_of(request),
        deadline=None if end is None else end - EARLY_S,
        exclusive=not request.share_nodes,
        own_job=SUBMISSION not in environ and len(names) == request.nodes and environ.get("ENVIRONMENT") == "BATCH",
        memory_per_node_bytes=request.memory_per_node_bytes if request.share_nodes else None,
    )


def here(environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant | None:
    """In a program of `qrsh -inherit`: its cores, GPUs and address."""
    grant = read_grant(environ, device, peer, interface, environ.get("HOSTNAME"))
    return grant if device == "cpu" else dataclasses.replace(grant, gpu_indices=claimed(environ, NAME))


# -- node programs


def launches(allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
    """Pure: one qrsh per node."""
    return launch_each(allocation, node_argv, launch_argv, SILENCE, REFUSAL)


def launch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: what another node may have of ours."""
    return passed_on(environ)


def job_start(environ: Mapping[str, str]) -> str | None:
    """The job's id and which start of it this is."""
    return f"{environ[JOB_ID]}-{restart_count(environ)}" if scheduler_of(environ) == NAME else None
