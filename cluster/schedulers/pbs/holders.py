"""Whether the holder of a run is alive: by its process where we can see it, else by its job, in the start that it belonged to."""

from __future__ import annotations

import os
from collections.abc import Sequence

from base.errors import AllocationError
from cluster.schedulers import fate
from cluster.schedulers.limits import PATIENCE_S
from cluster.schedulers.pbs.environ import JOB_ID
from cluster.schedulers.pbs.fate import is_running, restart_count
from cluster.schedulers.pbs.query import job_info
from cluster.types import Holder


def holder_alive(holder: Holder) -> bool | None:
    """An earlier start of our own job is over. A holder whose process we would see lives if we do; any other lives as long as its job is
    in the start that it was in. None while the server is silent."""
    (alive,) = holders_alive((holder,), PATIENCE_S)
    return alive


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """As holder_alive. A server that is silent for one job is not asked for the others."""
    ours = _our_start({holder.job_id for holder in holders})
    return fate.holders_alive(holders, ours, lambda others: tuple(fate.each_job_alive(others, job_info, is_running, limit_s)))


def _our_start(job_ids: set[str]) -> tuple[str | None, int]:
    """Our job and its start, if one of these is it."""
    job_id = os.environ.get(JOB_ID)
    try:
        return (job_id, restart_count(os.environ)) if job_id in job_ids else (None, 0)
    except AllocationError:
        return (None, 0)


def describe_holder(holder: Holder) -> str:
    """Pure: who holds a run, and how to end that."""
    return f"PBS job {holder.job_id} (process {holder.pid} on {holder.host}); end it with `qdel {holder.job_id}`"
