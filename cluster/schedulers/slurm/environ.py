"""The variables that Slurm gives a job, also where somebody has taken them away: Snakemake's jobstep removes all but the job's id.

They stand in the initial environment of the batch script and of the tasks of steps, which /proc keeps: first our ancestors are read, then
our other processes of the same job on this node. Nothing is asked of the controller.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from base.foreign import digits
from base.machine_files import machine_text

JOB_ID: Final = "SLURM_JOB_ID"
RESTART_COUNT: Final = "SLURM_RESTART_COUNT"
NODE_LIST: Final = "SLURM_JOB_NODELIST"
PREFIXES: Final = ("SLURM_", "SLURMD_")
STEP_PREFIXES: Final = ("SLURM_STEP", "SLURM_TASK", "SLURM_SRUN_", "SLURM_LAUNCH_", "SLURM_CPU_BIND", "SLURM_MPI")
STEP_VARIABLES: Final = frozenset(
    {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_STEPID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_DISTRIBUTION"}
)
"""What belongs to one task or step, and says nothing of the job."""
ANCESTORS: Final = 64


def job_environ(environ: Mapping[str, str], proc: Path = Path("/proc"), pid: int | None = None) -> dict[str, str]:
    """Slurm's variables of the job that `environ` belongs to; what `environ` itself says comes first. Empty outside of a job.

    `pid`: the process whose ancestors are looked at; ours if left out.
    """
    own = slurm_variables(environ)
    job_id = own.get(JOB_ID)
    if not job_id:
        return {}
    found = dict(own)
    if is_whole(found):
        return found
    for other in _environments(proc, os.getpid() if pid is None else pid, job_id):
        found = {**{key: value for key, value in other.items() if not is_of_step(key)}, **found}
        if is_whole(found):
            break
    return found


def is_whole(variables: Mapping[str, str]) -> bool:
    """Whether these come from the batch script or salloc: a step that was started without their variables has no such counts, and then no
    restart count either (which the batch script lacks only while it is 0)."""
    return NODE_LIST in variables and "SLURM_JOB_CPUS_PER_NODE" in variables


def slurm_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Of `environ`, what Slurm sets, but for what is empty."""
    return {key: value for key, value in environ.items() if key.startswith(PREFIXES) and value}


def is_of_step(name: str) -> bool:
    """Whether a variable tells of one step or task only."""
    return name in STEP_VARIABLES or name.startswith(STEP_PREFIXES)


def _environments(proc: Path, pid: int, job_id: str) -> Iterator[dict[str, str]]:
    """Slurm's variables in the initial environments of our ancestors, nearest first, then of our other processes of this job."""
    seen = set()
    for ancestor in _ancestors(proc, pid):
        seen.add(ancestor)
        variables = _read(proc, ancestor)
        if variables.get(JOB_ID) == job_id:
            yield variables
    for entry in sorted((entry.name for entry in proc.iterdir() if entry.name.isdigit()), key=int):
        if int(entry) not in seen and int(entry) != pid:
            variables = _read(proc, int(entry))
            if variables.get(JOB_ID) == job_id:
                yield variables


def _ancestors(proc: Path, pid: int) -> Iterator[int]:
    for _ in range(ANCESTORS):
        tail = machine_text(proc / str(pid) / "stat").rpartition(")")[2].split()
        pid = (digits(tail[1]) if len(tail) > 1 else None) or 0
        if pid <= 1:
            return
        yield pid


def _read(proc: Path, pid: int) -> dict[str, str]:
    """Slurm's variables of another process; none if it is not ours to read."""
    try:
        raw = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return slurm_variables({key: value for key, _, value in pairs})
