"""Our jobs in PBS's queue: one question for all, and which study and which run each job belongs to.

A job for one run or shard says so in the variable SLIPWAY_WORK, with which it was submitted. A job of `slipway submit` says it by its name.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

from base.account import account_name
from cluster.schedulers.asking import ask
from cluster.schedulers.jobs import QueuedJob, parse_work
from cluster.schedulers.limits import ANSWER_S
from cluster.schedulers.pbs.answers import JobInfo, parse_jobs
from cluster.schedulers.pbs.query import PBS, job_info
from cluster.schedulers.pbs.states import advice_of, ended_by, hold_of, plain_reason, stage_of, word_of

ALL: Final = ("qstat", "-f", "-F", "json")
"""All that are not over, of everybody: with names of jobs, OpenPBS shows the first only; 100 jobs take 0.4 s."""
FEW: Final = 16
"""So many jobs are asked for one by one, 0.1 s each: the jobs of everybody may be thousands."""


def our_jobs(patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
    """All of this user that are not over, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    give_up = time.monotonic() + patience_s
    ids = ask(PBS, ("qselect", "-u", account_name()), patience_s, timeout_s).split()
    left = max(0.0, give_up - time.monotonic())
    if len(ids) > FEW:
        found = queued_jobs(parse_jobs(ask(PBS, ALL, left, timeout_s)), account_name())
    else:
        found = known_jobs(ids, left, timeout_s, history=False)
    return tuple(job for job in found if job.stage != "over")


def jobs_named(name: str, patience_s: float) -> tuple[QueuedJob, ...]:
    """Ours of exactly that name, in any stage that the server still knows, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    answer = ask(PBS, ("qselect", "-x", "-u", account_name(), "-N", name), patience_s)
    return tuple(job for job in known_jobs(answer.split(), patience_s) if job.name == name)


def known_jobs(job_ids: Sequence[str], patience_s: float, timeout_s: float = ANSWER_S, *, history: bool = True) -> tuple[QueuedJob, ...]:
    """Those of them that the server knows, in any state. One question each, of 0.1 s: OpenPBS shows only the first of several in JSON, and
    all that are over, of everybody, may be two weeks' jobs. They are few: those that have left the queue. Raises SchedulerSilent,
    SchedulerOutputError."""
    give_up = time.monotonic() + patience_s
    found = []
    for job_id in job_ids:
        left = max(0.0, give_up - time.monotonic())
        job = job_info(job_id, left, timeout_s, history=history)
        if job is not None:
            found.append(job)
    return queued_jobs(found, account_name())


def queued_jobs(jobs: Iterable[JobInfo], owner: str) -> tuple[QueuedJob, ...]:
    """Pure: those of `owner`, oldest first."""
    ours = (queued_job(job) for job in jobs if job.owner == owner)
    return tuple(sorted(ours, key=lambda job: (job.submitted or 0.0, len(job.job_id), job.job_id)))


def queued_job(job: JobInfo) -> QueuedJob:
    """Pure: what it tells of itself, in words."""
    stage = stage_of(job.state)
    work, end = parse_work(job.work), ended_by(job) if stage == "over" else None
    return QueuedJob(
        job_id=job.job_id,
        stage=stage,
        state=word_of(job.state),
        why=plain_reason(job) if stage == "waits" else "",
        hold=hold_of(job),
        advice=advice_of(job),
        ended_by=end,
        restarts=job.restarts,
        submitted=job.submitted,
        expected=job.started,
        name=job.name,
        nodes=",".join(job.hosts),
        directory=job.directory,
        lost=job.hosts[0] if end == "not_started" and job.hosts else "",
        **({} if work is None else asdict(work)),
    )
