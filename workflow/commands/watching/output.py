"""Print text for people on standard output: lines and tables, safe for a terminal, folded where it is one and never cut."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
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
DRAW_S: Final = 0.1
"""The least seconds between two drawings of a bar."""

Callback = Callable[[int, int], None]  # done, in all
Clock = Callable[[], float]


@contextmanager
def progress(title: str, unit: str = "bytes", stream: TextIO | None = None, clock: Clock = time.monotonic) -> Iterator[Callback]:
    """Show the progress of the work called `title`, by a callback `(done, total)`; nothing new between two calls.

    `unit` is `bytes`, or the plural of what is counted, such as `runs`.
    """
    stream, title = stream or sys.stderr, printable(title)
    last = begun = clock()
    seen = (0, 0)
    every_s = DRAW_S if stream.isatty() else EVERY_S
    with _bar(title, stream) if stream.isatty() else nullcontext(lambda words, _share: stream.write(f"{title}: {words}\n")) as show:

        def callback(done: int, total: int) -> None:
            nonlocal last, seen
            seen = (done, total)
            if clock() - last >= every_s:
                last = clock()
                show(describe(done, total, last - begun, unit), done / total if total else None)
                stream.flush()

        yield callback
    stream.write(f"{title}: {amount(seen[0], unit)} in {format_duration(clock() - begun)}\n")
    stream.flush()


@contextmanager
def _bar(title: str, stream: TextIO) -> Iterator[Callable[[str, float | None], object]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=Console(file=stream), auto_refresh=False, transient=True) as bar:  # no thread: the work may fork
        task = bar.add_task(title, total=None, words="")
        yield lambda words, share: bar.update(task, words=words, completed=share or 0, total=None if share is None else 1, refresh=True)


@contextmanager
def waiting(title: str, stream: TextIO | None = None) -> Iterator[Callable[[str], None]]:
    """Show `title` on a terminal during work that counts nothing; the callback adds words. Nothing is left behind."""
    stream, title = stream or sys.stderr, printable(title)
    if not stream.isatty():
        yield lambda _words: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(file=stream).status(Text(title)) as status:
        yield lambda words: status.update(Text(f"{title}: {printable(words)}"))


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
