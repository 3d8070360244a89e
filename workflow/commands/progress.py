"""Long work shows itself: a bar on a terminal, a plain line every few seconds elsewhere (amount, rate, time left), and a last line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from base.logs import printable
from base.units import format_duration, format_size

EVERY_S: Final = 5.0

Callback = Callable[[int, int], None]  # done, in all
Clock = Callable[[], float]


@contextmanager
def progress(title: str, unit: str = "bytes", stream: TextIO | None = None, clock: Clock = time.monotonic) -> Iterator[Callback]:
    """A callback `(done, total)` for the work called `title`; `unit` is `bytes`, or the plural of what is counted, such as `runs`."""
    stream = stream or sys.stderr
    shown = _bar if stream.isatty() else _lines
    with shown(printable(title), unit, stream, clock) as callback:
        yield callback


def amount(number: float, unit: str) -> str:
    """A number of bytes or of things, for people."""
    return format_size(number) if unit == "bytes" else f"{number:,.0f} {unit}"


def describe(done: int, total: int, seconds: float, unit: str) -> str:
    """`12.0 MB of 30.0 MB (40 %), 6.0 MB/s, 3.0 s left`; without total or time, what is known."""
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
def _lines(title: str, unit: str, stream: TextIO, clock: Clock) -> Iterator[Callback]:
    started = clock()
    last = started
    seen = (0, 0)

    def callback(done: int, total: int) -> None:
        nonlocal last, seen
        seen = (done, total)
        now = clock()
        if now - last >= EVERY_S:
            last = now
            stream.write(f"{title}: {describe(done, total, now - started, unit)}\n")
            stream.flush()

    yield callback
    seconds = clock() - started
    stream.write(f"{title}: {amount(seen[0], unit)} in {format_duration(seconds)}\n")
    stream.flush()


@contextmanager
def _bar(title: str, unit: str, stream: TextIO, clock: Clock) -> Iterator[Callback]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.text import Text

    class Rate(TextColumn):
        """Things per second, since rich knows only bytes per second."""

        def render(self, task: object) -> Text:
            speed = getattr(task, "speed", None)
            return Text(f"{speed:.3g}/s" if speed else "")

    counted = [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn(), TextColumn(unit), Rate("")]
    columns = [TextColumn("{task.description}"), BarColumn(), *counted, TimeRemainingColumn()]
    with Progress(*columns, console=Console(file=stream), get_time=clock) as bar:
        task = bar.add_task(title, total=None)

        def callback(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        yield callback
