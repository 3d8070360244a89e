"""Read the nodes of a job of Slurm and when and why it ends, requeue it, and start the node programs by one srun.

In `profiles/slurm` each run has its own job; in `profiles/slurm-allocation` many runs share one job, and each takes nodes of it by lock
files. The environment of the batch script describes the job, so that a run starts while slurmctld is silent.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Final

from base import errors, sanitize
from cluster.addresses import resolve
from cluster.detection import SIGNS
from cluster.schedulers import inside_job, queries
from cluster.schedulers.slurm import answers
from cluster.schedulers.slurm.answers import SLURM
from cluster.types import Allocation, AllocationRequest, Holder, Launch

NAME = "slurm"
LIMIT_SIGNAL: int | None = None
REFUSAL: Final = "Unable to create step"
FORGOTTEN: Final = "Memory required by task is not available"
"""The message of srun after a controller was killed: the next one takes ended steps for running, and checks their nodes minutes later."""
MIB: Final = 1 << 20


# The allocation.


def allocate(request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:  # noqa: ARG001 - the job counts
    job = answers.job_environ(environ)
    if not job:
        raise errors.AllocationError(
            "the site says scheduler: slurm, and this process is not inside a job of Slurm: see docs/how-to/schedulers.md"
        )
    if answers.NODE_LIST not in job:
        raise errors.AllocationError(
            f"job {job[answers.JOB_ID]}: {answers.NODE_LIST}, which names its nodes, is not set; was its environment changed?"
        )
    return plan_allocation(
        request, environ, job, _addresses(answers.node_names(job[answers.NODE_LIST])), queries.version_of(SLURM, SIGNS[NAME].version)
    )


def plan_allocation(
    request: AllocationRequest, environ: Mapping[str, str], job: Mapping[str, str], addresses: Mapping[str, str], version: str | None
) -> Allocation:
    found = inside_job.job_allocation(
        (NAME, job[answers.JOB_ID]),
        request,
        environ,
        addresses,
        is_batch=environ.get("ENVIRONMENT") == "BATCH",
        advice=f"; submit it with --nodes={inside_job.nodes_of_all_sets(request)}",
    )
    return dataclasses.replace(
        found,
        scheduler_version=version,
        restart_count=sanitize.ascii_int(job.get(answers.RESTART_COUNT, "")) or 0,
        deadline=sanitize.ascii_int(job.get("SLURM_JOB_END_TIME", "")),
        gres=request.gres,
        cpus_per_node=_cpus(job) or request.cpus_per_node,
        memory_per_node_bytes=_memory(job),
    )


def _cpus(job: Mapping[str, str]) -> int | None:
    """Return the smallest number of the job's CPUs on one node."""
    return answers.fewest_cpus(job.get(answers.CPUS_PER_NODE, ""))


def _memory(job: Mapping[str, str]) -> int | None:
    """Return the bytes per node; None for --mem=0 (all memory of the node), which Slurm does not report."""
    node, cpu = sanitize.ascii_int(job.get("SLURM_MEM_PER_NODE", "")), sanitize.ascii_int(job.get("SLURM_MEM_PER_CPU", ""))
    if node is not None:
        return node * MIB or None
    return None if cpu is None else cpu * MIB * (_cpus(job) or 1) or None


def _addresses(names: Sequence[str]) -> dict[str, str]:
    """Resolve each name on this host, or else as Slurm knows it."""
    found = {name: resolve(name) for name in names}
    known = answers.node_addresses([name for name, address in found.items() if address is None], queries.SHORT_PATIENCE_S)
    return {name: address or resolve(known.get(name, "")) or name for name, address in found.items()}


# The node programs.


OURS: Final = (answers.JOB_ID, answers.RESTART_COUNT, "SLURM_CONF", "SLURM_WORKING_CLUSTER", "SLURM_CLUSTERS")
"""The variables that srun needs, and the restart count, which node programs compare.

The others that it would read (a CPU mask of another step, --export=NONE of the submission) are not meant for it.
"""
INPUTS: Final = (*answers.PREFIXES, "SRUN_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_")


def launches(allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
    """Return one srun for all nodes, even for one node, because only a task of a step gets Slurm's signals.

    Slurm numbers the tasks in its own order of the nodes, whatever the order of --nodelist: each task finds its position by the name of its
    node.
    """
    order = f"SLURMD_NODENAME={','.join(node.name for node in allocation.nodes)}"
    argv = srun_argv(allocation, (*node_argv, "--nodes", order))
    nodes = tuple(range(len(allocation.nodes)))
    return (Launch(argv=argv, nodes=nodes, refusal=REFUSAL, silence=answers.SILENCE, outdated=(FORGOTTEN,)),)


def srun_argv(allocation: Allocation, command: tuple[str, ...]) -> tuple[str, ...]:
    """Build the srun that starts `command` once on every node, with all that the run was granted there.

    It runs beside other steps of the job. --overlap: the job's own step may hold everything. --mem=0: the memory of the job. No --cpu-bind:
    the only task gets all CPUs. The end of one program does not end the others (--wait=0, --kill-on-bad-exit=0): the supervisor decides.
    """
    count = len(allocation.nodes)
    sizes = (
        *((f"--cpus-per-task={allocation.cpus_per_node}",) if allocation.cpus_per_node else ()),
        *((f"--gres=gpu:{allocation.gres}",) if allocation.gres else ()),
    )
    return (
        "srun",
        f"--jobid={allocation.job_id}",
        "--overlap",
        f"--nodes={count}",
        f"--nodelist={','.join(node.name for node in allocation.nodes)}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        *sizes,
        "--mem=0",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--input=all",
        "--export=ALL",
        *command,
    )


def launch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return our environment without Slurm's variables, except for those that name the job and its cluster."""
    return srun_environment(environ, answers.job_environ(environ))


def srun_environment(environ: Mapping[str, str], job: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables that srun would read as options, with those of `job` (job_environ) that it needs."""
    own = {name: job[name] for name in OURS if name in job}
    return {**{name: value for name, value in environ.items() if not name.startswith(INPUTS)}, **own}


def job_start(environ: Mapping[str, str]) -> str | None:
    job = environ.get(answers.JOB_ID)
    return f"{job}-{environ.get(answers.RESTART_COUNT) or 0}" if job else None


# The end of the job.


def job_facts(allocation: Allocation) -> dict[str, float | None]:
    return inside_job.facts_of(answers.job_info(allocation.job_id), allocation.restart_count)


def ended_by(allocation: Allocation) -> str | None:
    """Read the reason from the job's state.

    A requeued job counts a new start as soon as it is ordered to end, whatever the reason of the requeue.
    """
    return inside_job.reason_of(answers.job_info(allocation.job_id, queries.SHORT_PATIENCE_S), allocation.restart_count)


def requeue(allocation: Allocation) -> None:
    """Run `scontrol requeue`. The signal that ends us follows."""
    argv = ("scontrol", "requeue", allocation.job_id)
    inside_job.requeue(SLURM, allocation, argv, hint=" (JobRequeue in slurm.conf, --requeue)", patience_s=answers.REQUEUE_PATIENCE_S)


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    job = answers.job_environ(os.environ)
    ours = (job.get(answers.JOB_ID), int(job.get(answers.RESTART_COUNT) or 0))
    return inside_job.holders_alive(holders, ours, lambda ids: answers.query_jobs((f"--jobs={','.join(ids)}",), limit_s))
