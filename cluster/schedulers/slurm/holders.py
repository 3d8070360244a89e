"""Whether the holder of a run is alive: by its process where we can see it, else by its job, in the start that it belonged to."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cluster.schedulers import fate
from cluster.schedulers.limits import PATIENCE_S
from cluster.schedulers.slurm.environ import JOB_ID, RESTART_COUNT, job_environ
from cluster.schedulers.slurm.fate import is_running
from cluster.schedulers.slurm.query import job_info
from cluster.types import Holder


def holder_alive(holder: Holder) -> bool | None:
    """An earlier start of our own job is over. A holder whose process we would see lives if we do; any other lives as long as its job is
    in the start that it was in. None while slurmctld is silent."""
    (alive,) = holders_alive((holder,), PATIENCE_S)
    return alive


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """As holder_alive. A controller that is silent for one job is not asked for the others."""
    job = job_environ(os.environ)
    ours = (job.get(JOB_ID), int(job.get(RESTART_COUNT) or 0))
    return fate.holders_alive(holders, ours, lambda others: tuple(fate.each_job_alive(others, job_info, is_running, limit_s)))


def describe_holder(holder: Holder) -> str:
    """Pure: who holds a run, and how to end that."""
    return f"Slurm job {holder.job_id} (process {holder.pid} on {holder.host}); end it with `scancel {holder.job_id}`"
