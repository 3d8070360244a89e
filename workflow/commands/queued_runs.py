"""Which runs of a study wait in Slurm's queue, asked once: for commands that look at a study from outside."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from base.errors import SchedulerOutputError, SchedulerSilent
from cluster.schedulers import holder_alive, slurm
from cluster.schedulers.slurm.queue import RUN, QueuedJob, jobs_of_rule, jobs_of_submissions, mark_of, our_jobs
from cluster.schedulers.slurm.submissions import job_words
from cluster.types import Holder
from workflow.commands.state import RunState, run_states
from workflow.dag.execution import SLURM
from workflow.run.storage.asked import parse_asked
from workflow.study.study import Study

QUEUE_S: Final = 4.0
HOLDERS_S: Final = 4.0
SILENCE: Final = (
    "Slurm's controller does not answer: whether runs wait in its queue, and whether those that run still live, is not known now"
)

ELSEWHERE: Final = "Slurm cannot be asked from here: whether runs wait in its queue, and whether those that run still live, is not known"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """`silence`: why it is not all that is to know, "" where it is."""

    states: tuple[RunState, ...]
    silence: str = ""


def standing(study: Study) -> Standing:
    """Where the runs of a study stand, by storage and by the scheduler; within seconds, also where that is silent."""
    if study.site.scheduler != SLURM:
        return Standing(states=run_states(study))
    try:
        jobs = our_jobs(0.0, QUEUE_S)
    except SchedulerSilent:
        return Standing(states=run_states(study, _alive_elsewhere), silence=SILENCE)
    except SchedulerOutputError:
        return Standing(states=run_states(study, _alive_elsewhere), silence=ELSEWHERE)
    return Standing(states=with_queue(run_states(study, _Answers(jobs).alive), study, jobs, time.time()))


def with_queue(states: Sequence[RunState], study: Study, jobs: Sequence[QueuedJob], now: float) -> tuple[RunState, ...]:
    """Pure: runs that have neither a result nor a holder, and a job of their own or one for the whole study, are queued."""
    own = {parse_asked(name)[0]: job for name, job in jobs_of_rule(jobs, mark_of(study.name, str(study.results_dir)), RUN).items()}
    whole = next(iter(jobs_of_submissions(jobs, study.name)), None)
    found = []
    for state in states:
        job = own.get(state.run.run_id)
        if state.state not in ("missing", "prevented") or (job is None and whole is None):
            found.append(state)
            continue
        words = job_words(job, now) if job is not None else _of_whole(whole, now) if whole is not None else ""
        found.append(replace(state, state="queued", status=None, reason=words))
    return tuple(found)


def _of_whole(job: QueuedJob, now: float) -> str:
    words = job_words(job, now)
    return words if job.waits else f"{words}; the run has not begun in it"


def _alive_elsewhere(holder: Holder) -> bool | None:
    """Of other schedulers than the one that is silent."""
    return None if holder.scheduler == slurm.NAME else holder_alive(holder)


class _Answers:
    """Whether holders live: of jobs of ours the queue has told it already, others are asked for, one question each, all within a limit."""

    def __init__(self, jobs: Sequence[QueuedJob]) -> None:
        self._living = {(job.job_id, job.restarts) for job in jobs if not job.waits}
        self._give_up = time.monotonic() + HOLDERS_S

    def alive(self, holder: Holder) -> bool | None:
        if holder.scheduler != slurm.NAME:
            return _alive_elsewhere(holder)
        if (holder.job_id, holder.restart_count) in self._living:
            return True
        left = self._give_up - time.monotonic()
        return slurm.holders_alive((holder,), left)[0] if left > 0 else None
