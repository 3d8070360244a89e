"""The clock of one attempt: it starts when the attempt has its nodes, asks for a checkpoint a margin before the end, and then ends the
run."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from base.units import format_duration
from workflow.run.link.event_loop import Timer
from workflow.run.link.orders import Checkpoint
from workflow.run.record.continuation import EarlierAttempt
from workflow.run.record.deadline import SAVE_SHARE, Saved, at_deadline, budget_of, by_scheduler, too_late
from workflow.run.record.outcome import Ending

if TYPE_CHECKING:
    from workflow.run.supervisor.supervisor import Supervisor

logger = logging.getLogger(__name__)


class TimeLimit:
    """Of one supervisor. `deadline`: monotonic time at which all must be over, once the attempt has begun."""

    def __init__(self, run: Supervisor) -> None:
        self._run = run
        self.budget = budget_of(run.run["site"], run.limits)
        self._begun: float | None = None
        self._job_end: float | None = None
        self._timer: Timer | None = None
        self._saving = False
        self.goes_on_from: EarlierAttempt | None = None
        """The checkpoint of an earlier attempt that this one resumes from."""
        self.job_ends(run.allocation.deadline)
        if run.limits.get("queued_job_s"):
            self.job_ends(time.time() + float(run.limits["queued_job_s"]))

    @property
    def deadline(self) -> float:
        """The end of the budget or of the job, whichever comes first. The budget begins when the attempt has its nodes."""
        assert self._begun is not None
        end = self._begun + self.budget.left_s
        return end if self._job_end is None else min(end, self._job_end)

    def job_ends(self, moment: float | None) -> None:
        """The scheduler says when it ends the job (unix time); None: never, as far as is known. May come late, and again."""
        self._job_end = None if moment is None else time.monotonic() + moment - time.time()
        self._arm()

    def begin(self) -> None:
        """The attempt may begin: it has its nodes. Ends the run where the job has too little time left."""
        self._begun = time.monotonic()
        if self._run.limits.get("job_s"):
            self._job_end = self._begun + float(self._run.limits["job_s"])
        left = None if self._job_end is None else self._job_end - self._begun
        if left is not None and left < min(self.budget.least_s, self.budget.left_s):
            self._run.scope.end(too_late(self.budget, left))
        self._arm()

    def goes_on(self, earlier: EarlierAttempt | None) -> None:
        """From this checkpoint: what was used before it counts. None: from the start, and nothing counts."""
        self.goes_on_from = earlier
        used = 0.0 if earlier is None else earlier.used_s
        self.budget = replace(self.budget, used_s=used)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._begun is not None:
            self._timer = self._run.loop.after(max(0.0, self.deadline - self.budget.margin_s - time.monotonic()), self._near)
        elif self._job_end is not None:
            left = self._job_end - time.monotonic()
            self._timer = self._run.loop.after(max(0.0, left - self.budget.least_s), self._too_late)

    def _too_late(self) -> None:
        """Still waiting for its nodes, while the job comes to its end."""
        if self._job_end is not None:
            self._run.scope.end(too_late(self.budget, self._job_end - time.monotonic()))

    # -- the end

    def _near(self) -> None:
        """Nothing more than the margin is left."""
        run = self._run
        if self._saving or run.scope.ending is not None:
            return
        why = self._why_not()
        if why is not None:
            run.scope.end(self.ending(why=why))
            return
        assert run.training is not None
        assert run.nodes is not None
        self._saving = True
        limit = SAVE_SHARE * self.budget.margin_s
        logger.info("%s left: a checkpoint is wanted within %s", format_duration(self.budget.margin_s), format_duration(limit))
        run.training.save(self._saved)
        run.nodes.send(run.nodes.all[0], Checkpoint())
        run.loop.after(limit, lambda: self._saved(None, f"it was not written within {format_duration(limit)}"))

    def _why_not(self) -> str | None:
        """Why there is nothing to save, None: there is."""
        if self._run.training is None:
            return "the training had not begun"
        return None if self._run.work.framework.checkpoint else f"framework {self._run.run['cell']['framework']!r} writes none"

    def heard_saving(self, step: int | None) -> None:
        """The head node says at which step its ranks are."""
        if step is None and self._saving:
            self._saved(None, "no step was done")

    def _saved(self, step: int | None, why: str | None) -> None:
        self._run.scope.end(self.ending(step, why))

    def ending(self, step: int | None = None, why: str | None = None) -> Ending:
        """How the run ends now that its time is over, with a checkpoint at `step`, or without one."""
        before = self.goes_on_from
        saved = Saved(step=step, why=why, resumed_step=None if before is None else before.step)
        job_s = None if self._job_end is None or self._begun is None else self._job_end - self._begun
        return at_deadline(self.budget, job_s, saved)

    def ended_by(self, word: str | None, told: str) -> Ending:
        """How the run ends that the scheduler has ended, by `word` of Scheduler.ended_by; `told`: what was seen of it."""
        return by_scheduler(word, told, self.ending(why=None))
