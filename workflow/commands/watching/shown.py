"""A look at a study for people: a live table on a terminal, plain lines elsewhere, at least one every 10 s. On standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from base.logs import printable
from workflow.commands.watching.look import Look, activity, ended_line, folded, headline, plain_lines

if TYPE_CHECKING:
    from rich.console import Group

EVERY_S: Final = 8.0
"""Less than 10 s, whatever a look and a slow machine add."""
LATE_S: Final = 20.0
GAP: Final = "  "
Clock = Callable[[], float]


class Shown(Protocol):
    """Shows looks, one after the other; `say` a sentence between them."""

    def show(self, look: Look, age_s: float) -> None:
        """`look` may be shown again; what ended in it is told once, by the caller's `ended`."""

    def ended(self, look: Look) -> None:
        """Tell what ended since the last look."""

    def say(self, sentence: str) -> None:
        """A line that stays, and in which the terminal breaks no path."""

    def clear(self) -> None:
        """Nothing runs any more: what the last look saw is not true now."""


@contextmanager
def shown(stream: TextIO | None = None, clock: Clock = time.monotonic) -> Iterator[Shown]:
    """What fits to `stream`."""
    stream = stream or sys.stderr
    if stream.isatty():
        with _table(stream) as table:
            yield table
    else:
        yield Lines(stream, clock)


class Lines:
    """Plain lines, each with the time of day. Nobody may be listening any more (`| head`, a full disk): the study goes on."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._stream, self._clock = stream, clock
        self._last = clock()

    def show(self, look: Look, age_s: float) -> None:
        """Where it stands, if nothing was said for a while."""
        if self._clock() - self._last < EVERY_S:
            return
        first, *others = plain_lines(look)
        self.say(first + _late(age_s))
        for line in others:
            self._write(f"{'':8} {line}")

    def ended(self, look: Look) -> None:
        """A line each."""
        for sentence in look.told:
            self.say(sentence)
        for one in look.ended:
            self.say(ended_line(one))

    def say(self, sentence: str) -> None:
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
    """Below the lines that stay, drawn anew at each look, as wide as the terminal is then."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False) as live:

        class Table:
            def show(self, look: Look, age_s: float) -> None:
                with suppress(OSError):  # the terminal is gone: the study goes on, or ends by SIGHUP
                    live.update(drawn(look, age_s, console.width, console.height), refresh=True)

            def ended(self, look: Look) -> None:
                for sentence in look.told:
                    with suppress(OSError):
                        console.print(Text(printable(sentence), style="yellow"), soft_wrap=True)
                for one in look.ended:
                    with suppress(OSError):
                        console.print(Text(printable(ended_line(one)), style=one.style), soft_wrap=True)

            def say(self, sentence: str) -> None:
                with suppress(OSError):
                    console.print(Text(printable(sentence)), soft_wrap=True)

            def clear(self) -> None:
                with suppress(OSError):
                    live.update(Text(""), refresh=True)

        yield Table()


def drawn(look: Look, age_s: float, width: int, height: int) -> Group:
    """The table: a row per run that runs, of two lines where one has no room for it; cut where the terminal ends."""
    from rich.console import Group
    from rich.text import Text

    found = activity(look)
    widest = max(len(what) for what, _ in found)
    two = any(widest + len(GAP) + len(step) > width for _, step in found)
    style = "bold red" if look.failed or look.prevented else "bold"
    lines = [Text(headline(look) + _late(age_s), style=style)]
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
