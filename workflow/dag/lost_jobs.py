"""Jobs that the scheduler keeps in its queue because their first node answers nobody: after a while they are taken out, and tried again.

Only Grid Engine keeps them: until the node is back, for ever if need be. Its nodes all seem lost for half a minute after a restart of
qmaster, which is why a node must have been silent in all answers of two minutes, with no silence of qmaster itself among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from base.errors import SlipwayError
from cluster.schedulers.jobs import Jobs, QueuedJob
from workflow.dag.queue_view import QueueView

LOST_S: Final = 120.0


def lost_since(before: Mapping[str, float], view: QueueView) -> dict[str, float]:
    """Pure: by job, the moment of the first of the answers which all have called its node lost. `before`: the same after the last view."""
    if view.began is None or view.silent_s is not None:
        return {}
    return {job.job_id: before.get(job.job_id, view.began) for job in view.jobs if job.lost}


def long_lost(since: Mapping[str, float], view: QueueView) -> tuple[QueuedJob, ...]:
    """Pure: those that are to be taken out."""
    return tuple(job for job in view.jobs if view.began is not None and view.began - since.get(job.job_id, view.began) >= LOST_S)


class LostJobs:
    """Of one who waits for jobs of `jobs`; `say` tells it a person."""

    def __init__(self, jobs: Jobs, say: Callable[[str], None]) -> None:
        self._jobs, self._say = jobs, say
        self._since: dict[str, float] = {}

    def take_out(self, view: QueueView, job_ids: set[str]) -> tuple[QueuedJob, ...]:
        """Those of `job_ids` that were taken out now. One that could not be, or that stays nevertheless, is tried again that much later."""
        self._since = lost_since(self._since, view)
        done = []
        for job in long_lost(self._since, view):
            del self._since[job.job_id]
            if job.job_id not in job_ids:
                continue
            words = f"job {job.job_id} has lost its first node: {job.lost} has not answered for {LOST_S / 60:.0f} minutes"
            try:
                self._jobs.forget((job.job_id,), 0.0)
            except (SlipwayError, ValueError) as error:
                self._say(f"{words}, and the job could not be taken out of the queue: {error}")
                continue
            self._say(f"{words}; the job is taken out of the queue")
            done.append(job)
        return tuple(done)
