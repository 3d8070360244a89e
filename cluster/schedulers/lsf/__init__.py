"""IBM Spectrum LSF, and OpenLava, which speaks like it: the nodes of the job we are in, one blaunch per node program, and what mbatchd says
of jobs.

blaunch loses the exit codes of what it starts: node programs end by their own link to the supervisor and by its deadline. In `profiles/lsf`
the job is the run's own; in `profiles/lsf-allocation` many runs share one job, and each takes nodes of it by their locks.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping

from base.errors import AllocationError
from cluster.addresses import resolve
from cluster.detection import scheduler_of
from cluster.schedulers.job_nodes import claimed, device_of, launch_each, names_for, of_sets, read_grant
from cluster.schedulers.jobs import SUBMISSION
from cluster.schedulers.lsf.job_end import JOB_ID, NODE, end_of_job, hosts_of_job, launch_argv, passed_on, restart_count
from cluster.schedulers.lsf.job_end import ended_by as ended_by
from cluster.schedulers.lsf.job_end import holders_alive as holders_alive
from cluster.schedulers.lsf.job_end import job_facts as job_facts
from cluster.schedulers.lsf.job_end import requeue as requeue
from cluster.types import Allocation, AllocationRequest, Grant, Launch, Node

NAME = "lsf"
LIMIT_SIGNAL: int | None = signal.SIGUSR2
KILLS_UNTOLD = False
SILENCE = ("ls_initrex() failed", "lsb_init() failed", "LIM is down", "Communication time out", "daemon not responding")
"""What blaunch says where the daemons of this node do not answer now."""


# -- what was granted


def allocate(request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:  # noqa: ARG001 - the job counts
    """The job's nodes, by name; what they hold, their node programs tell. Where runs share the job, all its nodes: the run takes some."""
    if scheduler_of(environ) != NAME:
        raise AllocationError("the site says scheduler: lsf, and this process is not inside a job of LSF: see docs/lsf.md")
    hosts = hosts_of_job(environ)
    if not hosts:
        raise AllocationError(
            f"job {environ[JOB_ID]}: none of LSB_MCPU_HOSTS, LSB_DJOB_HOSTFILE and LSB_HOSTS names its hosts; was its environment changed?"
        )
    return plan_allocation(request, environ, hosts, {name: resolve(name) or name for name in hosts})


def plan_allocation(
    request: AllocationRequest, environ: Mapping[str, str], slots: Mapping[str, int], addresses: Mapping[str, str]
) -> Allocation:
    """Pure. `slots` and `addresses`: of every node. Raises AllocationError where there are fewer nodes than asked."""
    names = names_for(request, tuple(addresses))
    if len(names) < request.nodes:
        raise AllocationError(
            f"job {environ[JOB_ID]}: {request.nodes} nodes were asked, {len(names)} granted ({', '.join(addresses)}{of_sets(request)}) "
            f"with {sum(slots.values())} slots; submit it with -n SLOTS -R 'span[ptile=SLOTS_PER_NODE]'"
        )
    return Allocation(
        scheduler=NAME,
        job_id=environ[JOB_ID],
        restart_count=restart_count(environ),
        nodes=tuple(Node(name=name, hostname=name, address=addresses[name]) for name in names),
        device=device_of(request),
        deadline=end_of_job(environ),
        exclusive=not request.share_nodes,
        own_job=SUBMISSION not in environ and len(names) == request.nodes and environ.get("LSB_INTERACTIVE") != "Y",
        cpus_per_node=min(slots[name] for name in names),
        memory_per_node_bytes=request.memory_per_node_bytes if request.share_nodes else None,
    )


def here(environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant | None:
    """In a program of blaunch: its cores, GPUs and address."""
    grant = read_grant(environ, device, peer, interface, environ.get(NODE))
    return grant if device == "cpu" else dataclasses.replace(grant, gpu_indices=claimed(environ, NAME))


# -- node programs


def launches(allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
    """Pure: one blaunch per node."""
    return launch_each(allocation, node_argv, launch_argv, SILENCE, may_be_mute=True)


def launch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: what another node may have of ours."""
    return passed_on(environ)


def job_start(environ: Mapping[str, str]) -> str | None:
    """The job's id and which start of it this is."""
    return f"{environ[JOB_ID]}-{restart_count(environ)}" if scheduler_of(environ) == NAME else None
