"""Submit the jobs of one Snakemake once to a scheduler's queue, find them again, watch them, tell how each ends, cancel them.

The executor (snakemake_executor_plugin_slipway) decides what it reports to Snakemake. Exit files are looked for twice a second in one
directory. The queue is asked by one question for all jobs, in a thread of its own, from 5 s to half a minute apart: a silent scheduler
delays no end that storage tells, and no job is forgotten meanwhile.
"""

import contextlib
import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final

from base.errors import Cancelled, SchedulerOutputError, SchedulerSilent, SlipwayError, SubmitError, SubmitUnsure
from base.sanitize import printable
from cluster.exit_file import read_exit
from cluster.schedulers import Jobs
from cluster.schedulers.jobs import RUN, BatchJob, JobSize, QueuedJob, Work, jobs_of_rule, work_name
from workflow.dag.queue_view import QUEUE_S, PolledQueue, QueueView
from workflow.run.record.step_clock import LOGIN, login_s
from workflow.run.storage.results import nodes_to_avoid
from workflow.study.paths import run_dir

# The end of one job.


LATE_S: Final = 60.0
"""The seconds for which network storage may hide a file, where Snakemake's --latency-wait does not say it."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job that was submitted.

    Times are of the monotonic clock. `asked_at`: only an answer of the scheduler that is later than this says something of the job's end;
    `code`: the last exit code that was seen; `gone`: since when the queue does not have the job; `adopted`: another Snakemake has submitted
    it; `taken_out`: why this process took the job out of the queue.
    """

    job_id: str
    name: str
    work: Work
    directory: str
    asked_at: float
    code: int | None = None
    gone: float | None = None
    adopted: bool = False
    taken_out: str = ""


def seen(job: Submitted, code: int | None, view: QueueView, now: float) -> Submitted:
    """Return the job with what is known of its end now: its exit code, and since when the queue does not have it.

    An exit code of 0 is an end at once. Any other code may be of a start that the scheduler repeats, so the queue must have forgotten the
    job, by an answer to a question that was asked later. A forgotten job may have left a file that network storage still hides.
    """
    if code != job.code:
        job = replace(job, code=code, gone=None, asked_at=now if code else job.asked_at)
    if any(queued.job_id == job.job_id for queued in view.jobs):
        return replace(job, gone=None)
    return replace(job, gone=now) if job.gone is None and view.known_since(job.asked_at) else job


def is_over(job: Submitted, known: QueuedJob | None, now: float, late_s: float = LATE_S) -> bool:
    """Return True if a job that has failed or is gone has ended, by what the scheduler knows of it. `late_s`: how late a file may be."""
    if known is not None and known.stage != "over":
        return False  # it is on its way back into the queue
    if job.taken_out or job.code is not None or (known is not None and known.ended_by is not None):
        return True
    return job.gone is not None and now - job.gone > late_s


def describe_end(job: Submitted, known: QueuedJob | None) -> str:
    """Return the reason for which a job has failed, as a sentence."""
    code = "and left no exit code" if job.code is None else f"with exit code {job.code}"
    if job.taken_out:
        return f"job {job.job_id} {job.taken_out}"
    ended_by = None if known is None else known.ended_by
    words = {
        "cancelled": "was cancelled",
        "preempted": "was ended for another job",
        "requeued": "was put back into the queue",
        "timeout": "was ended at its time limit",
        "node_lost": "has lost a node",
        "not_started": f"could not be started on {'' if known is None else known.nodes}",
    }.get(ended_by or "", "has failed" if job.code is not None else "is no longer in the queue")
    return f"job {job.job_id} {words} {code}"


# The batch job of one run, or of one shard.


JOBS_DIR: Final = PurePath(".slipway", "jobs")
"""The folder, in the directory where Snakemake works, with the logs of jobs and their exit codes."""
THREADS: Final = (
    *("OMP_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"),
)
"""Environment variables that are set to one thread, as Snakemake does for a command of one thread: a run decides for its programs."""


def run_job(work: Work, size: JobSize, command: str, directory: str, token: str, umask: int = 0o077) -> BatchJob:
    """Build the batch job of a rule's shell command.

    The job runs the command itself, and no Snakemake, which would start twice in it for 3.5 s: the Snakemake that submits prepares the
    outputs of a job before it, waits for them and touches them after it, and deletes those of a failed one (its `Job.prepare` and
    `Job.postprocess`). `command` is for bash; `directory` is where Snakemake works, which jobs see too; `token` has 8 hex digits.
    """
    name = work_name(work, token)
    return BatchJob(
        name=name,
        size=size,
        work=work,
        environ=tuple((variable, "1") for variable in THREADS),
        output=str(PurePath(directory, JOBS_DIR, f"{name}.log")),
        directory=directory,
        argv=(sys.executable, "-P", "-m", "cluster.exit_file", str(exit_file(directory, name)), command),
        setup=(f"umask {umask:04o}",),
    )


def exit_file(directory: str, name: str) -> PurePath:
    """Return the path at which the job of that name, submitted in `directory`, leaves its exit code."""
    return PurePath(directory, JOBS_DIR, f"{name}.exit")


# The jobs of one Snakemake.


LOOK_S: Final = 0.5
FRESH_S: Final = 5.0
"""The seconds for which an answer of the queue counts when a job is submitted: one question serves many submissions."""
REPORTED_AFTER_S: Final = 10.0
LONGEST_S: Final = 30.0
"""The most seconds between two questions to the queue by who waits for jobs."""
OLD_S: Final = 86400.0
"""The seconds for which the exit code of a job is kept for all who wait for it."""
CANCEL_S: Final = 30.0
"""The seconds for which a silent scheduler is asked to cancel jobs, by somebody who has typed Ctrl-C."""

Watched = tuple[Submitted, Any]
"""A job, and what was handed over for it."""
Key = tuple[str, str]
"""A rule, and the values of its wildcards."""


class Submissions:
    """The submissions of a study, marked `mark`, in `directory`, and those of others that it waits for. They must be closed.

    `ended` is called for each job with what was handed over for it, and why it has failed (None: it has not), in the thread of this object;
    all else in Snakemake's. `late_s`: how late storage may show a file.
    """

    def __init__(  # noqa: PLR0913
        self,
        jobs: Jobs,
        queue: PolledQueue,
        mark: str,
        directory: str,
        ended: Callable[[Any, str | None], None],
        late_s: float = LATE_S,
    ) -> None:
        self.jobs, self._queue, self._mark, self._directory = jobs, queue, mark, directory
        self._ended, self._late_s = ended, late_s
        self._others: dict[Key, QueuedJob] = {}
        self._looked = -math.inf
        self._submitting: str | None = None
        self._lock = threading.Lock()
        self._watched: dict[str, Watched] = {}
        self._own: set[str] = set()
        """The ids of all jobs that were watched."""
        self.cancelled: dict[Key, str] = {}
        """The jobs of this Snakemake that somebody has cancelled."""
        self.lost: dict[Key, tuple[str, ...]] = {}
        """Nodes that were lost, and recorded nothing."""
        self._tried: dict[str, float | None] = {}
        """The answer of the scheduler after which it was last tried to take out a job that cannot start."""
        self._away: set[str] = set()
        """Directories that cannot be read."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="jobs", daemon=True)
        self._thread.start()

    def earlier(self, rule: str, wildcards: str) -> Submitted | None:
        """Return the job that another Snakemake has in the queue for the same, or has left there.

        It is waited for, once, and no other is submitted. Raises SchedulerOutputError; Cancelled where this Snakemake has submitted one
        that somebody has cancelled, since it would only be tried once more.
        """
        cancelled = self.cancelled.get((rule, wildcards))
        if cancelled is not None:
            ends = f"{self.jobs.SERVER.cancel} {cancelled}"
            raise Cancelled(f"job {cancelled} was cancelled, by `{ends}` or by an administrator; it is not tried again in this call")
        self._look_for_others()
        job = self._others.pop((rule, wildcards), None)
        if job is None:
            return None
        print_message(f"job {job.job_id} is in the queue already for {wildcards or rule}: it is waited for")
        work = Work(mark=self._mark, rule=rule, wildcards=wildcards)
        where = job.directory or self._directory
        return Submitted(job_id=job.job_id, name=job.name, work=work, directory=where, asked_at=time.monotonic(), adopted=True)

    def _look_for_others(self) -> None:
        """Look for jobs in the queue for this study that are not ours, unless that was done just now."""
        if time.monotonic() - self._looked < FRESH_S:
            return
        if self._looked == -math.inf:
            remove_old_exit_files(Path(self._directory, JOBS_DIR))
        queued = [job for job in self._queued() if job.job_id not in self._own]
        rules = {job.rule for job in queued if job.mark == self._mark}
        self._others = {(rule, words): job for rule in rules for words, job in jobs_of_rule(queued, self._mark, rule).items()}
        self._looked = time.monotonic()

    def submit(self, rule: str, wildcards: str, size: JobSize, command: str) -> Submitted:
        """Submit a job for the shell command of a rule once, however long the scheduler is silent.

        A run's asks for other nodes than those that failed it before; where the scheduler has no others, for any. Raises SubmitError,
        ConfigError, StorageError.
        """
        failed = nodes_to_avoid(run_dir(Path(self._directory), wildcards), time.time()) if rule == RUN else ()
        failed = tuple(dict.fromkeys((*self.lost.get((rule, wildcards), ()), *failed)))  # who lost its node has recorded nothing
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
        with self._lock:
            self._watched[job.job_id] = (job, what)
            self._own.add(job.job_id)
        self._queue.ask_soon()
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
        with self._lock:
            job_ids = [job_id for job_id, (job, _) in self._watched.items() if not job.adopted]
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
        self._over.set()
        self._queue.stop()
        self._thread.join(2 * LOOK_S)

    def _queued(self) -> tuple[QueuedJob, ...]:
        """Ask for the queue until there is an answer: who submitted without it could submit a second job."""
        try:
            return self.jobs.our_jobs(REPORTED_AFTER_S, QUEUE_S)
        except SchedulerSilent:
            print_message(f"{self.jobs.SERVER.name} does not answer; nothing is submitted until it does")
            return self.jobs.our_jobs(math.inf, QUEUE_S)

    # -- in our thread

    def _go_on(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Look once at exit files and at the scheduler's last answer."""
        with self._lock:
            watched = dict(self._watched)
        files = self._files({job.directory for job, _ in watched.values()})
        watched = {job_id: (job, what) for job_id, (job, what) in watched.items() if job.directory in files}
        view, now = self._queue.view(), time.monotonic()
        watched |= self._take_out_failed(view, watched)
        doubtful: dict[str, Submitted] = {}
        for job_id, (before, _) in watched.items():
            file = Path(exit_file(before.directory, before.name))
            job = seen(before, read_exit(file) if file.name in files[before.directory] else None, view, now)
            if job.code and job.code != before.code:
                self._queue.ask_soon()
            with self._lock:
                self._watched[job_id] = (job, self._watched[job_id][1])
            if job.code == 0:
                self._end(job, None)
            elif job.gone is not None and (job.code is not None or job.gone == now or now - job.gone > self._late_s):
                doubtful[job_id] = job
        if doubtful:
            self._end_doubtful(doubtful, now)

    def _take_out_failed(self, view: QueueView, watched: Mapping[str, Watched]) -> dict[str, Watched]:
        """Take out the jobs that the scheduler could not start and keeps: nobody may be there to release them, and the next job may get
        other nodes. A job that somebody holds is waited for."""
        found = {}
        for queued in view.jobs:
            if queued.job_id in watched and queued.hold == "failed" and self._is_taken_out(queued, view):
                job, what = watched[queued.job_id]
                found[queued.job_id] = (replace(job, taken_out=f"was taken out of the queue: {queued.why}"), what)
                self._queue.ask_soon()
        return found

    def _is_taken_out(self, queued: QueuedJob, view: QueueView) -> bool:
        """Try to take the job out, once for each answer of the scheduler."""
        if queued.job_id in self._tried and self._tried[queued.job_id] == view.began:
            return False
        self._tried[queued.job_id] = view.began
        try:
            self.jobs.cancel((queued.job_id,), 0.0)
        except (SlipwayError, ValueError) as error:
            print_message(f"job {queued.job_id} could not be taken out of the queue: {error}")
            return False
        return True

    def _end_doubtful(self, doubtful: Mapping[str, Submitted], now: float) -> None:
        """Ask the scheduler once why the jobs ended that its queue does not show any more."""
        try:
            known = {job.job_id: job for job in self.jobs.known_jobs(tuple(doubtful), 0.0)}
        except (SlipwayError, ValueError):  # also an answer that nobody can read
            known = {}
        for job_id, job in doubtful.items():
            known_job = known.get(job_id)
            if not is_over(job, known_job, now, self._late_s):
                continue
            cancelled = job.code == Cancelled.exit_code if known_job is None else known_job.ended_by == "cancelled"
            if known_job is not None and known_job.lost:
                self.lost[job.work.rule, job.work.wildcards] = (known_job.lost,)
            if cancelled and not job.adopted and not job.taken_out:
                self.cancelled[job.work.rule, job.work.wildcards] = job_id
            self._end(job, describe_end(job, known_job))

    def _end(self, job: Submitted, why: str | None) -> None:
        """End the watch of a job, and delete its log unless it failed. Its exit code stays: another Snakemake may wait for the same job."""
        with contextlib.suppress(OSError):
            if why is None:
                Path(exit_file(job.directory, job.name)).with_suffix(".log").unlink(missing_ok=True)
        with self._lock:
            _, what = self._watched.pop(job.job_id)
        self._ended(what, why)

    def _files(self, directories: Set[str]) -> dict[str, set[str]]:
        """List the files of jobs in each directory. Directories on storage that is away are left out, and reported once."""
        found: dict[str, set[str]] = {}
        for directory in directories:
            place = Path(directory, JOBS_DIR)
            try:
                found[directory] = set(os.listdir(place))
            except FileNotFoundError:  # of a job that somebody else has submitted
                found[directory] = set()
            except OSError as error:
                if directory not in self._away:
                    print_message(f"{place} cannot be read ({error.strerror}); how the jobs there end is not known until it can be")
        self._away = set(directories) - set(found)
        return found


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
