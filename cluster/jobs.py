"""Which scheduler's job this process runs in, by its environment: the one list of the variables that tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

JOB_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "slurm": ("SLURM_JOB_ID",),
    "lsf": ("LSB_JOBID",),
    "pbs": ("PBS_JOBID",),
    "sge": ("JOB_ID", "SGE_ROOT"),
}


def scheduler_of(environ: Mapping[str, str]) -> str | None:
    """The scheduler whose allocation this process runs in; None outside of all. A variable that is empty counts as not set."""
    for scheduler, names in JOB_VARIABLES.items():
        if all(environ.get(name) for name in names):
            return scheduler
    return None
