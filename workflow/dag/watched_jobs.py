"""The jobs in a scheduler's queue that one Snakemake waits for, and how each ends. What is done about one that never would, is in
lost_jobs.py, failed_jobs.py and ended_jobs.py.

Their exit files are looked for twice a second in one directory. The queue is asked by one question for all, in a thread of its own, from
5 s to half a minute apart: a scheduler that is silent delays no end that storage tells, and no job is forgotten while it is.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from base.errors import Cancelled, LeaseError, SlipwayError
from cluster.exit_file import read_exit
from cluster.schedulers.jobs import Jobs, QueuedJob, jobs_of_rule
from workflow.dag.ended_jobs import EndedJobs
from workflow.dag.failed_jobs import FailedJobs
from workflow.dag.lost_jobs import LostJobs
from workflow.dag.queue_view import QueueView
from workflow.dag.run_job import PLACE, exit_file
from workflow.dag.submitted import LATE_S, Submitted, end_words, is_over, step

LOOK_S: Final = 0.5
SAID_AFTER_S: Final = 10.0
BACK_S: Final = 15.0
"""So long at most one who closes may wait until the queue shows that no job which has ended well is back in it."""

Ended = Callable[[Any, str | None], None]
"""Called for each job with what was handed over for it, and why it has failed; None: it has not."""
Watched = tuple[Submitted, Any]
"""A job, and what was handed over for it."""
Key = tuple[str, str]
"""A rule, and the values of its wildcards."""


class Queue(Protocol):
    """What is asked of the scheduler's queue; all answer at once."""

    def view(self) -> QueueView:
        """The last answer."""

    def ask_soon(self) -> None:
        """Something has happened that it does not hold."""

    def stop(self) -> None:
        """Ask no more."""


class WatchedJobs:
    """From when it is made until `close`. `ended` is called in a thread of ours; `say` tells a person."""

    def __init__(self, jobs: Jobs, queue: Queue, ended: Ended, say: Callable[[str], None], late_s: float = LATE_S) -> None:
        self._jobs, self._queue, self._ended, self._say, self._late_s = jobs, queue, ended, say, late_s
        self._lock = threading.Lock()
        self._watched: dict[str, Watched] = {}
        self.own: set[str] = set()
        """The ids of all that were watched: no other Snakemake's, which could be waited for."""
        self.cancelled: dict[Key, str] = {}
        """Ours that somebody has cancelled."""
        self.lost: dict[Key, tuple[str, ...]] = {}
        """Nodes that were lost, and recorded nothing."""
        self._lost_jobs, self._failed_jobs, self._ended_jobs = LostJobs(jobs, say), FailedJobs(jobs, say), EndedJobs(jobs, say)
        self._silent = False
        self._away: set[str] = set()
        """Directories that cannot be read."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="jobs", daemon=True)
        self._thread.start()

    def watch(self, job: Submitted, what: Any) -> None:
        """From now on; `ended` hears of its end with `what`."""
        with self._lock:
            self._watched[job.job_id] = (job, what)
            self.own.add(job.job_id)
        self._queue.ask_soon()

    def job_ids(self) -> list[str]:
        """Of those whose end is not known, and which no other Snakemake has submitted."""
        with self._lock:
            return [job_id for job_id, (job, _) in self._watched.items() if not job.adopted]

    def close(self, patience_s: float = 0.0) -> None:
        """Watch no more. Where all has ended that was watched, `patience_s` is how long it may take to see that none is back."""
        self._ended_jobs.wait(patience_s)
        self._over.set()
        self._queue.stop()
        self._thread.join(2 * LOOK_S)

    # -- in our thread

    def _go_on(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Once, at exit files and at the last answer of the scheduler."""
        self._tell_silence()
        with self._lock:
            watched = dict(self._watched)
        files = self._files({job.directory for job, _ in watched.values()})
        watched = {job_id: (job, what) for job_id, (job, what) in watched.items() if job.directory in files}
        view, now = self._queue.view(), time.monotonic()
        watched |= self._take_out_lost(view, watched)
        watched |= self._take_out_failed(view, watched)
        if self._ended_jobs.take_out(view):
            self._queue.ask_soon()
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
            self._end_doubtful(doubtful, view, now)

    def _take_out_lost(self, view: QueueView, watched: Mapping[str, Watched]) -> dict[str, Watched]:
        """Those whose node is lost; their next jobs ask for other nodes."""
        found = {}
        for queued in self._lost_jobs.take_out(view, set(watched)):
            job, what = watched[queued.job_id]
            self.lost[job.work.rule, job.work.wildcards] = (queued.lost,)
            found[queued.job_id] = (replace(job, taken_out=f"has lost its node {queued.lost}"), what)
            self._queue.ask_soon()
        return found

    def _take_out_failed(self, view: QueueView, watched: Mapping[str, Watched]) -> dict[str, Watched]:
        """Those that the scheduler could not start."""
        found = {}
        for queued in self._failed_jobs.take_out(view, {job_id: job for job_id, (job, _) in watched.items()}):
            job, what = watched[queued.job_id]
            found[queued.job_id] = (replace(job, taken_out=f"was taken out of the queue: {queued.why}"), what)
            self._queue.ask_soon()
        return found

    def _end_doubtful(self, doubtful: Mapping[str, Submitted], view: QueueView, now: float) -> None:
        """Of what the queue does not show any more: one question for why it ended."""
        try:
            known = {job.job_id: job for job in self._jobs.known_jobs(tuple(doubtful), 0.0)}
        except (SlipwayError, ValueError):  # also an answer that nobody can read
            known = {}
        for job_id, job in doubtful.items():
            said = known.get(job_id)
            if not is_over(job, said, now, self._late_s):
                continue
            cancelled = job.code == Cancelled.exit_code if said is None else said.ended_by == "cancelled"
            if said is not None and said.lost:
                self.lost[job.work.rule, job.work.wildcards] = (said.lost,)
            if cancelled and not job.adopted and not job.taken_out:
                self.cancelled[job.work.rule, job.work.wildcards] = job_id
            other = self._of_another(job, view) if job.code == LeaseError.exit_code else None
            if other is None:
                self._end(job, end_words(job, said))
            else:
                self._wait_for(other, job)

    def _of_another(self, job: Submitted, view: QueueView) -> QueuedJob | None:
        """The job of another Snakemake for the same, which had the run when `job` began."""
        others = [queued for queued in view.jobs if queued.job_id not in self.own]
        return jobs_of_rule(others, job.work.mark, job.work.rule).get(job.work.wildcards)

    def _wait_for(self, other: QueuedJob, job: Submitted) -> None:
        """In the place of `job`, which was refused the run."""
        self._say(f"job {job.job_id} was refused {job.work.wildcards or job.work.rule}: job {other.job_id} has it, and is waited for")
        with self._lock:
            _, what = self._watched.pop(job.job_id)
        self.watch(adopted(other, job), what)

    def _end(self, job: Submitted, why: str | None) -> None:
        """Its log is not needed any more, unless it has failed. Its exit code is: another Snakemake may wait for the same job."""
        with contextlib.suppress(OSError):
            if why is None:
                Path(exit_file(job.directory, job.name)).with_suffix(".log").unlink(missing_ok=True)
        with self._lock:
            _, what = self._watched.pop(job.job_id)
        if why is None:
            self._ended_jobs.add(job.job_id, job.name)
            self._queue.ask_soon()
        self._ended(what, why)

    def _files(self, directories: Set[str]) -> dict[str, set[str]]:
        """What lies in PLACE of each. Storage that is away tells of no end: its directories are left out, which is said once."""
        found: dict[str, set[str]] = {}
        for directory in directories:
            place = Path(directory, PLACE)
            try:
                found[directory] = set(os.listdir(place))
            except FileNotFoundError:  # of a job that somebody else has submitted
                found[directory] = set()
            except OSError as error:
                if directory not in self._away:
                    self._say(f"{place} cannot be read ({error.strerror}); how the jobs there end is not known until it can be")
        self._away = set(directories) - set(found)
        return found

    def _tell_silence(self) -> None:
        """Once, when it begins and when it is over."""
        silent_s = self._queue.view().silent_s
        if silent_s is None and self._silent:
            self._silent = False
            self._say(f"{self._jobs.SERVER} answers again")
        elif silent_s is not None and silent_s > SAID_AFTER_S and not self._silent:
            self._silent = True
            self._say(f"{self._jobs.SERVER} does not answer; the jobs are waited for")


def adopted(queued: QueuedJob, like: Submitted) -> Submitted:
    """A job of another Snakemake, which makes what `like` is about."""
    where = queued.directory or like.directory
    now = time.monotonic()
    return replace(like, job_id=queued.job_id, name=queued.name, directory=where, asked=now, code=None, gone=None, adopted=True)
