"""Ask for a checkpoint a margin before the walltime or the job ends, and end the attempt in time for its push.

The time of an attempt begins when it has its nodes.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from base.humanize import format_duration
from workflow.run.link.event_loop import Timer
from workflow.run.record.outcome import Ending
from workflow.run.record.resume import EarlierAttempt
from workflow.run.record.walltime_budget import SAVE_SHARE, Saved, at_deadline, budget_of, by_scheduler, too_late
from workflow.run.storage.results import PreparedRun
from workflow.run.supervisor.run_scope import RunScope

logger = logging.getLogger(__name__)

OnSaved = Callable[[int | None, str | None], None]
"""Take the step of a checkpoint, or why there is none. It is called once."""
Save = Callable[[OnSaved], str | None]
"""Ask the ranks for a checkpoint. Returns why there can be none; None if it is asked for."""


class TimeLimit:
    """The time limit of one attempt. `deadline`: monotonic time at which all must be over, once the attempt has begun."""

    def __init__(self, scope: RunScope, run: PreparedRun) -> None:
        self._scope = scope
        self._budget = budget_of(run.site, run.limits)
        self._begun: float | None = None
        self._save: Save = lambda _on_saved: "the training had not begun"
        self._job_end: float | None = None
        self._timer: Timer | None = None
        self._saving = False
        self.unheard = False
        """True if the run ended since no checkpoint was told of in time: one may be there, of ranks that are slow to end."""
        self._resumed_step: int | None = None
        self.set_job_end(run.allocation.deadline)
        self.resume_from(next(iter(run.resumable), None))

    @property
    def deadline(self) -> float:
        """Return the end of the budget or of the job, whichever comes first. The budget begins when the attempt has its nodes."""
        assert self._begun is not None
        end = self._begun + self._budget.left_s
        return end if self._job_end is None else min(end, self._job_end)

    @property
    def margin_s(self) -> float:
        """Return how long before the deadline the attempt is ended, for its push."""
        return self._budget.margin_s

    def set_job_end(self, moment: float | None) -> None:
        """Note when the scheduler ends the job (unix time), None if it is not known. May come late, and again."""
        self._job_end = None if moment is None else time.monotonic() + moment - time.time()
        self._arm()

    def begin(self) -> None:
        """Begin the budget: the attempt has its nodes. Ends the run if the job has too little time left."""
        self._begun = time.monotonic()
        left = None if self._job_end is None else self._job_end - self._begun
        if left is not None and left < min(self._budget.least_s, self._budget.left_s):
            self._scope.fail(too_late(self._budget, left))
        self._arm()

    def resume_from(self, earlier: EarlierAttempt | None) -> None:
        """Continue from the checkpoint of `earlier`: the time trained up to it counts. None: the run begins anew, and nothing counts."""
        self._resumed_step = None if earlier is None else earlier.step
        self._budget = replace(self._budget, used_s=0.0 if earlier is None else earlier.used_s)
        self._arm()

    def enable_checkpoint(self, save: Save) -> None:
        self._save = save

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._begun is not None:
            self._timer = self._scope.loop.after(
                max(0.0, self.deadline - self._budget.margin_s - time.monotonic()), self._request_checkpoint
            )
        elif self._job_end is not None:
            left = self._job_end - time.monotonic()
            self._timer = self._scope.loop.after(max(0.0, left - self._budget.least_s), self._too_late)

    def _too_late(self) -> None:
        if self._job_end is not None:
            self._scope.end(too_late(self._budget, self._job_end - time.monotonic()))

    # -- the end

    def _request_checkpoint(self) -> None:
        """Request a checkpoint: nothing more than the margin is left."""
        if self._saving or self._scope.ending is not None:
            return
        why = self._save(self._saved)
        if why is not None:
            self._saved(None, why)
            return
        self._saving = True
        limit = SAVE_SHARE * self._budget.margin_s
        logger.info("%s left: a checkpoint is wanted within %s", format_duration(self._budget.margin_s), format_duration(limit))
        self._scope.loop.after(limit, lambda: self._not_heard(f"it was not written within {format_duration(limit)}"))

    def _not_heard(self, why: str) -> None:
        self.unheard = self._scope.ending is None
        self._saved(None, why)

    def on_saving(self, step: int | None) -> None:
        if step is None and self._saving:
            self._saved(None, "no step was done")

    def _saved(self, step: int | None, why: str | None) -> None:
        self._scope.end(self._ending(step, why))

    def _ending(self, step: int | None = None, why: str | None = None) -> Ending:
        saved = Saved(step=step, why=why, resumed_step=self._resumed_step)
        job_s = None if self._job_end is None or self._begun is None else self._job_end - self._begun
        return at_deadline(self._budget, job_s, saved)

    def saved_at(self, step: int) -> Ending:
        """Return how a run has ended whose checkpoint was reported only when its ranks were stopped."""
        return self._ending(step)

    def ending_of_scheduler(self, word: str | None, told: str) -> Ending:
        """Return how the run ends that the scheduler has ended, by `word` of Scheduler.ended_by; `told`: what was seen of it."""
        return by_scheduler(word, told, self._ending())
