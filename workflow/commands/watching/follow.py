"""Follow a job to its end on the same screen as `slipway run`, for `slipway submit --wait`. A silent controller ends nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from base.errors import Cancelled, Preempted, RecordError, SchedulerOutputError
from base.units import counted
from cluster.schedulers.jobs import Jobs, QueuedJob
from workflow.commands.watching import output
from workflow.commands.watching.live_table import DRAW_S, Refresher, Shown, shown
from workflow.commands.watching.watch import Watch
from workflow.dag.queue_view import AskedQueue, asked_queue
from workflow.dag.watched_jobs import LostJobs
from workflow.study.next_command import command
from workflow.study.paths import record_path
from workflow.study.study import Study

PATIENCE_S = 10.0


def follow(study: Study, jobs: Jobs, job: QueuedJob, asked: Sequence[str], print_ending: Callable[[], None]) -> None:
    """Return when all runs have a result. Raises Cancelled, Preempted or RecordError when the job ended before that. `asked`: its runs;
    `print_ending`: prints table and report of the study when the job has ended."""
    sys.stdout.flush()
    queue = asked_queue(study.site.scheduler, jobs)
    try:
        with shown() as view:
            last = _watch(Watch(study=study, asked=asked, queue=queue, submission=job.name), jobs, job, queue, view)
    except KeyboardInterrupt:
        output.line(f"job {job.job_id} goes on; `{jobs.CANCEL} {job.job_id}` ends it")
        raise
    finally:
        queue.stop()
    output.line(f"job {job.job_id} has ended ({_state(last)}); {_runs_words(study)}")
    print_ending()
    _end(study, job, last)


def _watch(watch: Watch, jobs: Jobs, job: QueuedJob, queue: AskedQueue, view: Shown) -> QueuedJob | None:
    """Return what the scheduler said of the job last, when it is over; None if it has forgotten it."""
    refresher, lost = Refresher(watch.look), LostJobs(jobs, output.line)
    asked: float | None = None
    info: QueuedJob | None = None
    while True:
        time.sleep(DRAW_S)
        refresher.draw(view)
        found = queue.view()
        if lost.take_out(found, {job.job_id}):
            queue.ask_soon()
        if found.began is None or found.began == asked or any(one.job_id == job.job_id for one in found.jobs):
            continue
        asked = found.began
        known, info = _ask(jobs, job)
        if known and (info is None or info.stage == "over"):
            break
    refresher.stop(view)
    return info


def _ask(jobs: Jobs, job: QueuedJob) -> tuple[bool, QueuedJob | None]:
    """Return whether the scheduler answers, and what it knows of a job that is not in the queue any more."""
    try:
        found = jobs.jobs_named(job.name, PATIENCE_S)
    except SchedulerOutputError:
        return False, None
    return True, (found[-1] if found else None)


def _end(study: Study, job: QueuedJob, last: QueuedJob | None) -> None:
    left = len(study.runs) - num_results(study)
    if not left:
        return
    words = f"{counted(left, 'run has', 'runs have')} no result; `{command(study, 'submit')}` continues with them"
    ended_by = None if last is None else last.ended_by
    if ended_by == "cancelled":
        raise Cancelled(f"job {job.job_id} was cancelled: {words}")
    if ended_by is not None:
        raise Preempted(f"job {job.job_id} ended with {_state(last)}: {words}")
    raise RecordError(f"job {job.job_id} ended: {words}; `{command(study, 'status')}` says why")


def _state(last: QueuedJob | None) -> str:
    return last.state if last is not None else "gone"


def num_results(study: Study) -> int:
    """Count the runs that have a record. Storage alone is read."""
    runs: Path = study.results_dir / "runs"
    there = {entry.name for entry in runs.iterdir()} if runs.is_dir() else set()
    return sum(run.run_id in there and record_path(study.results_dir, run.run_id).exists() for run in study.runs)


def _runs_words(study: Study) -> str:
    return f"{num_results(study)} of {counted(len(study.runs), 'run')} {'has' if len(study.runs) == 1 else 'have'} a result"
