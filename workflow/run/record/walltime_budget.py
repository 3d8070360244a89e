"""Decide when an attempt ends for want of time, and name its end: budget, margin, deadline, and the words of the scheduler. Pure."""

import math
from dataclasses import dataclass
from typing import Final

from base import humanize
from workflow.run.record.model import Status
from workflow.run.record.outcome import Ending
from workflow.study.cell import RunLimits
from workflow.study.site import Site

# The deadline of an attempt and the name of its end. Times are seconds, counted from any moment that the caller chooses.
#
# `limits.walltime` is the run's budget over all its attempts. An attempt ends, a margin before, at the end of its budget or of its job,
# whichever comes first. The margin is for the checkpoint and the push.


MARGIN_SHARE: Final = 0.2
MIN_MARGINS: Final = 2.0
SAVE_SHARE: Final = 0.5
"""The share of the margin that a checkpoint may take. The rest is for stopping and the push."""


def margin_of(site_margin_s: float, walltime_s: float, job_s: float | None) -> float:
    """Return the seconds kept for checkpoint and push: the site's `deadline_margin`, at most a fifth of the walltime, or of the job if
    that is shorter.
    """
    return min(site_margin_s, MARGIN_SHARE * min(walltime_s, math.inf if job_s is None else job_s))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The walltime of the run, what earlier attempts trained of it, the margin."""

    walltime_s: float
    used_s: float = 0.0
    margin_s: float

    @property
    def left_s(self) -> float:
        """Return the seconds left for this attempt."""
        return self.walltime_s - self.used_s

    @property
    def least_s(self) -> float:
        """Return the least seconds with which an attempt is begun; with less it would come to nothing."""
        return MIN_MARGINS * self.margin_s

    def outlives(self, job_s: float | None) -> bool:
        """Return True if enough for another attempt is left when the job ends, `job_s` after this attempt's begin (None: the job does
        not end).
        """
        return job_s is not None and self.left_s - job_s >= self.least_s


def budget_of(site: Site, limits: RunLimits) -> Budget:
    """Return the budget of a run at its first attempt."""
    return Budget(walltime_s=limits.walltime_s, margin_s=margin_of(site.deadline_margin_s, limits.walltime_s, site.walltime_s))


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What became of the checkpoint at the deadline: the step it stands at, or why there is none."""

    step: int | None = None
    why: str | None = None
    resumed_step: int | None = None
    """The step from which this attempt resumed an earlier one."""

    @property
    def progress(self) -> bool:
        """Return True if another attempt would begin further on than this one did."""
        return self.step is not None and self.step > (self.resumed_step or 0)


def at_deadline(budget: Budget, job_s: float | None, saved: Saved) -> Ending:
    """Return the ending of an attempt whose time is over.

    It is `timeout`, a result, where the budget is used up; else `preempted`, which is resumed.
    """
    margin = f"{budget.margin_s:.0f} s"
    if not budget.outlives(job_s):
        walltime = humanize.format_duration(budget.walltime_s)
        spent = f" ({humanize.format_duration(budget.used_s)} of it in earlier attempts)" if budget.used_s else ""
        reason = (
            f"the walltime of {walltime}{spent} is over but for {margin}, kept for the push{_of_timeout(saved)}; `limits.walltime` sets it"
        )
        return Ending(status="timeout", reason=reason, planned=True)
    left = humanize.format_duration(budget.left_s - (job_s or 0.0))
    reason = f"the job ends in {margin}, and the run has {left} left; {_of_preempted(saved)}"
    return Ending(status="preempted", reason=reason, planned=True, requeue=saved.progress)


def too_late(budget: Budget, job_s: float) -> Ending:
    """Return the ending of an attempt that is not begun, since the job has too little time left for it."""
    reason = (
        f"the job ends in {max(0.0, job_s):.0f} s, and an attempt needs {budget.least_s:.0f} s at the least "
        f"(two times the deadline margin of {budget.margin_s:.0f} s): not begun; the next job begins it"
    )
    return Ending(status="preempted", reason=reason, planned=True)


def by_scheduler(word: str | None, told: str, ours: Ending) -> Ending:
    """Return the ending that the scheduler reports.

    `word`: one of the words of `Scheduler.ended_by`; `told`: what was seen of it; `ours`: the ending by our own clock now, for a job
    that reached its limit before our clock did.
    """
    if word == "timeout":
        reason = f"{told}: the job reached its time limit before our clock did; nothing could be saved"
        return Ending(status=ours.status, reason=reason)
    status, what = _BY_SCHEDULER.get(word or "", ("cancelled", ""))
    return Ending(status=status, reason=f"{told}{what}")


_BY_SCHEDULER: Final[dict[str, tuple[Status, str]]] = {
    "cancelled": ("cancelled", ": the job was cancelled"),
    "preempted": ("preempted", ": the scheduler took the nodes back for another job"),
    "requeued": ("preempted", ": the job was put back into the queue"),
    "node_lost": ("node_lost", ": the scheduler has lost a node of the job"),
}


def _of_timeout(saved: Saved) -> str:
    if saved.step is not None:
        return f"; resumable at step {saved.step} (`slipway run STUDY --retry failed`, with a longer one)"
    return f"; no checkpoint: {saved.why}" if saved.why else ""


def _of_preempted(saved: Saved) -> str:
    if saved.step is not None:
        return f"resumable at step {saved.step}: the next attempt resumes there"
    from_where = "from the beginning" if saved.resumed_step is None else f"at step {saved.resumed_step} once more"
    return f"no checkpoint ({saved.why}): the next attempt begins {from_where}"
