"""Print text for people on standard output: lines and tables, safe for a terminal, folded where it is one and never cut."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final, TextIO

from base.humanize import format_duration, format_size
from base.logs import printable
from base.tabular import tabulated, wrapped


def line(text: str = "") -> None:
    """Print a line on standard output."""
    sys.stdout.write(f"{printable(text)}\n")


def notice(text: str) -> None:
    """Print a line on standard error: what keeps the command busy, which is no result."""
    sys.stderr.write(f"slipway: {printable(text)}\n")
    sys.stderr.flush()


def json_value(value: Any) -> None:
    """Print a JSON document on standard output, for programs."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    if printable(text) != text:  # what a terminal would not show: as an escape it is the same value
        text = json.dumps(value, indent=1, sort_keys=True)
    sys.stdout.write(text + "\n")


def mapping(value: Mapping[str, object], indent: str = "  ") -> None:
    """Print keys and values as in a YAML file: innermost mappings and lists on one line."""
    import yaml

    text = yaml.safe_dump(dict(value), default_flow_style=None, allow_unicode=True, width=10_000)
    for part in text.splitlines():
        line(f"{indent}{part}")


def width() -> int | None:
    """Return the columns of the terminal; None where standard output is none, and nothing is folded."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def prose(text: str, indent: str = "") -> None:
    """Print sentences, on a terminal folded at blanks, so that no number or path is cut.

    `indent` stands before the second line and the next.
    """
    columns = width()
    rest = text.lstrip(" ")
    first = text[: len(text) - len(rest)]
    for number, part in enumerate([rest] if columns is None else wrapped(rest, columns - max(len(first), len(indent)))):
        line(f"{indent if number else first}{part}")


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns under headers, as wide as the terminal. None is shown as `-`."""
    cells = [["-" if value is None else printable(str(value)) for value in row] for row in rows]
    head, lines = tabulated(headers, cells, width())
    for text in head:
        heading(text)
    for text in lines:
        line(text)


def styled(first: str, style: str, rest: str) -> None:
    """Print a line whose beginning is coloured on a terminal."""
    if not sys.stdout.isatty():
        line(first + rest)
        return
    from rich.console import Console
    from rich.text import Text

    Console(soft_wrap=True).print(Text.assemble((printable(first), style), printable(rest)))


def heading(text: str) -> None:
    """Print a line that stands out on a terminal."""
    styled(text, "bold", "")


# The progress of long work: a bar on a terminal, a plain line every few seconds elsewhere, and a last line.


EVERY_S: Final = 5.0

Callback = Callable[[int, int], None]  # done, in all
Clock = Callable[[], float]


@contextmanager
def progress(
    title: str,
    unit: str = "bytes",
    stream: TextIO | None = None,
    clock: Clock = time.monotonic,
    *,
    forks: bool = False,
    every_s: float = EVERY_S,
) -> Iterator[Callback]:
    """Show the progress of the work called `title`, by a callback `(done, total)`.

    `unit` is `bytes`, or the plural of what is counted, such as `runs`. Elsewhere than on a terminal a line every `every_s` seconds.
    `forks`: the work does, and no thread may run beside it (base/calls.py); then nothing is shown between two calls.
    """
    stream = stream or sys.stderr
    shown = _bar if stream.isatty() else partial(_lines, every_s=every_s)
    with shown(printable(title), unit, stream, clock, not forks) as callback:
        yield callback


@contextmanager
def waiting(title: str, stream: TextIO | None = None, every_s: float = EVERY_S) -> Iterator[Callable[[str], None]]:
    """Show `title` and the time since it began during work that counts nothing; the callback adds words.

    Elsewhere than on a terminal a line every `every_s` seconds. Short work leaves nothing behind.
    """
    stream = stream or sys.stderr
    with _waiting_spinner(printable(title), stream) if stream.isatty() else _waiting_lines(printable(title), stream, every_s) as callback:
        yield callback


def amount(number: float, unit: str) -> str:
    """Format a number of bytes or of things, for people."""
    return format_size(number) if unit == "bytes" else f"{number:,.0f} {unit}"


def describe(done: int, total: int, seconds: float, unit: str) -> str:
    """Format `12.0 MB of 30.0 MB (40 %), 6.0 MB/s, 3.0 s left`; without total or time, what is known."""
    parts = [amount(done, unit)]
    if total > 0:
        parts = [f"{amount(done, unit)} of {amount(total, unit)} ({100 * done // total} %)"]
    if seconds > 0 and done > 0:
        rate = done / seconds
        parts.append(f"{format_size(rate)}/s" if unit == "bytes" else f"{rate:.3g} {unit}/s")
        if total > done:
            parts.append(f"{format_duration((total - done) / rate)} left")
    return ", ".join(parts)


@contextmanager
def _lines(title: str, unit: str, stream: TextIO, clock: Clock, between: bool, *, every_s: float) -> Iterator[Callback]:
    started = clock()
    last = started
    seen = (0, 0)

    def say() -> None:
        nonlocal last
        last = clock()
        stream.write(f"{title}: {describe(*seen, last - started, unit)}\n")
        stream.flush()

    def callback(done: int, total: int) -> None:
        nonlocal seen
        seen = (done, total)
        if clock() - last >= every_s:
            say()

    with _every(every_s, lambda: say() if clock() - last >= every_s else None) if between else nullcontext():
        yield callback
    seconds = clock() - started
    stream.write(f"{title}: {amount(seen[0], unit)} in {format_duration(seconds)}\n")
    stream.flush()


@contextmanager
def _bar(title: str, unit: str, stream: TextIO, clock: Clock, between: bool) -> Iterator[Callback]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.text import Text

    class Rate(TextColumn):
        """The column of things per second, since rich knows only bytes per second."""

        def render(self, task: object) -> Text:
            speed = getattr(task, "speed", None)
            return Text(f"{speed:.3g}/s" if speed else "")

    counted = [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn(), TextColumn(unit), Rate("")]
    columns = [TextColumn("{task.description}"), BarColumn(), *counted, TimeRemainingColumn()]
    with Progress(*columns, console=Console(file=stream), get_time=clock, auto_refresh=between) as bar:
        task = bar.add_task(title, total=None)

        def callback(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None, refresh=not between)

        yield callback


@contextmanager
def _every(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """Call it again and again, from a thread of its own, which has ended when this has."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _waiting_lines(title: str, stream: TextIO, every_s: float) -> Iterator[Callable[[str], None]]:
    started, words = time.monotonic(), title

    def callback(text: str) -> None:
        nonlocal words
        words = f"{title}: {printable(text)}"

    def say() -> None:
        stream.write(f"{words} ({format_duration(time.monotonic() - started)})\n")
        stream.flush()

    with _every(every_s, say):
        yield callback


@contextmanager
def _waiting_spinner(title: str, stream: TextIO) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console, both = Console(file=stream), sys.stdout.isatty()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=both) as shown:
        task = shown.add_task(title, total=None)
        yield lambda text: shown.update(task, description=f"{title}: {printable(text)}")
