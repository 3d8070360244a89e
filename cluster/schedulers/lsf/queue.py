"""Our jobs in LSF's queues: a list, and one question for what the list does not say of those that are ours by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from cluster.schedulers.jobs import QueuedJob, parse_work
from cluster.schedulers.limits import ANSWER_S
from cluster.schedulers.lsf.answers import HELD, Details, Listed, ended_by_of, why_waiting
from cluster.schedulers.lsf.query import job_details, listed_jobs

OURS: Final = "slipway-"
ENDED_TOO: Final = "-a"


def our_jobs(patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
    """All of this user that are not over, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    listed = listed_jobs(patience_s, timeout_s)
    details = job_details([job.job_id for job in listed if job.name.startswith(OURS)], patience_s, timeout_s)
    return joined(listed, details)


def jobs_named(name: str, patience_s: float) -> tuple[QueuedJob, ...]:
    """Ours of exactly that name, in any stage that bjobs still shows, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    return tuple(job for job in joined(listed_jobs(patience_s, ANSWER_S, ENDED_TOO), {}) if job.name == name)


def known_jobs(job_ids: Sequence[str], patience_s: float) -> tuple[QueuedJob, ...]:
    """Those of them that LSF still knows: for an hour after their end where the site says nothing else (CLEAN_PERIOD). Raises
    SchedulerSilent, SchedulerOutputError."""
    listed = listed_jobs(patience_s, ANSWER_S, ENDED_TOO, *job_ids) if job_ids else ()
    return joined(listed, job_details([job.job_id for job in listed if job.stage == "over"], patience_s))


def joined(listed: Iterable[Listed], details: Mapping[str, Details]) -> tuple[QueuedJob, ...]:
    """Pure: jobs of the list with what else is known of them."""
    return tuple(_queued(job, details.get(job.job_id)) for job in listed)


def _queued(job: Listed, details: Details | None) -> QueuedJob:
    name, _, words = job.name.partition(" ")
    work, known = parse_work(words), details or Details()
    return QueuedJob(
        job_id=job.job_id,
        stage=job.stage,
        state=job.words,
        why=why_waiting(job, known) if job.stage == "waits" else "",
        hold="held" if job.state == HELD else "",
        advice=f"`bresume {job.job_id}` lets it go" if job.state == HELD else "",
        ended_by=None if details is None else ended_by_of(job.state, details),
        submitted=known.submitted or job.submitted,
        expected=known.started or job.started,
        name=name,
        nodes=job.hosts,
        directory=job.directory,
        **({} if work is None else asdict(work)),
    )
