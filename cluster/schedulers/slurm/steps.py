"""The one srun that starts a program on every node of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cluster.schedulers.slurm.environ import PREFIXES
from cluster.types import Allocation

OURS: Final = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_WORKING_CLUSTER", "SLURM_CLUSTERS")
"""What srun must know. All else that it would read (a CPU mask of another step, --export=NONE of the submission) is for others."""
INPUTS: Final = (*PREFIXES, "SRUN_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_")


def srun_argv(allocation: Allocation, command: tuple[str, ...]) -> tuple[str, ...]:
    """Pure: `command` once on every node, with all that the run was granted there, beside other steps of the job.

    --overlap: the job's own step may hold all of it. --mem=0: the memory of the job. No --cpu-bind: with all CPUs in one task, the task
    gets them all. A program that ends says nothing of the others (--wait=0, --kill-on-bad-exit=0): the supervisor decides.
    """
    names = ",".join(node.name for node in allocation.nodes)
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
        f"--nodelist={names}",
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


def srun_environment(environ: Mapping[str, str], job: Mapping[str, str]) -> dict[str, str]:
    """Pure: `environ` without what srun would take for options, and with what it needs to find the job (`job`: of job_environ)."""
    own = {name: job[name] for name in OURS if name in job}
    return {**{name: value for name, value in environ.items() if not name.startswith(INPUTS)}, **own}
