"""Decide whether the holder of a run lives, and requeue jobs, in the way that all schedulers share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from base.errors import SchedulerOutputError, SchedulerSilent, UnsupportedRequest
from cluster.holder import holder_lives
from cluster.schedulers.queries import ANSWER_S, PATIENCE_S, Server, ask
from cluster.types import Allocation, Holder

Job = TypeVar("Job")
Start = tuple[str | None, int]
"""A job's id and the number of its start. The id is None outside of a job."""


def holders_alive(
    holders: Sequence[Holder], ours: Start, by_job: Callable[[Sequence[Holder]], Sequence[bool | None]]
) -> tuple[bool | None, ...]:
    """Return for each holder True if it lives, False if it has ended, and None if that is unknown.

    An earlier start of our own job is over. A holder whose process this host would show is judged by its process. `by_job` asks the
    scheduler about all others.
    """
    told = [_by_process(holder, ours) for holder in holders]
    others = [holder for holder, (is_known, _) in zip(holders, told, strict=True) if not is_known]
    try:
        said = iter(by_job(others) if others else ())
    except SchedulerOutputError:
        said = iter((None,) * len(others))
    return tuple(alive if is_known else next(said) for is_known, alive in told)


def _by_process(holder: Holder, ours: Start) -> tuple[bool, bool | None]:
    """Return whether this host can judge the holder, and the judgement."""
    if holder.job_id == ours[0] and holder.restart_count < ours[1]:
        return True, False
    alive = holder_lives(holder, same_machine=False) if holder.host == os.uname().nodename else None
    return alive is False or (holder.job_id, holder.restart_count) == ours, alive


def each_job_alive(
    holders: Sequence[Holder],
    job_info: Callable[[str, float, float], Job | None],
    is_running: Callable[[Job, int], bool],
    limit_s: float,
) -> Iterator[bool | None]:
    """Yield for each holder whether its job runs, with one query per job and within one time limit.

    `job_info` gets an id, the patience and the time limit of the query. After one job met a silent server, no other job is queried.
    """
    give_up = time.monotonic() + limit_s
    known: dict[str, Job | None] = {}
    unknown: set[str] = set()
    is_silent = False
    for holder in holders:
        left = give_up - time.monotonic()
        if holder.job_id not in known and holder.job_id not in unknown and not is_silent and left > 0:
            try:
                known[holder.job_id] = job_info(holder.job_id, left, max(1.0, min(left, ANSWER_S)))
            except SchedulerOutputError as error:
                is_silent = isinstance(error, SchedulerSilent)
                unknown.add(holder.job_id)
        job = known.get(holder.job_id)
        yield (job is not None and is_running(job, holder.restart_count)) if holder.job_id in known else None


def requeue(
    server: Server, allocation: Allocation, argv: Sequence[str], done: str = "", hint: str = "", patience_s: float = PATIENCE_S
) -> None:
    """Requeue a job by the command `argv`, which prints `done` if it was successful.

    Raises UnsupportedRequest, with a hint, and SchedulerSilent.
    """
    if not allocation.own_job:
        raise UnsupportedRequest(f"job {allocation.job_id} is not this run's alone: it cannot be requeued for it")
    try:
        answer = ask(server, argv, patience_s)
    except SchedulerSilent:
        raise
    except SchedulerOutputError as error:
        raise UnsupportedRequest(f"job {allocation.job_id} cannot be requeued{hint}: {error}") from error
    if done not in answer:
        raise UnsupportedRequest(f"job {allocation.job_id} cannot be requeued: {answer.strip() or f'{server.title} does not know it'}")
