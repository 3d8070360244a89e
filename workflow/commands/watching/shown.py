"""Where a study stands, for people: a live table on a terminal, plain lines elsewhere, at least one every 10 s. On standard error."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from base.logs import printable
from workflow.commands.watching.study_state import StudyState, activity, ended_line, folded, headline, plain_line

if TYPE_CHECKING:
    from rich.console import Group

EVERY_S: Final = 8.0
"""Less than 10 s, whatever reading storage and a slow machine add."""
DRAW_S: Final = 0.5
"""Between two drawings of a table."""
AGAIN_S: Final = 60.0
"""Until a line that has nothing new but numbers is written again: a log of hours is to be read by somebody."""
LATE_S: Final = 20.0
_NUMBER: Final = re.compile(r"\d[\d.]*(?:[dhms][\d.]*)*")
"""A duration too."""
GAP: Final = "  "
Clock = Callable[[], float]


class Shown(Protocol):
    """Shows where a study stands, again and again; `say` a sentence between them."""

    def show(self, study: StudyState, age_s: float) -> None:
        """`study` may be shown again; what ended in it is told once, by the caller's `ended`."""

    def say(self, sentence: str, style: str = "") -> None:
        """A line that stays, and in which the terminal breaks no path; `style`: its colour there."""

    def ended(self, study: StudyState) -> None:
        """Tell what ended since the last study."""
        for sentence in study.told:
            self.say(sentence, "yellow")
        for one in study.ended:
            self.say(ended_line(one), one.style)

    def clear(self) -> None:
        """Nothing runs any more: what was shown last is not true now."""


@contextmanager
def shown(stream: TextIO | None = None, clock: Clock = time.monotonic) -> Iterator[Shown]:
    """What fits to `stream`."""
    stream = stream or sys.stderr
    if stream.isatty():
        with _table(stream) as table:
            yield table
    else:
        yield Lines(stream, clock)


class Lines(Shown):
    """Plain lines, each with the time of day. Nobody may be listening any more (`| head`, a full disk): the study goes on."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._stream, self._clock = stream, clock
        self._last = clock()
        self._written: dict[tuple[str, str], float] = {}
        """Who, and what it does without the numbers -> when."""

    def show(self, study: StudyState, age_s: float) -> None:
        """Write the counts and the first step on one line every few seconds; the other steps follow where they are new, or a minute old."""
        if self._clock() - self._last < EVERY_S:
            return
        first, *others = activity(study)
        self.say(f"{headline(study)}{_late(age_s)}; {plain_line(*first).strip()}")
        now = self._clock()
        self._written = {row: at for row, at in self._written.items() if now - at < AGAIN_S}
        for what, step in others:
            if (row := (what, _NUMBER.sub("#", step))) not in self._written:
                self._write(f"{'':8} {plain_line(what, step)}")
                self._written[row] = now

    def say(self, sentence: str, style: str = "") -> None:  # noqa: ARG002 - a pipe has no colours
        """Now, also into a pipe."""
        self._write(f"{time.strftime('%H:%M:%S')} {sentence}")

    def clear(self) -> None:
        """Lines stay."""

    def _write(self, line: str) -> None:
        self._last = self._clock()
        with suppress(OSError):
            self._stream.write(f"{printable(line)}\n")
            self._stream.flush()


@contextmanager
def _table(stream: TextIO) -> Iterator[Shown]:
    """Below the lines that stay, drawn anew each time, as wide as the terminal is then."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False) as live:

        class Table(Shown):
            def show(self, study: StudyState, age_s: float) -> None:
                with suppress(OSError):  # the terminal is gone: the study goes on, or ends by SIGHUP
                    live.update(drawn(study, age_s, console.width, console.height), refresh=True)

            def say(self, sentence: str, style: str = "") -> None:
                with suppress(OSError):
                    console.print(Text(printable(sentence), style=style), soft_wrap=True)

            def clear(self) -> None:
                with suppress(OSError):
                    live.update(Text(""), refresh=True)

        yield Table()


def drawn(study: StudyState, age_s: float, width: int, height: int) -> Group:
    """The table: a row per run that runs, of two lines where one has no room for it; cut where the terminal ends."""
    from rich.console import Group
    from rich.text import Text

    found = activity(study)
    widest = max(len(what) for what, _ in found)
    two = any(widest + len(GAP) + len(step) > width for _, step in found)
    style = "bold red" if study.failed or study.prevented else "bold"
    lines = [Text(headline(study) + _late(age_s), style=style)]
    for what, step in folded(found, max(1, (height - 2) // (2 if two else 1))):
        if two:
            lines += [Text(printable(what), style="cyan"), Text(f"  {printable(step)}")] if step else [Text(what)]
        else:
            lines.append(Text.assemble((printable(what).ljust(widest), "cyan"), GAP, printable(step)))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _late(age_s: float) -> str:
    return f"; storage has not answered for {age_s:.0f} s" if age_s > LATE_S else ""
