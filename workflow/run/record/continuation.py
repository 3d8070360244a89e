"""Continue a training over several attempts: its checkpoints, walltime budget, login time, progress line and waiting results. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from base import chunks, humanize
from cluster.schedulers.jobs import SUBMISSION
from containers.spec import CHECKPOINT
from workflow.run.record.events import MAX_KEPT, RankEvents
from workflow.run.record.model import Checkpoint, File, Performance, RunRecord, Status, Training, WindowSeen
from workflow.run.record.outcome import Ending
from workflow.run.record.rate import thinned
from workflow.study.cell import Cell, RunLimits
from workflow.study.site import Site

# The deadline of an attempt and the name of its end. Times are seconds, counted from any moment that the caller chooses.
#
# `limits.walltime` is the run's budget over all its attempts. An attempt ends, a margin before, at the end of its budget or of its job,
# whichever comes first. The margin is for the checkpoint and the push.


MARGIN_SHARE: Final = 0.2
LEAST_MARGINS: Final = 2.0
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
        return LEAST_MARGINS * self.margin_s

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


RESUMABLE_RESULT: Final = "timeout"
"""The one result that is resumed when it is retried: nothing was wrong with the training, it had too little time."""


OTHER_PROGRAM: Final = "trained with other files in the folder of the program than a later one"
"""The warning of a run whose attempts had different programs: a record has the digest of the last one's."""


class EarlierAttempt(Struct, frozen=True, kw_only=True):
    """An attempt from which another one can resume, with its checkpoint."""

    attempt: int
    step: int
    bytes: int
    """The size of the checkpoint."""
    blake3: str
    """The hash of the checkpoint."""
    listed: bool
    """True if the list of its chunks is beside it: not so of earlier versions."""
    program_digest: str | None = None
    """The digest of the folder of the program that trained, where it was one of the study."""
    several_programs: bool = False
    """True if that attempt was resumed from one of another program."""
    used_s: float
    """What was trained of the run's walltime up to here."""
    performance: Performance | None
    window_seen: WindowSeen | None = None
    training: Training | None


def resumable(records: Iterable[RunRecord], cell: Cell, budget: Budget) -> list[EarlierAttempt]:
    """Return the attempts to resume from, the best first.

    `records`: of the run's attempts, the newest first; `budget`: its used_s does not count. Only attempts since the last result count;
    that one too if it ran into its walltime, and there is more of it now. The retry of any other result begins anew.
    """
    found = []
    for record in records:
        earlier = _earlier(record, cell)
        fits = earlier is not None and budget.walltime_s - earlier.used_s >= budget.least_s
        if record.kind == "result" and not (record.status == RESUMABLE_RESULT and fits):
            break
        if earlier is not None and fits:
            found.append(earlier)
    return found


def _earlier(record: RunRecord, cell: Cell) -> EarlierAttempt | None:
    """Return the attempt as one to resume from, or None if it has no checkpoint that was pushed, or is of another cell."""
    files = record.files or ()
    file = next((file for file in files if file.path == CHECKPOINT), None)
    if record.cell != cell or record.checkpoint is None or record.checkpoint.step is None or file is None:
        return None
    digest = record.provenance.program_digest
    return EarlierAttempt(
        attempt=record.attempt,
        step=record.checkpoint.step,
        bytes=file.bytes,
        blake3=file.blake3,
        listed=any(other.path == chunks.chunks_name(CHECKPOINT) for other in files),
        program_digest=digest if isinstance(digest, str) else None,
        several_programs=any(OTHER_PROGRAM in warning for warning in record.warnings or ()),
        used_s=round((record.resumed_from.used_s if record.resumed_from else 0.0) + (record.steps_s.train or 0.0), 6),
        performance=record.performance,
        window_seen=record.window_seen,
        training=record.training,
    )


def checkpoint_of(events: Mapping[int, RankEvents]) -> Checkpoint | None:
    """Return the last resumable checkpoint that rank 0 reported."""
    resumable = [event for event in (events[0].checkpoints if 0 in events else []) if event.resumable]
    if not resumable or resumable[-1].step is None or resumable[-1].bytes is None:
        return None
    return Checkpoint(step=resumable[-1].step, bytes=resumable[-1].bytes)


def pushed_checkpoint(checkpoint: Checkpoint | None, files: Iterable[File]) -> Checkpoint | None:
    """Return the checkpoint if it is among the files that were pushed."""
    there = checkpoint is not None and any(file.path == CHECKPOINT and file.bytes == checkpoint.bytes for file in files)
    return checkpoint if there else None


def join_training(now: Training | None, earlier: Training | None, step: int) -> Training | None:
    """Add the losses before `step`, and the evaluations until then, of the attempt that this one resumed from."""
    if now is None or earlier is None:
        return now
    losses = (*(entry for entry in earlier.losses or () if entry[0] < step), *(now.losses or ()))
    begin = (*(entry for entry in earlier.first_losses or () if entry[0] < step), *(now.first_losses or ()))
    own = [replace(one, training_s=_sum(one.training_s, earlier.trained_s)) for one in now.evaluations or ()]
    before = [one for one in earlier.evaluations or () if one.step <= step]
    evaluations = {(one.split, one.step): one for one in (*before, *own)}  # one that was made again counts once
    return replace(
        now,
        evaluations=tuple(evaluations.values())[:MAX_KEPT] or now.evaluations,
        trained_s=_sum(now.trained_s, earlier.trained_s),
        first_loss=now.first_loss if earlier.first_loss is None else earlier.first_loss,
        first_losses=begin,
        final_loss=earlier.final_loss if now.final_loss is None else now.final_loss,
        losses=thinned(losses),
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


# The step `login`: the time from the start of the command that was typed until its study is checked and planned.


LOGIN: Final = "SLIPWAY_LOGIN_S"
"""Environment variable: seconds of login until now."""


def login_s(environ: Mapping[str, str]) -> float | None:
    """Return the seconds of login until now, or None where nobody counted them.

    They travel in the environment as a sum of durations, so that clocks of two machines are never compared. All runs of one start have the
    same. `slipway run` and Snakemake count their own time until the plan is made; `slipway submit` until it hands its job over, and
    `slipway remote` counts before that from its own start on the laptop, with logging in and sending. What the job of `slipway submit`
    plans once more is no login.
    """
    try:
        found = float(environ.get(LOGIN, ""))
    except ValueError:
        return None
    return found if 0 <= found < math.inf else None


def with_login(environ: Mapping[str, str], age_s: float) -> dict[str, str]:
    """Return the environment variable for the next command, with `age_s` seconds of this one added."""
    return {LOGIN: f"{(login_s(environ) or 0.0) + max(0.0, age_s):.3f}"}


def planned(environ: Mapping[str, str], age_s: float) -> dict[str, str]:
    """Return the environment variable for the next command of a Snakemake that has made its plan."""
    is_over = SUBMISSION in environ and login_s(environ) is not None
    return {} if is_over else with_login(environ, age_s)


# The progress line: `train: step 120 of 200, 1,480 samples/s, 3.1 s left`.


OFTEN_S: Final = 2.0
SELDOM_S: Final = 10.0
BEGINNING_S: Final = 60.0
"""Who has just started a study looks at it; the log of a run of days is not to be filled."""
UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, " s": 1.0}
_LEFT: Final = re.compile(r", (?P<left>[\d.]+(?: s|[smhd])(?:\d+[smhd])?) left$")
_PART: Final = re.compile(r"([\d.]+)( s|[smhd])")


def seconds_left(line: str) -> float | None:
    """Return the seconds that a line of ProgressLine says are left, or None where it does not."""
    said = _LEFT.search(line)
    if said is None:
        return None
    return sum(float(number) * UNITS[unit] for number, unit in _PART.findall(said["left"]))


class ProgressLine:
    """The line that is due, from the step that all ranks have done. `batch`: samples of a step; None where tokens are counted, which ranks
    alone know. Times are those of the monotonic clock, given by the caller."""

    def __init__(self, batch: int | None, steps: int | None, now: float) -> None:
        self._batch, self._steps = batch, steps
        self._begun = now
        self._due = now
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def due(self, step: int, now: float, tokens: int | None = None) -> str | None:
        """Return the line of step `step`, counted from 0, or None while none is due.

        The rate is since the line before, the time left by the rate since the first. `tokens`: tokens of one step, as all ranks report
        them.
        """
        if now < self._due or (self._last is not None and step + 1 == self._last[1]):
            return None
        self._due = now + (OFTEN_S if now - self._begun < BEGINNING_S else SELDOM_S)
        done = step + 1
        # A program may count its steps from 1, or write one more than were asked.
        told = f"train: step {done:,}" + ("" if self._steps is None or done > self._steps else f" of {self._steps:,}")
        if self._last is not None and self._first is not None and done > self._last[1]:
            each, unit = (tokens, "tokens") if self._batch is None else (self._batch, "samples")
            if each is not None:
                told += f", {each * (done - self._last[1]) / (now - self._last[0]):,.0f} {unit}/s"
            if self._steps is not None and done < self._steps:
                told += f", {humanize.format_duration((self._steps - done) * (now - self._first[0]) / (done - self._first[1]))} left"
        self._first = self._first or (now, done)
        self._last = (now, done)
        return told


# Results that wait on their nodes: the words by which a supervisor reports them.


WAITS: Final = "its result waits on "
MAY_WAIT: Final = "its result may wait on "
"""The words if only the log of the run says that a result waits: no node was asked."""
DELIVER: Final = "; deliver it there with `slipway reap --push`"
PUSH: Final = "push: "
"""What the errors of a push begin with, in the words of a node."""
STATUS: Final = "storage"
"""How such a run has ended."""


def waiting_words(nodes: Sequence[str]) -> str:
    """Return the end of a reason: which nodes a result waits on, and what to do. It is said before they keep it: each may have no room."""
    return f"{WAITS}{', '.join(nodes)} if there is room on the disk there{DELIVER}"


def says_waiting(reason: str) -> bool:
    """Return True if the reason says that a result waits, or may wait."""
    return WAITS in reason or MAY_WAIT in reason


def waiting_reason(error: str) -> str | None:
    """Return why a run has no record if its result waits, by the last error in its log.

    A log on a full storage ends with what a node reported, since nothing more could be written.
    """
    if says_waiting(error):
        return error
    return f"{error}; {MAY_WAIT}its nodes{DELIVER}" if error.startswith(PUSH) else None
