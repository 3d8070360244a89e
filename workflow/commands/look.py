"""What people see of a study that runs: how many runs stand where, what each does, what the rest wait for. Pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from base.units import and_more, counted, format_duration

ADVICE: Final = {
    "failed": "",
    "prevented": "; it runs again with the same command",
}
STYLES: Final = {"done": "green", "failed": "bold red", "prevented": "yellow"}
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


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at a study. `before`: what runs wait for that is still being made; `queue`: why those that wait do."""

    total: int
    done: int
    failed: int
    prevented: int
    active: tuple[Active, ...] = ()
    ended: tuple[Ended, ...] = ()
    before: tuple[str, ...] = ()
    queue: str = ""
    left_s: float | None = None

    @property
    def waiting(self) -> int:
        """How many have not begun, or have no result yet and nobody works on them."""
        return self.total - self.done - self.failed - self.prevented - len(self.active)


def headline(look: Look) -> str:
    """`12 runs: 3 done, 1 failed, 0 prevented, 1 running, 7 waiting; about 2m10s left`."""
    parts = {"done": look.done, "failed": look.failed, "prevented": look.prevented, "running": len(look.active), "waiting": look.waiting}
    left = "" if look.left_s is None or look.left_s < 1 else f"; about {_whole(look.left_s)} left"
    return f"{counted(look.total, 'run')}: {', '.join(f'{count} {name}' for name, count in parts.items())}{left}"


def activity(look: Look) -> list[tuple[str, str]]:
    """Who does what now: (what, step); what is made first, then the runs, then why others wait."""
    rows = [(what, step) for what, _, step in (text.partition(": ") for text in look.before)]
    rows += [(run.words, f"{run.step} ({_whole(run.seconds)} so far)" if run.seconds >= 1 else run.step) for run in look.active]
    if look.waiting and look.active and look.queue:
        rows.append((f"{counted(look.waiting, 'run')} wait{'s' if look.waiting == 1 else ''}", look.queue))
    if not rows:
        rows.append(("snakemake", "starts the next run" if look.waiting else TABLES))
    return rows


def ended_line(ended: Ended) -> str:
    """What became of a run, in one line."""
    if ended.state == "done":
        return f"done: {ended.words}, in {_whole(ended.seconds)}{f' ({ended.reason})' if ended.reason else ''}"
    reason = ended.reason or "no reason is known"
    return f"{ended.state}: {ended.words}: {reason}{ADVICE[ended.state]}; log: {ended.log}"


def _whole(seconds: float) -> str:
    """For people who wait: `43 s`, `4m05s`."""
    return f"{seconds:.0f} s" if seconds < 59.5 else format_duration(seconds)


def plain_lines(look: Look) -> list[str]:
    """Where it stands, for a file or a pipe."""
    return [headline(look), *(f"  {what}: {step}" for what, step in activity(look))]


def folded(rows: Sequence[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """At most so many rows; the last then says how many are left out."""
    if len(rows) <= most:
        return list(rows)
    kept = rows[: max(0, most - 1)]
    return [*kept, (and_more(len(rows), len(kept)), "")]
