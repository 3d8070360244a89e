"""The jobs that one Snakemake has in a scheduler's queue: submitted once, waited for, cancelled. What Snakemake itself is told, decides its
executor (snakemake_executor_plugin_slipway).

Their exit files are looked for every second in one directory. The queue is asked by one question for all, in a thread of its own, from 5 s
to half a minute apart: a scheduler that is silent delays no end that storage tells, and no job is forgotten while it is.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from base.errors import Cancelled, SchedulerOutputError, SchedulerSilent, SubmitError
from cluster.exit_file import read_exit
from cluster.schedulers import jobs_of
from cluster.schedulers.jobs import RUN, Jobs, JobSize, QueuedJob, Work, jobs_of_rule
from workflow.dag.lost_jobs import LostJobs
from workflow.dag.queue_view import QUEUE_S, QueueView, asked_queue
from workflow.dag.run_job import PLACE, exit_file, run_job
from workflow.dag.submitted import LATE_S, Submitted, end_words, is_over, step
from workflow.run.record.login import LOGIN, login_s
from workflow.run.storage.failed_nodes import nodes_to_avoid
from workflow.study.paths import run_dir

LOOK_S: Final = 1.0
LONGEST_S: Final = 30.0
"""Between two questions for the queue, at most."""
SAID_AFTER_S: Final = 10.0
OLD_S: Final = 86400.0
"""How long the exit code of a job is kept for all who wait for it."""
CANCEL_S: Final = 30.0
"""So long a scheduler that is silent is asked to cancel jobs, by somebody who has typed Ctrl-C."""

Ended = Callable[[Any, str | None], None]
"""Called for each job with what was handed over for it, and why it has failed; None: it has not."""


class Submissions:
    """Of a study, marked `mark`, in `directory`. `ended` is called in a thread of ours. To be closed."""

    def __init__(self, scheduler: str, mark: str, directory: str, ended: Ended, late_s: float = LATE_S) -> None:
        jobs = jobs_of(scheduler)
        assert jobs is not None, "a profile whose runs are jobs, and a scheduler without"
        self.jobs: Jobs = jobs
        self._scheduler, self._mark, self._directory, self._ended, self._late_s = scheduler, mark, directory, ended, late_s
        self._lock = threading.Lock()
        self._watched: dict[str, tuple[Submitted, Any]] = {}
        self._cancelled: dict[tuple[str, str], str] = {}
        self._lost: dict[tuple[str, str], tuple[str, ...]] = {}
        self._lost_jobs = LostJobs(jobs, _say)
        self._before: dict[tuple[str, str], QueuedJob] | None = None
        self._submitting: str | None = None
        self._silent = False
        self._queue = asked_queue(scheduler, jobs, LONGEST_S)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="jobs", daemon=True)
        self._thread.start()

    # -- in Snakemake's own thread

    def earlier(self, rule: str, wildcards: str) -> Submitted | None:
        """The job that an earlier Snakemake, which was killed, has left in the queue for the same: it is waited for, once, and no other is
        submitted. Raises SchedulerOutputError; Cancelled where this Snakemake has submitted one that somebody has cancelled, since it
        would only be tried once more."""
        cancelled = self._cancelled.get((rule, wildcards))
        if cancelled is not None:
            ends = self.jobs.cancel_words([cancelled])
            raise Cancelled(f"job {cancelled} was cancelled, by `{ends}` or by an administrator; it is not tried again in this call")
        if self._before is None:
            remove_old(Path(self._directory, PLACE))
            queued = self._queued()
            rules = {job.rule for job in queued if job.mark == self._mark}
            self._before = {(name, words): job for name in rules for words, job in jobs_of_rule(queued, self._mark, name).items()}
        job = self._before.pop((rule, wildcards), None)
        if job is None:
            return None
        _say(f"job {job.job_id} is in the queue already for {wildcards or rule}: it is waited for")
        work = Work(mark=self._mark, rule=rule, wildcards=wildcards)
        directory = job.directory or self._directory
        return Submitted(job_id=job.job_id, name=job.name, work=work, directory=directory, asked=time.monotonic(), adopted=True)

    def submit(self, rule: str, wildcards: str, size: JobSize, command: str) -> Submitted:
        """A job for the shell command of a rule, submitted once, however long the scheduler is silent. A run's asks for other nodes than
        those that failed it before; where the scheduler has no others, for any. Raises SubmitError, ConfigError, StorageError."""
        failed = nodes_to_avoid(run_dir(Path(self._directory), wildcards), time.time()) if rule == RUN else ()
        failed = tuple(dict.fromkeys((*self._lost.get((rule, wildcards), ()), *failed)))  # who lost its node has recorded nothing
        if failed:
            try:
                return self._submit(rule, wildcards, replace(size, exclude=failed), command)
            except SubmitError as error:
                _say(f"no job without {', '.join(failed)}, where {wildcards} failed before, so with any nodes: {error}")
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
        return Submitted(job_id=job_id, name=job.name, work=work, directory=self._directory, asked=time.monotonic())

    def watch(self, job: Submitted, what: Any) -> None:
        """From now on; `ended` hears of its end with `what`."""
        with self._lock:
            self._watched[job.job_id] = (job, what)
            self._submitting = None
        self._queue.ask_soon()

    def cancel(self) -> None:
        """Ctrl-C: all that are watched, and the one whose submission was cut off, which the queue may hold nevertheless. It is not
        cut off by another Ctrl-C, which would end the scheduler's own command too: a terminal sends it to the whole group."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._cancel()
        finally:
            signal.signal(signal.SIGINT, before)

    def _cancel(self) -> None:
        self.close()
        with self._lock:
            job_ids = list(self._watched)
        try:
            if self._submitting is not None:
                job_ids += [job.job_id for job in self.jobs.jobs_named(self._submitting, CANCEL_S) if job.stage != "over"]
            if job_ids:
                self.jobs.cancel(job_ids, CANCEL_S)
        except SchedulerOutputError as error:
            ends = f"; end what is left: `{self.jobs.cancel_words(job_ids)}`" if job_ids else ""
            _say(f"jobs could not be cancelled; look with `{self.jobs.list_words()}`{ends}: {error}")

    def close(self) -> None:
        """Watch no more."""
        self._over.set()
        self._queue.stop()
        self._thread.join(2 * LOOK_S)

    def _queued(self) -> tuple[QueuedJob, ...]:
        """All that is in the queue, asked for until there is an answer: who submitted without it could submit a second job."""
        try:
            return self.jobs.our_jobs(SAID_AFTER_S, QUEUE_S)
        except SchedulerSilent:
            _say(f"{self.jobs.SERVER} does not answer; nothing is submitted until it does")
            return self.jobs.our_jobs(math.inf, QUEUE_S)

    # -- in our thread

    def _go_on(self) -> None:
        while not self._over.wait(LOOK_S):
            with contextlib.suppress(OSError):  # storage that is away tells of no end
                self._look()

    def _look(self) -> None:
        self._tell_silence()
        with self._lock:
            watched = dict(self._watched)
        files = {directory: _names(Path(directory, PLACE)) for directory in {job.directory for job, _ in watched.values()}}
        view, now = self._queue.view(), time.monotonic()
        watched |= self._take_out_lost(view, watched)
        doubtful: dict[str, Submitted] = {}
        for job_id, (before, _) in watched.items():
            file = Path(exit_file(before.directory, before.name))
            found, job = step(before, read_exit(file) if file.name in files[before.directory] else None, view, now)
            if job.code and job.code != before.code:
                self._queue.ask_soon()
            with self._lock:
                self._watched[job_id] = (job, self._watched[job_id][1])
            if found == "done":
                self._end(job, None)
            elif found != "goes on" and (job.code is not None or job.gone == now or now - (job.gone or now) > self._late_s):
                doubtful[job_id] = job
        if doubtful:
            self._end_doubtful(doubtful, now)

    def _take_out_lost(self, view: QueueView, watched: Mapping[str, tuple[Submitted, Any]]) -> dict[str, tuple[Submitted, Any]]:
        """Those whose node is lost; their next jobs ask for other nodes."""
        found = {}
        for queued in self._lost_jobs.take_out(view, set(watched)):
            job, what = watched[queued.job_id]
            self._lost[job.work.rule, job.work.wildcards] = (queued.lost,)
            found[queued.job_id] = (replace(job, lost=queued.lost), what)
            self._queue.ask_soon()
        return found

    def _end_doubtful(self, doubtful: Mapping[str, Submitted], now: float) -> None:
        """Of what the queue does not show any more: one question for why it ended."""
        try:
            known = {job.job_id: job for job in self.jobs.known_jobs(tuple(doubtful), 0.0)}
        except SchedulerOutputError:
            known = {}
        for job_id, job in doubtful.items():
            said = known.get(job_id)
            if not is_over(job, said, now, self._late_s):
                continue
            cancelled = job.code == Cancelled.exit_code if said is None else said.ended_by == "cancelled"
            if cancelled and not job.adopted:
                self._cancelled[job.work.rule, job.work.wildcards] = job_id
            self._end(job, end_words(job, said))

    def _end(self, job: Submitted, why: str | None) -> None:
        """Its log is not needed any more, unless it has failed. Its exit code is: another Snakemake may wait for the same job."""
        with contextlib.suppress(OSError):
            if why is None:
                Path(exit_file(job.directory, job.name)).with_suffix(".log").unlink(missing_ok=True)
        with self._lock:
            _, what = self._watched.pop(job.job_id)
        self._ended(what, why)

    def _tell_silence(self) -> None:
        """Once, when it begins and when it is over."""
        silent_s = self._queue.view().silent_s
        if silent_s is None and self._silent:
            self._silent = False
            _say(f"{self.jobs.SERVER} answers again")
        elif silent_s is not None and silent_s > SAID_AFTER_S and not self._silent:
            self._silent = True
            _say(f"{self.jobs.SERVER} does not answer; the jobs are waited for")


def remove_old(place: Path) -> None:
    """Exit codes of jobs for which nobody waits any more."""
    with contextlib.suppress(OSError):
        for file in place.glob("*.exit"):
            if time.time() - file.stat().st_mtime > OLD_S:
                file.unlink(missing_ok=True)


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except FileNotFoundError:  # of a job that somebody else has submitted
        return set()


def tell_log(log: Path, scheduler: str, words: str) -> None:
    """Why there is no job, where its run is looked for: in the log that the job would have written. A log that cannot be written ends
    nothing: Snakemake says it in its own."""
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {scheduler} ERROR {words.splitlines()[0]}\n")


def _say(words: str) -> None:
    """To the person at the terminal."""
    sys.stderr.write(f"slipway: {words}\n")
    sys.stderr.flush()
