"""Jobs that the scheduler could not start, and keeps, and those that somebody holds: the first are taken out of the queue, since nobody may
be there to let them go, and the next job may get other nodes; of the others it is said once, and they are waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from base.errors import SlipwayError
from cluster.schedulers.jobs import Jobs, QueuedJob, job_words
from workflow.dag.queue_view import QueueView
from workflow.dag.submitted import Submitted

THEIRS_S: Final = 90.0
"""So long a job that could not be started is left to the other Snakemake that has submitted it. Where that lives it asks every half minute,
takes the job out itself, and tries once more; of one that somebody else took out it would not know why."""


class FailedJobs:
    """Of one who waits for jobs of `jobs`; `say` tells it a person."""

    def __init__(self, jobs: Jobs, say: Callable[[str], None]) -> None:
        self._jobs, self._say = jobs, say
        self._told: set[tuple[str, str]] = set()
        self._since: dict[str, float] = {}
        self._tried: dict[str, float | None] = {}

    def take_out(self, view: QueueView, watched: Mapping[str, Submitted]) -> tuple[QueuedJob, ...]:
        """Those of `watched` that were taken out now."""
        done = []
        for queued in view.jobs:
            if queued.job_id not in watched or not queued.hold:
                continue
            if (queued.job_id, queued.hold) not in self._told:
                self._told.add((queued.job_id, queued.hold))
                self._say(job_words(queued, time.time()))
            if queued.hold == "failed" and self._is_ours_to_end(watched[queued.job_id]) and self._is_taken_out(queued, view):
                done.append(queued)
        return tuple(done)

    def _is_ours_to_end(self, job: Submitted) -> bool:
        """Whether nobody else is there who would take it out."""
        now = time.monotonic()
        return not job.adopted or now - self._since.setdefault(job.job_id, now) >= THEIRS_S

    def _is_taken_out(self, queued: QueuedJob, view: QueueView) -> bool:
        """Tried once for each answer of the scheduler."""
        if queued.job_id in self._tried and self._tried[queued.job_id] == view.began:
            return False
        self._tried[queued.job_id] = view.began
        try:
            self._jobs.cancel((queued.job_id,), 0.0)
        except (SlipwayError, ValueError) as error:
            self._say(f"job {queued.job_id} could not be taken out of the queue: {error}")
            return False
        return True
