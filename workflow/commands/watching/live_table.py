"""Show people the state of a study: a live table on a terminal, plain lines elsewhere, at least one every 10 s, on standard error."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TextIO

from base.humanize import and_more, counted, whole_duration
from base.logs import printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live


# The values that people see of a study that runs.


STYLES: Final = {"done": "green", "failed": "bold red", "prevented": "yellow"}
ENDS: Final = "ends what it has started"
SILENT_S: Final = 10.0
"""A scheduler is busy now and then."""
MAX_QUEUED: Final = 8
NOT_MEASURED: Final = "time left: known when a run has ended"
TABLES: Final = "looks whether tables, plots and report are up to date, and makes them if not"


@dataclass(frozen=True, kw_only=True)
class Active:
    """A run that somebody works on: its cell in words, what its supervisor said last, and for how long."""

    words: str
    step: str
    seconds: float

    @property
    def waits(self) -> bool:
        """Return True if the run has not begun, since something is in its way."""
        return self.step.startswith("waiting")

    @property
    def now(self) -> str:
        return f"{self.step} ({whole_duration(self.seconds)} so far)" if self.seconds >= 1 else self.step


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that ended: `state` is done, failed or prevented."""

    words: str
    state: str
    seconds: float
    reason: str | None = None
    log: str | None = None


@dataclass(frozen=True, kw_only=True)
class StudyState:
    """The state of a study at one moment.

    `before`: what runs wait for that is still being made; `queued`: (run, what its job in the queue does); `queue`: why the others wait;
    `silent_s`: for how long the `server` of the scheduler is silent; `ending`: this command was told to end.
    """

    total: int
    done: int
    failed: int
    prevented: int
    active: tuple[Active, ...] = ()
    ended: tuple[Ended, ...] = ()
    before: tuple[str, ...] = ()
    queue: str = ""
    left_s: float | None = None
    queued: tuple[tuple[str, str], ...] = ()
    silent_s: float | None = None
    server: str = ""
    ending: bool = False

    @property
    def waiting(self) -> int:
        """Count the runs that have not begun, or have no result yet and nobody works on them."""
        return self.total - self.done - self.failed - self.prevented - len(self.active)


def headline(study: StudyState) -> str:
    """Return the first line: `12 runs: 3 done, 1 failed, 0 prevented, 1 running, 7 waiting; about 2m10s left`. Before any step was measured
    it says so."""
    parts = {
        "done": study.done,
        "failed": study.failed,
        "prevented": study.prevented,
        "running": len(study.active),
        "waiting": study.waiting,
    }
    to_do = study.waiting + len(study.active) > 0
    left = f"; {NOT_MEASURED}" if to_do and study.left_s is None else ""
    if study.left_s is not None and study.left_s >= 1:
        left = f"; about {whole_duration(study.left_s)} left"
    return f"{counted(study.total, 'run')}: {', '.join(f'{count} {name}' for name, count in parts.items())}{left}"


def activity(study: StudyState) -> list[tuple[str, str]]:
    """Return who does what now, as (what, step): first the runs at work, then what is made before runs, then why others wait, and what
    nobody can say."""
    at_work, waiting = ([(run.words, run.now) for run in study.active if run.waits == waits] for waits in (False, True))
    before = [(what, step) for what, _, step in (text.partition(": ") for text in study.before)]
    rows = [*at_work, *before, *waiting, *study.queued[:MAX_QUEUED]]
    if more := and_more(len(study.queued), MAX_QUEUED, "runs"):
        rows.append((more, "jobs of theirs are in the queue too"))
    left = study.waiting - len(study.queued)
    if left > 0 and (study.active or study.queued) and study.queue and not study.ending:
        rows.append((f"{counted(left, 'run')} wait{'s' if left == 1 else ''}", study.queue))
    if study.ending and not rows:
        rows.append(("snakemake", ENDS))
    if study.silent_s is not None and study.silent_s >= SILENT_S:
        rows.append((study.server, f"does not answer, for {whole_duration(study.silent_s)}; jobs go on"))
    if not rows:
        rows.append(("snakemake", "starts the next run" if study.waiting else TABLES))
    return rows


def ended_line(ended: Ended) -> str:
    """Describe the end of a run in one line."""
    if ended.state == "done":
        return f"done: {ended.words}, in {whole_duration(ended.seconds)}{f' ({ended.reason})' if ended.reason else ''}"
    reason = ended.reason or "no reason is known"
    advice = "; the same command runs it again" if ended.state == "prevented" else ""
    return f"{ended.state}: {ended.words}: {reason}{advice}; log: {ended.log}"


def plain_line(what: str, step: str) -> str:
    """Format a row of `activity`."""
    return f"  {what}{': ' if step else ''}{step}"


EVERY_S: Final = 8.0
"""Less than 10 s, whatever reading storage and a slow machine add."""
ALL_EVERY_S: Final = 60.0
"""The seconds until all steps are written again, and not the first alone: a log of hours is to be read by somebody."""
DRAW_S: Final = 0.5
"""The seconds between two drawings of a table."""
LATE_S: Final = 20.0
Clock = Callable[[], float]


class View:
    """What people see of a study again and again: a table on a terminal (`live`), and lines with the time of day elsewhere.

    Nobody may be listening any more (`| head`, a full disk, a terminal that is gone): the study goes on, or ends by SIGHUP.
    """

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic, live: Live | None = None) -> None:
        self._stream, self._clock, self._live = stream, clock, live
        self._last = clock()
        self._told_all = self._last - ALL_EVERY_S

    def show(self, study: StudyState, age_s: float) -> None:
        """Draw the table, or write the counts and the first step on one line every few seconds, and the other steps once a minute."""
        if self._live is not None:
            with suppress(OSError):
                self._live.update(drawn(study, age_s), refresh=True)
        elif self._clock() - self._last >= EVERY_S:
            first, *others = activity(study)
            self.print(f"{headline(study)}{_late(age_s)}; {plain_line(*first).strip()}")
            if others and self._clock() - self._told_all >= ALL_EVERY_S:
                self._told_all = self._clock()
                for row in others:
                    self.print(plain_line(*row))

    def print(self, text: str, style: str = "") -> None:
        """Print a line that stays, at once, and in which the terminal breaks no path; `style`: its colour there."""
        self._last = self._clock()
        with suppress(OSError):
            if self._live is not None:
                from rich.text import Text

                self._live.console.print(Text(printable(text), style=style), soft_wrap=True)
            else:
                self._stream.write(f"{time.strftime('%H:%M:%S')} {printable(text)}\n")
                self._stream.flush()

    def ended(self, study: StudyState) -> None:
        """Tell what ended since the last study."""
        for one in study.ended:
            self.print(ended_line(one), STYLES[one.state])

    def clear(self) -> None:
        """Clear the table that was drawn last: nothing runs any more."""
        if self._live is not None:
            with suppress(OSError):
                self._live.update("", refresh=True)


@contextmanager
def open_view(stream: TextIO | None = None) -> Iterator[View]:
    """Return the view that fits to `stream`."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield View(stream)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False) as live:
        yield View(stream, live=live)


def drawn(study: StudyState, age_s: float) -> Group:
    """Draw the table: a row per run that runs, folded to the width of the terminal; what is too high for it is cut by `Live`."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid(padding=(0, 2))
    for what, step in activity(study):
        rows.add_row(Text(printable(what), style="cyan"), Text(printable(step)))
    return Group(Text(headline(study) + _late(age_s), style="bold red" if study.failed or study.prevented else "bold"), rows)


def _late(age_s: float) -> str:
    return f"; storage has not answered for {age_s:.0f} s" if age_s > LATE_S else ""


# The reader of the state, in a thread of its own: storage may hang, and the command that waits for Ctrl-C must not.


READ_EVERY_S: Final = 1.0
LAST_S: Final = 10.0

logger = logging.getLogger(__name__)


class Refresher:
    """A reader that reads every second until `stop`."""

    def __init__(self, read: Callable[[], StudyState], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._new: SimpleQueue[StudyState] = SimpleQueue()
        self._last: StudyState | None = None
        self._stop = threading.Event()
        self._at = clock()
        self._thread = threading.Thread(target=self._go_on, name="refresher", daemon=True)
        self._thread.start()

    def draw(self, view: View, *, ending: bool = False) -> None:
        """Show the newest state, and what has ended since the last call. `ending`: we were told to end."""
        self._report(view)
        if self._last is not None:
            view.show(replace(self._last, ending=ending), self._clock() - self._at)

    def stop(self, view: View) -> None:
        """Stop reading, and tell what has ended by now, if storage answers."""
        self._stop.set()
        self._thread.join(LAST_S)
        self._report(view)

    def _report(self, view: View) -> None:
        while not self._new.empty():
            self._last = self._new.get()
            view.ended(self._last)

    def _go_on(self) -> None:
        while True:
            last = self._stop.wait(READ_EVERY_S)
            try:
                study = self._read()
            except OSError as error:
                logger.warning("storage cannot be looked at: %s: %s", error.filename, error.strerror)
            else:
                self._new.put(study)
                self._at = self._clock()
            if last:
                return
