"""Jobs that have ended well, by what they left on storage, and that the queue has nevertheless: somebody put them back just before that.

Nobody needs another start of them, so they are taken out. After a requeue in their last second Slurm and PBS would start them once more,
and Grid Engine may keep one for a quarter of an hour in the state `Rt`, with its slots. One that has started again finds that there is
nothing to do, and one that is just ending is listed for some seconds: both are left alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from base.errors import SlipwayError
from cluster.schedulers.jobs import Jobs, QueuedJob
from workflow.dag.queue_view import QueueView


def is_back(queued: QueuedJob) -> bool:
    """Pure: whether a job that has ended well is to start again, or was given nodes for that."""
    return queued.waits or bool(queued.restarts and queued.lost)


def is_settled(queued: QueuedJob) -> bool:
    """Pure: whether a job that has ended well is listed only because the scheduler has not heard of it yet: nobody has put it back."""
    return queued.stage == "runs" and not queued.restarts


class EndedJobs:
    """Of one who has waited for jobs of `jobs`; `say` tells it a person."""

    def __init__(self, jobs: Jobs, say: Callable[[str], None]) -> None:
        self._jobs, self._say = jobs, say
        self._since: dict[str, float] = {}
        self._names: dict[str, str] = {}
        self._told: set[str] = set()
        self._settled = threading.Event()
        self._settled.set()

    def add(self, job_id: str, name: str) -> None:
        """It has ended well. `name`: no other job's, as its id may be of a scheduler that has lost its memory."""
        self._settled.clear()
        self._names[job_id] = name
        self._since[job_id] = time.monotonic()

    def take_out(self, view: QueueView) -> bool:
        """Those that are back, by an answer to a question that is later than their ends; whether there were some. One that stays
        nevertheless is tried again at the next answer."""
        queued = {job.job_id: job for job in view.jobs if job.name == self._names.get(job.job_id)}
        known = [job_id for job_id, since in self._since.items() if view.known_since(since)]
        for job_id in known:
            if job_id not in queued:
                del self._since[job_id]
        back = [queued[job_id] for job_id in known if job_id in queued and is_back(queued[job_id])]
        for job in back:
            self._since[job.job_id] = time.monotonic()
            self._take_out(job)
        if all(job_id in known and is_settled(queued[job_id]) for job_id in self._since):
            self._settled.set()
        return bool(back)

    def wait(self, limit_s: float) -> None:
        """Until an answer of the scheduler shows that none is back."""
        self._settled.wait(limit_s)

    def _take_out(self, job: QueuedJob) -> None:
        words = f"job {job.job_id} was put back into the queue when it had ended well"
        self._say_once(f"{words}; it is taken out")
        try:
            (self._jobs.cancel if job.waits else self._jobs.forget)((job.job_id,), 0.0)
        except (SlipwayError, ValueError) as error:
            self._say_once(f"{words}, and could not be taken out: {error}")

    def _say_once(self, words: str) -> None:
        """What cannot be done now is tried at every answer, perhaps for hours."""
        if words not in self._told:
            self._told.add(words)
            self._say(words)
