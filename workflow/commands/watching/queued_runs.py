"""Which runs of a study wait in the scheduler's queue, asked once: for commands that look at a study from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from base.errors import SchedulerOutputError, SchedulerSilent
from cluster.schedulers import Scheduler, get_scheduler, holder_alive, jobs_of
from cluster.schedulers.jobs import RUN, QueuedJob, job_words, jobs_of_rule, jobs_of_submissions, mark_of
from cluster.types import Holder
from workflow.commands.watching.state import RunState, run_states
from workflow.run.storage.asked_result import parse_asked
from workflow.study.study import Study

ASKED_S: Final = 4.0
"""For the queue, and as long for all holders: people wait for the command."""
UNKNOWN: Final = "whether runs wait in its queue, and whether those that run still live, is not known"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """`silence`: why it is not all that is to know, "" where it is; `silent`: the scheduler is here, and does not answer."""

    states: tuple[RunState, ...]
    silence: str = ""
    silent: bool = False


def standing(study: Study) -> Standing:
    """Where the runs of a study stand, by storage and by the scheduler; within seconds, also where that is silent."""
    name = study.site.scheduler
    offered = jobs_of(name)
    if offered is None:
        return Standing(states=run_states(study))
    try:
        jobs = offered.our_jobs(0.0, ASKED_S)
    except SchedulerSilent:
        silence = f"{offered.SERVER} does not answer: {UNKNOWN} now"
        return Standing(states=run_states(study, _elsewhere(name)), silence=silence, silent=True)
    except SchedulerOutputError:
        return Standing(states=run_states(study, _elsewhere(name)), silence=f"{offered.TITLE} cannot be asked from here: {UNKNOWN}")
    answers = _Answers(get_scheduler(name), jobs)
    return Standing(states=with_queue(run_states(study, answers.alive), study, jobs, time.time()))


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


def _elsewhere(silent: str) -> Callable[[Holder], bool | None]:
    """Whether holders live, of other schedulers than the one that is silent."""
    return lambda holder: None if holder.scheduler == silent else holder_alive(holder)


class _Answers:
    """Whether holders live: of jobs of ours the queue has told it already, others are asked for, one question each, all within a limit."""

    def __init__(self, scheduler: Scheduler, jobs: Sequence[QueuedJob]) -> None:
        self._scheduler = scheduler
        self._living = {(job.job_id, job.restarts) for job in jobs if not job.waits}
        self._give_up = time.monotonic() + ASKED_S

    def alive(self, holder: Holder) -> bool | None:
        if holder.scheduler != self._scheduler.NAME:
            return holder_alive(holder)
        if (holder.job_id, holder.restart_count) in self._living:
            return True
        left = self._give_up - time.monotonic()
        return self._scheduler.holders_alive((holder,), left)[0] if left > 0 else None
