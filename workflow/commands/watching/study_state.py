"""What people see of a study that runs: how many runs are in which state, what each of them does, what the rest wait for. Pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from base.units import and_more, counted, whole_duration
from cluster.schedulers import with_jobs
from workflow.run.record.waiting import tells_waiting

ADVICE: Final = {
    "failed": "",
    "prevented": "; it runs again with the same command",
    "waits": "; the same command does so first where the run gets that node again, else it trains the run again",
    "refused": "; correct the site file or the study, then the same command runs it",
}
STYLES: Final = {"done": "green", "failed": "bold red", "prevented": "yellow"}
ENDS: Final = "ends what it has started"
SILENT_S: Final = 10.0
"""A scheduler is busy now and then."""
MOST_QUEUED: Final = 8
TABLES: Final = "looks whether tables, plots and report are up to date, and makes them if not"


@dataclass(frozen=True, kw_only=True)
class Active:
    """A run that somebody works on: its cell in words, what its supervisor said last, and for how long."""

    words: str
    step: str
    seconds: float

    @property
    def waits(self) -> bool:
        """Whether it has not begun, since something is in its way."""
        return self.step.startswith("waiting")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that ended: `state` is done, failed or prevented."""

    words: str
    state: str
    seconds: float
    reason: str | None = None
    log: str | None = None

    @property
    def refused(self) -> bool:
        """Whether it cannot run before somebody changes something."""
        return self.state == "prevented" and (self.reason or "").startswith(tuple(f"{jobs.TITLE} refused" for jobs in with_jobs().values()))

    @property
    def style(self) -> str:
        """Its colour."""
        return STYLES["failed" if self.refused else self.state]


@dataclass(frozen=True, kw_only=True)
class StudyState:
    """Where a study stands at one moment. `before`: what runs wait for that is still being made; `queued`: (run, what its job in the queue
    does); `queue`: why the others wait; `silent_s`: for how long the `server` of the scheduler is silent; `ending`: we were told to end."""

    total: int
    done: int
    failed: int
    prevented: int
    active: tuple[Active, ...] = ()
    ended: tuple[Ended, ...] = ()
    before: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    """What people should know at once, and did not yet."""
    queue: str = ""
    left_s: float | None = None
    queued: tuple[tuple[str, str], ...] = ()
    silent_s: float | None = None
    server: str = ""
    ending: bool = False

    @property
    def waiting(self) -> int:
        """How many have not begun, or have no result yet and nobody works on them."""
        return self.total - self.done - self.failed - self.prevented - len(self.active)


def headline(study: StudyState) -> str:
    """`12 runs: 3 done, 1 failed, 0 prevented, 1 running, 7 waiting; about 2m10s left`."""
    parts = {
        "done": study.done,
        "failed": study.failed,
        "prevented": study.prevented,
        "running": len(study.active),
        "waiting": study.waiting,
    }
    left = "" if study.left_s is None or study.left_s < 1 else f"; about {whole_duration(study.left_s)} left"
    return f"{counted(study.total, 'run')}: {', '.join(f'{count} {name}' for name, count in parts.items())}{left}"


def activity(study: StudyState) -> list[tuple[str, str]]:
    """Return who does what now, as (what, step): first the runs at work, then what is made before runs, then why others wait, and what
    nobody can say."""
    at_work, waiting = ([_run_row(run) for run in study.active if run.waits == waits] for waits in (False, True))
    before = [(what, step) for what, _, step in (text.partition(": ") for text in study.before)]
    rows = [*at_work, *before, *waiting]
    shown = study.queued if len(study.queued) <= MOST_QUEUED else study.queued[: MOST_QUEUED - 1]
    rows += shown
    if len(shown) < len(study.queued):
        rows.append((and_more(len(study.queued), len(shown), "runs"), "jobs of theirs are in the queue too"))
    left = study.waiting - len(study.queued)
    if left > 0 and (study.active or shown) and study.queue and not study.ending:
        rows.append((f"{counted(left, 'run')} wait{'s' if left == 1 else ''}", study.queue))
    if study.ending and not rows:
        rows.append(("snakemake", ENDS))
    if study.silent_s is not None and study.silent_s >= SILENT_S:
        rows.append((study.server, f"does not answer, for {whole_duration(study.silent_s)}; jobs go on"))
    if not rows:
        rows.append(("snakemake", "starts the next run" if study.waiting else TABLES))
    return rows


def _run_row(run: Active) -> tuple[str, str]:
    return run.words, f"{run.step} ({whole_duration(run.seconds)} so far)" if run.seconds >= 1 else run.step


def ended_line(ended: Ended) -> str:
    """What became of a run, in one line."""
    if ended.state == "done":
        return f"done: {ended.words}, in {whole_duration(ended.seconds)}{f' ({ended.reason})' if ended.reason else ''}"
    reason = ended.reason or "no reason is known"
    advice = ADVICE["refused" if ended.refused else "waits" if tells_waiting(reason) else ended.state]
    return f"{ended.state}: {ended.words}: {reason}{advice}; log: {ended.log}"


def plain_line(what: str, step: str) -> str:
    """A row of `activity`."""
    return f"  {what}{': ' if step else ''}{step}"


def folded(rows: Sequence[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """At most so many rows; the last then says how many are left out."""
    if len(rows) <= most:
        return list(rows)
    kept = rows[: max(0, most - 1)]
    return [*kept, (and_more(len(rows), len(kept)), "")]
