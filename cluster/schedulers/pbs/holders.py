"""Whether the holder of a run is alive: by its process where we can see it, else by its job, in the start that it belonged to."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from base.errors import AllocationError, SchedulerOutputError, SchedulerSilent
from cluster.holding import holder_lives
from cluster.schedulers.pbs.answers import JobInfo
from cluster.schedulers.pbs.environ import JOB_ID
from cluster.schedulers.pbs.fate import is_running, restart_count
from cluster.schedulers.pbs.limits import ANSWER_S, PATIENCE_S
from cluster.schedulers.pbs.query import job_info
from cluster.types import Holder


def holder_alive(holder: Holder) -> bool | None:
    """An earlier start of our own job is over. A holder whose process we would see lives if we do; any other lives as long as its job is
    in the start that it was in. None while the server is silent."""
    (alive,) = holders_alive((holder,), PATIENCE_S)
    return alive


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
    """As holder_alive. A server that is silent for one job is not asked for the others."""
    give_up = time.monotonic() + limit_s
    known: dict[str, JobInfo | None] = {}
    silent: set[str] = set()
    ours = _our_start({holder.job_id for holder in holders})
    for job_id in dict.fromkeys(holder.job_id for holder in holders):
        left = give_up - time.monotonic()
        try:
            if left <= 0:
                raise SchedulerSilent("no time is left")
            known[job_id] = job_info(job_id, left, max(1.0, min(left, ANSWER_S)))
        except SchedulerSilent:
            silent.update(holder.job_id for holder in holders if holder.job_id not in known)
            break
        except SchedulerOutputError:
            silent.add(job_id)
    return tuple(_alive(holder, ours, None if holder.job_id in silent else (known.get(holder.job_id),)) for holder in holders)


def _our_start(job_ids: set[str]) -> tuple[str | None, int]:
    """Our job and its start, if one of these is it."""
    job_id = os.environ.get(JOB_ID)
    try:
        return (job_id, restart_count(os.environ)) if job_id in job_ids else (None, 0)
    except AllocationError:
        return (None, 0)


def _alive(holder: Holder, ours: tuple[str | None, int], said: tuple[JobInfo | None] | None) -> bool | None:
    """`said`: what the server knows of its job; None where it said nothing."""
    if holder.job_id == ours[0] and holder.restart_count < ours[1]:
        return False
    alive = holder_lives(holder, same_machine=False) if holder.host == os.uname().nodename else None
    if alive is False or (holder.job_id, holder.restart_count) == ours:
        return alive
    return None if said is None else said[0] is not None and is_running(said[0], holder.restart_count)


def describe_holder(holder: Holder) -> str:
    """Pure: who holds a run, and how to end that."""
    return f"PBS job {holder.job_id} (process {holder.pid} on {holder.host}); end it with `qdel {holder.job_id}`"
