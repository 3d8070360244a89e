"""`slipway submit --wait`: follow a job to its end, one question per interval, and say what changes. A silent controller ends nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from base.errors import Cancelled, Preempted, RecordError, SchedulerOutputError
from base.units import counted
from cluster.slurm.query import JobInfo, jobs_named
from cluster.slurm.submissions import ACTIVE, Submission, intervals, plain_reason
from workflow.commands import show
from workflow.commands.progress import waiting
from workflow.study.next_command import command
from workflow.study.paths import record_path
from workflow.study.study import Study

PATIENCE_S = 10.0


def follow(study: Study, job: Submission) -> None:
    """Return when all runs have a result. Raises Cancelled, Preempted or RecordError when the job ended before that."""
    sys.stdout.flush()
    try:
        with waiting(f"job {job.job_id}", every_s=None) as now:
            last = _watch(study, job, now)
    except KeyboardInterrupt:
        show.line(f"job {job.job_id} goes on; `scancel {job.job_id}` ends it")
        raise
    _end(study, job, last)


def _watch(study: Study, job: Submission, now: Callable[[str], None]) -> JobInfo | None:
    """What Slurm said of the job last, when it is over; what changes is said in a line, and on a terminal how it stands meanwhile."""
    said = ""
    last: JobInfo | None = None
    pauses = intervals()
    while True:
        time.sleep(next(pauses))
        info, words = _look(job)
        last = info or last
        if info is not None and info.state in ACTIVE:
            words = f"{_state_words(info)}; {_runs_words(study)}"
        elif not words:
            return last
        if words != said:
            _say(f"{time.strftime('%H:%M:%S')} job {job.job_id}: {words}")
            now(words)
            said, pauses = words, intervals()


def _say(words: str) -> None:
    """Now, also into a pipe."""
    show.line(words)
    sys.stdout.flush()


def _look(job: Submission) -> tuple[JobInfo | None, str]:
    """What Slurm knows of the job; or no job and why nobody knows."""
    try:
        found = jobs_named(job.name, PATIENCE_S)
    except SchedulerOutputError:
        return None, "slurmctld does not answer; the job goes on"
    return (found[-1] if found else None), ""


def _end(study: Study, job: Submission, last: JobInfo | None) -> None:
    left = len(study.runs) - num_results(study)
    state = last.state if last is not None else "gone"
    show.line(f"job {job.job_id} has ended ({state.lower()}); {_runs_words(study)}")
    if not left:
        return
    words = f"{counted(left, 'run has', 'runs have')} no result; `{command(study, 'submit')}` continues with them"
    if state == "CANCELLED":
        raise Cancelled(f"job {job.job_id} was cancelled: {words}")
    if state in ("TIMEOUT", "PREEMPTED", "NODE_FAIL"):
        raise Preempted(f"job {job.job_id} ended with {state}: {words}")
    raise RecordError(f"job {job.job_id} ended: {words}; `{command(study, 'status')}` says why")


def num_results(study: Study) -> int:
    """How many runs have a record. From storage: nobody is asked."""
    runs: Path = study.results_dir / "runs"
    there = {entry.name for entry in runs.iterdir()} if runs.is_dir() else set()
    return sum(run.run_id in there and record_path(study.results_dir, run.run_id).exists() for run in study.runs)


def _state_words(info: JobInfo) -> str:
    if info.state == "PENDING":
        starts = f", expected to start {time.strftime('%d %b %H:%M', time.localtime(info.start_time))}" if info.start_time else ""
        return f"waits: {plain_reason(info.reason)}{starts}"
    return f"{info.state.lower()} on {info.node_list}" if info.node_list else info.state.lower()


def _runs_words(study: Study) -> str:
    return f"{num_results(study)} of {counted(len(study.runs), 'run')} have a result"
