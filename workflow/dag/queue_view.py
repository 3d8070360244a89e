"""Ask the scheduler's queue for our jobs in a thread of its own: a silent scheduler delays nothing that storage says."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from base.errors import SlipwayError
from base.humanize import counted, some
from cluster.schedulers import Jobs, get_scheduler, holder_alive
from cluster.schedulers.jobs import QueuedJob
from cluster.types import Holder

MIN_S: Final = 5.0
"""The least seconds between two questions."""
QUEUE_S: Final = 8.0
HOLDERS_S: Final = 8.0
FIRST_S: Final = 5.0
LONGEST_S: Final = 60.0
BELIEVED_S: Final = 60.0
"""The seconds for which an answer on a holder in a job that is not ours is believed: that it lives, or that nobody knows it."""


@dataclass(frozen=True, kw_only=True)
class QueueView:
    """The last answer of the queue.

    `began`: when the question was asked, by the monotonic clock, None before the first answer; `silent_s`: for how long the scheduler
    has not answered, None while it does.
    """

    jobs: tuple[QueuedJob, ...] = ()
    began: float | None = None
    silent_s: float | None = None

    def known_since(self, moment: float) -> bool:
        """Return True if the answer is of a later moment."""
        return self.began is not None and self.began > moment


def describe_cancelled(jobs: Jobs, before: Sequence[QueuedJob], after: Sequence[QueuedJob] | None) -> str:
    """Describe what became of the jobs of a Snakemake that was to end; `after`: the queue now, None while it is not known."""
    if not before:
        return ""
    server = jobs.SERVER
    ids = [job.job_id for job in before]
    if after is None:
        words = f"{counted(len(ids), f'{server.title} job')} ({some(ids, 8)}) should have been cancelled, and {server.name} does not answer"
        return f"{words}; look with `{server.list}`, and end what is left: `{server.cancel} {' '.join(ids)}`"
    left = [job.job_id for job in after if job.job_id in ids and job.stage in ("waits", "runs")]
    gone = [job_id for job_id in ids if job_id not in left]
    one, many = f"{server.title} job", f"{server.title} jobs"
    parts = [f"{counted(len(gone), f'{one} was', f'{many} were')} cancelled ({some(gone, 8)})"] if gone else []
    if left:
        parts.append(f"{counted(len(left), f'{one} is', f'{many} are')} still there: `{server.cancel} {' '.join(left)}` ends what is left")
    return "; ".join(parts)


class PolledQueue:
    """The queue, which is asked until `stop`: more and more rarely while nothing changes, and soon when something new is to be known."""

    def __init__(
        self,
        scheduler: str,
        ask: Callable[[], Sequence[QueuedJob]],
        ask_holders: Callable[[Sequence[Holder], float], tuple[bool | None, ...]],
        clock: Callable[[], float] = time.monotonic,
        pause_s: float = MIN_S,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._pause_s, self._longest_s = pause_s, longest_s
        self._scheduler, self._ask, self._ask_holders, self._clock = scheduler, ask, ask_holders, clock
        self._lock = threading.Lock()
        self._jobs: tuple[QueuedJob, ...] = ()
        self._began: float | None = None
        self._silent_since: float | None = None
        self._to_ask: set[Holder] = set()
        self._answers: dict[Holder, tuple[bool | None, float]] = {}
        self._wake, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._go_on, name="queue", daemon=True).start()

    def view(self) -> QueueView:
        """Return the last answer."""
        with self._lock:
            silent = None if self._silent_since is None else self._clock() - self._silent_since
            return QueueView(jobs=self._jobs, began=self._began, silent_s=silent)

    def alive(self, holder: Holder) -> bool | None:
        """Return True if the holder lives, by the last answers; a job of ours that was not in the queue is asked for in the next round."""
        if holder.scheduler != self._scheduler:
            return holder_alive(holder)
        with self._lock:
            answer, when = self._answers.get(holder, (None, -math.inf))
            if answer is False or self._clock() - when < BELIEVED_S:
                return answer
            job = next((job for job in self._jobs if job.job_id == holder.job_id), None)
            if job is not None and job.restarts == holder.restart_count and not job.waits:
                return True
            self._to_ask.add(holder)
        self._wake.set()
        return None

    def ask_soon(self) -> None:
        """Ask again soon, since something has happened that the last answer does not hold."""
        self._wake.set()

    def stop(self) -> None:
        """Ask no more."""
        self._over.set()
        self._wake.set()

    def _go_on(self) -> None:
        pause = FIRST_S
        while not self._over.is_set():
            pause = FIRST_S if self._round() else min(pause * 1.5, self._longest_s)
            if self._over.wait(self._pause_s):
                return
            if self._wake.wait(max(0.0, pause - MIN_S)):
                pause = FIRST_S
            self._wake.clear()

    def _round(self) -> bool:
        """Ask one question, and one for each job that its answer did not hold; return True if something is new.

        An answer that nobody can read is silence: the thread goes on.
        """
        began = self._clock()
        try:
            jobs = tuple(self._ask())
        except (SlipwayError, ValueError):
            with self._lock:
                self._silent_since = began if self._silent_since is None else self._silent_since
            return False
        with self._lock:
            new = jobs != self._jobs or self._silent_since is not None
            self._jobs, self._began, self._silent_since = jobs, began, None
            to_ask, self._to_ask = sorted(self._to_ask, key=lambda holder: holder.job_id), set()
        living = {(job.job_id, job.restarts) for job in jobs if not job.waits}
        to_ask = [holder for holder in to_ask if (holder.job_id, holder.restart_count) not in living]
        if to_ask:
            try:
                answers = self._ask_holders(to_ask, HOLDERS_S)
            except (SlipwayError, ValueError):
                answers = (None,) * len(to_ask)
            with self._lock:
                self._answers.update((holder, (alive, began)) for holder, alive in zip(to_ask, answers, strict=True))
        return new


def poll_queue(scheduler: str, jobs: Jobs, longest_s: float = LONGEST_S) -> PolledQueue:
    """Return the queue of that scheduler, which offers `jobs`."""
    return PolledQueue(scheduler, lambda: jobs.our_jobs(0.0, QUEUE_S), get_scheduler(scheduler).holders_alive, longest_s=longest_s)
