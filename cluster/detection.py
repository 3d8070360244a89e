"""Detect the scheduler, in a job and outside of jobs, by one table, which also has schedulers without a module here."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Signs:
    """The signs of a scheduler. `variables`: all are set in its jobs, the first is the job's id. `commands`: all are on PATH where it can
    be used. `version`: the command that says its version. `node`: the variable with the node's name. `cpus`: the variable with the number
    of CPUs granted on the node. `restarts`: the variable with the number of the job's start on the node."""

    variables: tuple[str, ...]
    commands: tuple[str, ...]
    version: tuple[str, ...]
    node: str
    cpus: str = ""
    restarts: str = ""
    off_node: str | None = None
    """The message for a process of a job that has no `node`."""


SIGNS: Final[Mapping[str, Signs]] = {
    "slurm": Signs(
        variables=("SLURM_JOB_ID",),
        commands=("sbatch", "srun", "scontrol"),
        version=("scontrol", "--version"),
        node="SLURMD_NODENAME",
        cpus="SLURM_CPUS_ON_NODE",
        restarts="SLURM_RESTART_COUNT",
        off_node="Slurm has not started this process on a node (SLURMD_NODENAME is not set): `srun --overlap slipway gpus --explain`",
    ),
    "lsf": Signs(variables=("LSB_JOBID",), commands=("bsub", "lsid"), version=("lsid", "-V"), node="SLIPWAY_LSF_NODE"),
    "sge": Signs(variables=("JOB_ID", "SGE_ROOT"), commands=("qsub", "qconf"), version=("qstat", "-help"), node="HOSTNAME"),
    "pbs": Signs(
        variables=("PBS_JOBID",),
        commands=("qsub", "pbsnodes"),
        version=("pbsnodes", "--version"),
        node="SLIPWAY_PBS_NODE",
        cpus="NCPUS",
    ),
}
"""SGE stands before PBS: both have qsub."""
OF_A_JOB: Final = re.compile(r"(SLURM|PBS|LSB|LSF|SGE)_\w+|TMPDIR|TMP|TEMP|JOB_ID|JOB_NAME|HOSTNAME|HOST|XDG_RUNTIME_DIR", re.ASCII)
"""Environment variables whose values belong to one job, or to one machine. SGE, LSF and many prologs set TMPDIR."""


def scheduler_of(environ: Mapping[str, str]) -> str | None:
    """Return the scheduler of the job that this process runs in, or None outside of jobs. An empty variable counts as not set."""
    return next((name for name, signs in SIGNS.items() if all(environ.get(variable) for variable in signs.variables)), None)


def node_name(environ: Mapping[str, str]) -> str | None:
    """Return the name of this node for the scheduler of our job, or None if the scheduler does not tell it."""
    signs = SIGNS.get(scheduler_of(environ) or "")
    return None if signs is None else environ.get(signs.node)


def off_node(environ: Mapping[str, str]) -> str | None:
    """Explain why this process of a job has no grant of its own, and what to type. Returns None if it runs on a node."""
    signs = SIGNS.get(scheduler_of(environ) or "")
    return None if signs is None or signs.node in environ else signs.off_node


def of_a_job(variables: Iterable[str]) -> str | None:
    """Return the first of these variables that has another value in each job or on each machine, or None."""
    return next((name for name in variables if OF_A_JOB.fullmatch(name)), None)
