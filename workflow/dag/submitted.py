"""A job that was submitted, and what is known of its end: by its exit file, which it leaves on shared storage, and by the queue. Pure.

An exit code of 0 is an end at once. Any other may be of a start that the scheduler repeats, so the queue must have forgotten the job, by an
answer to a question that was asked later. A job that the queue has forgotten may have left a file that network storage still hides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from cluster.schedulers.jobs import QueuedJob, Work
from workflow.dag.queue_view import QueueView

LATE_S: Final = 60.0
"""So long a file may be hidden, where Snakemake's --latency-wait does not say it."""
Step = Literal["goes on", "done", "failed", "gone"]
"""`gone`: the queue has no such job, and it has left no exit code, so far."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """Times are of the monotonic clock. `asked`: only an answer of the scheduler that is later than this says something of its end; `code`:
    the last exit code that was seen; `gone`: since when it is; `adopted`: another Snakemake has submitted it; `taken_out`: what was the
    matter with it where we have taken it out of the queue."""

    job_id: str
    name: str
    work: Work
    directory: str
    asked: float
    code: int | None = None
    gone: float | None = None
    adopted: bool = False
    taken_out: str = ""


def step(job: Submitted, code: int | None, view: QueueView, now: float) -> tuple[Step, Submitted]:
    """What is known of it now, and the job with what was seen."""
    if code != job.code:
        job = replace(job, code=code, asked=now if code else job.asked)
    if code == 0:
        return "done", job
    if any(queued.job_id == job.job_id for queued in view.jobs):
        return "goes on", replace(job, gone=None)
    if not view.known_since(job.asked):
        return "goes on", job
    if code is not None:
        return "failed", job
    return "gone", replace(job, gone=now if job.gone is None else job.gone)


def is_over(job: Submitted, known: QueuedJob | None, now: float, late_s: float = LATE_S) -> bool:
    """Of a job that has failed or is gone: whether that is its end, by what the scheduler says of it. `late_s`: how late a file is."""
    if known is not None and known.stage != "over":
        return False  # it is on its way back into the queue
    if job.taken_out or job.code is not None or (known is not None and known.ended_by is not None):
        return True
    return job.gone is not None and now - job.gone > late_s


def end_words(job: Submitted, known: QueuedJob | None) -> str:
    """Why a job has failed, in a sentence."""
    code = "and left no exit code" if job.code is None else f"with exit code {job.code}"
    if job.taken_out:
        return f"job {job.job_id} {job.taken_out}"
    ended_by = None if known is None else known.ended_by
    said = {
        "cancelled": "was cancelled",
        "preempted": "was ended for another job",
        "requeued": "was put back into the queue",
        "timeout": "was ended at its time limit",
        "node_lost": "has lost a node",
        "not_started": f"could not be started on {'' if known is None else known.nodes}",
    }.get(ended_by or "", "has failed" if job.code is not None else "is no longer in the queue")
    return f"job {job.job_id} {said} {code}"
