"""Our jobs in Grid Engine's queue: a list, and one question for what the list does not say of those that are ours by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Final

from base.account import account_name
from base.errors import SchedulerOutputError
from cluster.schedulers.asking import asked, refusal_words
from cluster.schedulers.jobs import QueuedJob, parse_work
from cluster.schedulers.limits import ANSWER_S
from cluster.schedulers.sge.answers import Listed, context_of, ended_by_of, parse_accounting, submitted_of, why_waiting
from cluster.schedulers.sge.batch_script import WORK
from cluster.schedulers.sge.query import NO_SUCH_JOB, SGE, job_details, listed_jobs

OURS: Final = "slipway-"
ON_SILENT: Final = ("-qs", "u")
"""Of qstat: queues on nodes of which qmaster does not hear. It lists a job by the queue of its first node only; of a job that has lost
another one it hears the end."""
ENDED_TOO: Final = "prsz"
"""Of `qstat -s`: pending, running, suspended, and those that have just ended."""


def our_jobs(patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
    """All of this user that are not over, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    listed = listed_jobs(patience_s, timeout_s)
    ours = [job for job in listed if job.name.startswith(OURS)]
    details = job_details([job.job_id for job in ours], patience_s, timeout_s)
    on_nodes = any(job.stage in ("runs", "ends") for job in ours)
    silent = listed_jobs(patience_s, timeout_s, queues=ON_SILENT) if on_nodes else ()
    return with_lost(joined(listed, details), silent)


def with_lost(jobs: Iterable[QueuedJob], silent: Iterable[Listed]) -> tuple[QueuedJob, ...]:
    """Pure. `silent`: jobs whose first node does not answer; a waiting one has none."""
    nodes = {job.job_id: job.host for job in silent}
    return tuple(replace(job, lost=nodes.get(job.job_id, job.lost)) for job in jobs)


def jobs_named(name: str, patience_s: float) -> tuple[QueuedJob, ...]:
    """Ours of exactly that name, in any stage that qstat still shows, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    return joined((job for job in listed_jobs(patience_s, states=ENDED_TOO) if job.name == name), {})


def known_jobs(job_ids: Sequence[str], patience_s: float) -> tuple[QueuedJob, ...]:
    """Those of them that are still known. How one has ended stands in the accounting, some 15 s late, and not at all where qmaster was
    killed meanwhile: who waits for a job goes by its exit file first. Raises SchedulerSilent, SchedulerOutputError."""
    wanted = set(job_ids)
    listed = [job for job in listed_jobs(patience_s, states=ENDED_TOO) if job.job_id in wanted]
    in_queue = {job.job_id for job in listed if job.stage != "over"}
    records = accounting([job_id for job_id in job_ids if job_id not in in_queue], patience_s)
    known = {job.job_id for job in listed}
    told = [Listed(job_id=job_id, name=record.get("jobname", ""), letters="z", slots=1) for job_id, record in records.items()]
    return joined([*listed, *(job for job in told if job.job_id not in known)], {}, records)


def accounting(job_ids: Sequence[str], patience_s: float) -> dict[str, dict[str, str]]:
    """The last record of each that has one (yet): by one question for all of ours by their names, since qacct reads the whole file of the
    cell for every question; of one job, for that one. Raises SchedulerSilent, SchedulerOutputError."""
    if not job_ids:
        return {}
    which = (job_ids[0],) if len(job_ids) == 1 else (f"{OURS}*",)
    result = asked(SGE, ("qacct", "-o", account_name(), "-j", *which), patience_s, ANSWER_S)
    if result.returncode and not any(words in result.stderr for words in (*NO_SUCH_JOB, "No such file")):
        raise SchedulerOutputError(refusal_words(SGE, result))
    found = {} if result.returncode else parse_accounting(result.stdout)
    return {job_id: found[job_id] for job_id in job_ids if job_id in found}


def joined(
    listed: Iterable[Listed], details: Mapping[str, Mapping[str, str]], records: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[QueuedJob, ...]:
    """Pure: jobs of the list with what else is known of them."""
    return tuple(_queued(job, details.get(job.job_id, {}), (records or {}).get(job.job_id, {})) for job in listed)


def _queued(job: Listed, fields: Mapping[str, str], record: Mapping[str, str]) -> QueuedJob:
    work = parse_work(context_of(fields, WORK))
    return QueuedJob(
        job_id=job.job_id,
        stage=job.stage,
        state=job.words,
        why=why_waiting(job, fields) if job.stage == "waits" else "",
        hold=job.hold,
        advice=job.advice,
        ended_by=ended_by_of(record) if job.stage == "over" else None,
        restarts=int("R" in job.letters),
        submitted=job.submitted if job.submitted is not None else submitted_of(fields),
        expected=job.started,
        name=job.name,
        nodes=job.host,
        lost=job.host if job.starts_again else "",
        directory=fields.get("cwd", ""),
        **({} if work is None else asdict(work)),
    )
