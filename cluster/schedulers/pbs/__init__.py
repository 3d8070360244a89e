"""OpenPBS and PBS Professional: the nodes of the job we are in, one pbs_tmrsh per node program, and what the server says of jobs.

PBS signals a job's first node only, and leaves processes alive that have a session of their own: node programs end by their own link to the
supervisor and by its deadline. In `profiles/pbs` the job is the run's own; in `profiles/pbs-allocation` many runs share one job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from base.errors import AllocationError
from base.sanitize import digits
from cluster.addresses import resolve
from cluster.detection import scheduler_of
from cluster.gpus.decision import names_in
from cluster.pbs_tasks.launcher import launcher_argv
from cluster.pbs_tasks.remote import NODE_NAME
from cluster.schedulers.job_nodes import device_of, launch_each, names_for, of_sets, read_grant
from cluster.schedulers.jobs import SUBMISSION
from cluster.schedulers.pbs.answers import pbs_version
from cluster.schedulers.pbs.job_end import JOB_ID, node_names, restart_count, start_word
from cluster.schedulers.pbs.job_end import ended_by as ended_by
from cluster.schedulers.pbs.job_end import holders_alive as holders_alive
from cluster.schedulers.pbs.job_end import job_facts as job_facts
from cluster.schedulers.pbs.job_end import requeue as requeue
from cluster.types import Allocation, AllocationRequest, Grant, Launch, Node

NAME = "pbs"
LIMIT_SIGNAL: int | None = None
KILLS_UNTOLD = False
SILENCE = ("tm_init",)
"""What pbs_tmrsh says where the daemon of this node does not answer now."""


def allocate(request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:  # noqa: ARG001 - the job counts
    """The job's nodes, by name; what they hold, their node programs tell. Where runs share the job, all its nodes: the run takes some."""
    if scheduler_of(environ) != NAME:
        raise AllocationError("the site says scheduler: pbs, and this process is not inside a job of PBS: see docs/pbs.md")
    names = node_names(environ)
    addresses = {name: resolve(name) or name for name in names}
    return plan_allocation(request, environ, addresses, restart_count(environ), pbs_version())


def plan_allocation(
    request: AllocationRequest, environ: Mapping[str, str], addresses: Mapping[str, str], restarts: int, version: str | None
) -> Allocation:
    """Pure. `addresses`: of every node. Raises AllocationError where there are fewer nodes than asked."""
    names = names_for(request, tuple(addresses))
    if len(names) < request.nodes:
        sets = 1 if request.node_set is None else request.node_set[1]
        raise AllocationError(
            f"job {environ[JOB_ID]}: {request.nodes} nodes were asked, {len(names)} granted ({', '.join(addresses)}"
            f"{of_sets(request)}); submit it with -l select={request.nodes * sets}:... -l place=scatter"
        )
    return Allocation(
        scheduler=NAME,
        scheduler_version=version,
        job_id=environ[JOB_ID],
        restart_count=restarts,
        nodes=tuple(Node(name=name, hostname=name, address=addresses[name]) for name in names),
        device=device_of(request),
        exclusive=not request.share_nodes,
        own_job=SUBMISSION not in environ and len(names) == request.nodes and environ.get("PBS_ENVIRONMENT") == "PBS_BATCH",
        cpus_per_node=digits(environ.get("NCPUS", "")) or request.cpus_per_node,
        memory_per_node_bytes=request.memory_per_node_bytes if request.share_nodes else None,
    )


def here(environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant | None:
    """In a program that our launcher started: its cores, GPUs and address. The cgroup hook says which GPUs, as UUIDs."""
    grant = read_grant(environ, device, peer, interface, environ.get(NODE_NAME))
    return dataclasses.replace(grant, cpus=digits(environ.get("NCPUS", "")), gpu_indices=names_in(environ.get("CUDA_VISIBLE_DEVICES", "")))


def launches(allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
    """Pure: one launcher per node."""
    return launch_each(allocation, node_argv, launcher_argv, SILENCE)


def launch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: as it is: pbs_tmrsh finds the job by PBS's variables, and `order_of` leaves out what each node has of its own."""
    return dict(environ)


def job_start(environ: Mapping[str, str]) -> str | None:
    """The job's id and a word of this start of it."""
    return start_word(environ)
