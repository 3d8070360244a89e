"""Read the nodes of a job of Slurm, and start the node programs by one srun.

In `profiles/slurm` each run has its own job; in `profiles/slurm-allocation` many runs share one job, and each takes nodes of it by lock
files. The environment describes the job, and answers.py finds it even where Snakemake's jobstep has removed it, so that a run starts while
slurmctld is silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from base.errors import AllocationError
from base.sanitize import digits
from cluster.addresses import resolve
from cluster.schedulers.job_nodes import device_of, names_for, of_sets
from cluster.schedulers.jobs import SUBMISSION
from cluster.schedulers.queries import SHORT_PATIENCE_S
from cluster.schedulers.slurm.answers import (
    JOB_ID,
    NODE_LIST,
    RESTART_COUNT,
    SILENCE,
    expand,
    expand_counts,
    job_environ,
    job_info,
    node_addresses,
    slurm_version,
)
from cluster.schedulers.slurm.job_end import ended_by as ended_by
from cluster.schedulers.slurm.job_end import holders_alive as holders_alive
from cluster.schedulers.slurm.job_end import job_facts as job_facts
from cluster.schedulers.slurm.job_end import read_grant, srun_argv, srun_environment
from cluster.schedulers.slurm.job_end import requeue as requeue
from cluster.types import Allocation, AllocationRequest, Grant, Launch, Node

NAME = "slurm"
LIMIT_SIGNAL: int | None = None
KILLS_UNTOLD = False
REFUSAL: Final = "Unable to create step"
FORGOTTEN: Final = "Memory required by task is not available"
"""The message of srun after a controller was killed.

The controller takes ended steps for running ones, and checks their nodes only some minutes later.
"""
MIB: Final = 1 << 20


# The allocation.


def allocate(request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:  # noqa: ARG001 - the job counts
    """Read the names of the job's nodes; the node programs report what each node grants.

    Where runs share the job, the allocation has all nodes of the job, and the run takes some.
    """
    job = job_environ(environ)
    if not job:
        raise AllocationError("the site says scheduler: slurm, and this process is not inside a job of Slurm: see docs/slurm.md")
    if NODE_LIST not in job:
        info = job_info(job[JOB_ID])
        if info is None or not info.node_list:
            raise AllocationError(f"job {job[JOB_ID]}: neither its environment nor slurmctld knows its nodes; is it still running?")
        job[NODE_LIST] = info.node_list
    names = expand(job[NODE_LIST])
    return plan_allocation(request, environ, job, _addresses(names), slurm_version())


def plan_allocation(
    request: AllocationRequest, environ: Mapping[str, str], job: Mapping[str, str], addresses: Mapping[str, str], version: str | None
) -> Allocation:
    """Select the run's nodes from those of the job.

    `job` is the result of job_environ, `addresses` has the address of every node. Raises AllocationError if there are fewer nodes than
    requested.
    """
    names = tuple(addresses)
    names = names_for(request, names)
    if len(names) < request.nodes:
        raise AllocationError(
            f"job {job[JOB_ID]}: {request.nodes} nodes were asked, {len(names)} granted ({job[NODE_LIST]}{of_sets(request)}); "
            f"submit it with --nodes={request.nodes * (1 if request.node_set is None else request.node_set[1])}"
        )
    end = job.get("SLURM_JOB_END_TIME", "")
    return Allocation(
        scheduler=NAME,
        scheduler_version=version,
        job_id=job[JOB_ID],
        restart_count=digits(job.get(RESTART_COUNT, "")) or 0,
        nodes=tuple(Node(name=name, hostname=name, address=addresses[name]) for name in names),
        device=device_of(request),
        deadline=digits(end),
        exclusive=not request.share_nodes,
        own_job=SUBMISSION not in environ and len(names) == request.nodes and environ.get("ENVIRONMENT") == "BATCH",
        gres=request.gres,
        cpus_per_node=_cpus(job) or request.cpus_per_node,
        memory_per_node_bytes=_memory(job),
    )


def here(environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant | None:
    """Read the cores, GPUs and address of a task of srun."""
    return read_grant(environ, device, peer, interface)


def _cpus(job: Mapping[str, str]) -> int | None:
    """Return the smallest number of the job's CPUs on one node."""
    counts = job.get("SLURM_JOB_CPUS_PER_NODE")
    return min(expand_counts(counts)) if counts else None


def _memory(job: Mapping[str, str]) -> int | None:
    """Return the memory of the job on each node.

    Slurm reports it in MB, and does not report it for --mem=0, which is all memory of the node.
    """
    node, cpu = digits(job.get("SLURM_MEM_PER_NODE", "")), digits(job.get("SLURM_MEM_PER_CPU", ""))
    if node is not None:
        return node * MIB or None
    return None if cpu is None else cpu * MIB * (_cpus(job) or 1) or None


def _addresses(names: Sequence[str]) -> dict[str, str]:
    """Return the address of each node in the given order, resolved on this host or else as Slurm knows it."""
    found = {name: resolve(name) for name in names}
    known = node_addresses([name for name, address in found.items() if address is None], SHORT_PATIENCE_S)
    return {name: address or resolve(known.get(name, "")) or name for name, address in found.items()}


# The node programs.


def launches(allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
    """Return one srun for all nodes, even for one node, because only a task of a step gets Slurm's signals.

    Slurm numbers the tasks in its own order of the nodes, whatever the order of --nodelist: each task finds its position by the name of its
    node.
    """
    order = f"SLURMD_NODENAME={','.join(node.name for node in allocation.nodes)}"
    return (
        Launch(
            argv=srun_argv(allocation, (*node_argv, "--nodes", order)),
            nodes=tuple(range(len(allocation.nodes))),
            refusal=REFUSAL,
            silence=SILENCE,
            outdated=(FORGOTTEN,),
        ),
    )


def launch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return our environment without Slurm's variables, except for those that name the job and its cluster."""
    return srun_environment(environ, job_environ(environ))


def job_start(environ: Mapping[str, str]) -> str | None:
    """Return the job's id and its restart count."""
    job = environ.get(JOB_ID)
    return f"{job}-{environ.get(RESTART_COUNT) or 0}" if job else None
