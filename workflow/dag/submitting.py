"""Submit the jobs of one Snakemake once to a scheduler's queue, find them again, cancel them.

The executor (snakemake_executor_plugin_slipway) decides what it reports to Snakemake; watched_jobs.py, how jobs end.
"""

import contextlib
import math
import os
import secrets
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from base.errors import Cancelled, SchedulerOutputError, SchedulerSilent, SubmitError, SubmitUnsure
from base.sanitize import printable
from cluster.schedulers import Jobs, jobs_of
from cluster.schedulers.jobs import RUN, JobSize, QueuedJob, Work, jobs_of_rule
from workflow.dag.queue_view import QUEUE_S, poll_queue
from workflow.dag.watched_jobs import JOBS_DIR, LATE_S, Ended, Key, Submitted, WatchedJobs, adopted, run_job
from workflow.run.record.step_clock import LOGIN, login_s
from workflow.run.storage.results import nodes_to_avoid
from workflow.study.paths import run_dir

FRESH_S: Final = 5.0
"""The seconds for which an answer of the queue counts when a job is submitted: one question serves many submissions."""
REPORTED_AFTER_S: Final = 10.0
LONGEST_S: Final = 30.0
"""The most seconds between two questions to the queue by who waits for jobs."""
OLD_S: Final = 86400.0
"""The seconds for which the exit code of a job is kept for all who wait for it."""
CANCEL_S: Final = 30.0
"""The seconds for which a silent scheduler is asked to cancel jobs, by somebody who has typed Ctrl-C."""


class Submissions:
    """The submissions of a study, marked `mark`, in `directory`. They must be closed.

    `ended` is called in the thread of this object, all else in Snakemake's.
    """

    def __init__(self, scheduler: str, mark: str, directory: str, ended: Ended, late_s: float = LATE_S) -> None:
        jobs = jobs_of(scheduler)
        assert jobs is not None, "a profile whose runs are jobs, and a scheduler without"
        self.jobs: Jobs = jobs
        self._mark, self._directory = mark, directory
        self.watched = WatchedJobs(jobs, poll_queue(scheduler, jobs, LONGEST_S), ended, print_message, late_s)
        self._others: dict[Key, QueuedJob] = {}
        self._looked = -math.inf
        self._submitting: str | None = None

    def earlier(self, rule: str, wildcards: str) -> Submitted | None:
        """Return the job that another Snakemake has in the queue for the same, or has left there.

        It is waited for, once, and no other is submitted. Raises SchedulerOutputError; Cancelled where this Snakemake has submitted one
        that somebody has cancelled, since it would only be tried once more.
        """
        cancelled = self.watched.cancelled.get((rule, wildcards))
        if cancelled is not None:
            ends = f"{self.jobs.SERVER.cancel} {cancelled}"
            raise Cancelled(f"job {cancelled} was cancelled, by `{ends}` or by an administrator; it is not tried again in this call")
        self._look_for_others()
        job = self._others.pop((rule, wildcards), None)
        if job is None:
            return None
        print_message(f"job {job.job_id} is in the queue already for {wildcards or rule}: it is waited for")
        work = Work(mark=self._mark, rule=rule, wildcards=wildcards)
        return adopted(job, Submitted(job_id=job.job_id, name=job.name, work=work, directory=self._directory, asked_at=0.0))

    def _look_for_others(self) -> None:
        """Look for jobs in the queue for this study that are not ours, unless that was done just now."""
        if time.monotonic() - self._looked < FRESH_S:
            return
        if self._looked == -math.inf:
            remove_old_exit_files(Path(self._directory, JOBS_DIR))
        queued = [job for job in self._queued() if job.job_id not in self.watched.own]
        rules = {job.rule for job in queued if job.mark == self._mark}
        self._others = {(rule, words): job for rule in rules for words, job in jobs_of_rule(queued, self._mark, rule).items()}
        self._looked = time.monotonic()

    def submit(self, rule: str, wildcards: str, size: JobSize, command: str) -> Submitted:
        """Submit a job for the shell command of a rule once, however long the scheduler is silent.

        A run's asks for other nodes than those that failed it before; where the scheduler has no others, for any. Raises SubmitError,
        ConfigError, StorageError.
        """
        failed = nodes_to_avoid(run_dir(Path(self._directory), wildcards), time.time()) if rule == RUN else ()
        failed = tuple(dict.fromkeys((*self.watched.lost.get((rule, wildcards), ()), *failed)))  # who lost its node has recorded nothing
        if failed:
            try:
                return self._submit(rule, wildcards, replace(size, exclude=failed), command)
            except SubmitUnsure:  # it may be in the queue: another would be a second one
                raise
            except SubmitError as error:
                print_message(f"no job without {', '.join(failed)}, where {wildcards} failed before, so with any nodes: {error}")
        return self._submit(rule, wildcards, size, command)

    def _submit(self, rule: str, wildcards: str, size: JobSize, command: str) -> Submitted:
        work = Work(mark=self._mark, rule=rule, wildcards=wildcards)
        umask = os.umask(0o077)
        os.umask(umask)
        job = run_job(work, size, command, self._directory, secrets.token_hex(4), umask)
        if (login := login_s(os.environ)) is not None:
            job = replace(job, environ=(*job.environ, (LOGIN, str(login))))
        Path(job.output).parent.mkdir(parents=True, exist_ok=True)
        self._submitting = job.name
        job_id = self.jobs.submit(job, math.inf)
        return Submitted(job_id=job_id, name=job.name, work=work, directory=self._directory, asked_at=time.monotonic())

    def watch(self, job: Submitted, what: Any) -> None:
        """Watch a job until its end, at which `ended` is called with `what`."""
        self.watched.watch(job, what)
        self._submitting = None

    def cancel(self) -> None:
        """Cancel all jobs that are watched, and the one whose submission was cut off, which the queue may hold nevertheless.

        Those of another Snakemake, which may live, are left alone. Another Ctrl-C does not cut it off, although a terminal sends it to
        the whole group, where it would end the scheduler's own command too.
        """
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._cancel()
        finally:
            signal.signal(signal.SIGINT, before)

    def _cancel(self) -> None:
        self.close()
        job_ids = self.watched.job_ids()
        try:
            if self._submitting is not None:
                job_ids += [job.job_id for job in self.jobs.jobs_named(self._submitting, CANCEL_S) if job.stage != "over"]
            if job_ids:
                self.jobs.cancel(job_ids, CANCEL_S)
        except SchedulerOutputError as error:
            ends = f"; end what is left: `{self.jobs.SERVER.cancel} {' '.join(job_ids)}`" if job_ids else ""
            print_message(f"jobs could not be cancelled; look with `{self.jobs.SERVER.list}`{ends}: {error}")

    def close(self) -> None:
        """Watch no more."""
        self.watched.close()

    def _queued(self) -> tuple[QueuedJob, ...]:
        """Ask for the queue until there is an answer: who submitted without it could submit a second job."""
        try:
            return self.jobs.our_jobs(REPORTED_AFTER_S, QUEUE_S)
        except SchedulerSilent:
            print_message(f"{self.jobs.SERVER.name} does not answer; nothing is submitted until it does")
            return self.jobs.our_jobs(math.inf, QUEUE_S)


def remove_old_exit_files(place: Path) -> None:
    """Remove the exit codes of jobs for which nobody waits any more."""
    with contextlib.suppress(OSError):
        for file in place.glob("*.exit"):
            if time.time() - file.stat().st_mtime > OLD_S:
                file.unlink(missing_ok=True)


def log_reason(log: Path, scheduler: str, words: str) -> None:
    """Write why there is no job where its run is looked for: into the log that the job would have written.

    A log that cannot be written ends nothing: Snakemake says it in its own.
    """
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {scheduler} ERROR {words.splitlines()[0]}\n")


def print_message(words: str) -> None:
    """Print a message for the person at the terminal, which may be gone."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"slipway: {printable(words)}\n")
        sys.stderr.flush()
