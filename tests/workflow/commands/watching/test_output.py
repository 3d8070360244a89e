"""Progress: plain lines by the clock given, a bar on a terminal."""

from __future__ import annotations

import io
import threading

import pytest

from tests.workflow.commands.watching.test_live_table import Clock
from workflow.commands.watching.output import describe, progress, waiting


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_plain_lines_come_every_few_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    with progress("stage digits", "bytes", stream, clock) as callback:
        for second in range(1, 13):
            clock.now = 100.0 + second
            callback(second * 10_000_000, 120_000_000)
    assert stream.getvalue().splitlines() == [
        "stage digits: 50.0 MB of 120.0 MB (41 %), 10.0 MB/s, 7.0 s left",
        "stage digits: 100.0 MB of 120.0 MB (83 %), 10.0 MB/s, 2.0 s left",
        "stage digits: 120.0 MB in 12.0 s",
    ]


def test_short_work_is_one_line() -> None:
    stream = io.StringIO()
    with progress("build", "samples", stream, Clock()) as callback:
        callback(1797, 1797)
    assert stream.getvalue() == "build: 1,797 samples in 0.00 s\n"


def test_an_unknown_total_and_the_start() -> None:
    assert describe(500, 0, 10, "samples") == "500 samples, 50 samples/s"
    assert describe(0, 10, 0, "runs") == "0 runs of 10 runs (0 %)"


def test_a_title_is_safe_for_a_terminal() -> None:
    stream = io.StringIO()
    with progress("\x1b[2J", "runs", stream, Clock()):
        pass
    assert "\x1b" not in stream.getvalue()


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # on a dumb terminal rich draws no bar
    for unit in ("bytes", "runs"):
        stream = Terminal()
        with progress("work", unit, stream) as callback:
            callback(1, 0)
            callback(2, 4)
            callback(4, 4)
        assert "work" in stream.getvalue()
        assert "\x1b[" in stream.getvalue()


def test_an_error_leaves_the_bar() -> None:
    stream = Terminal()
    try:
        with progress("work", "runs", stream) as callback:
            callback(1, 2)
            raise ValueError("x")
    except ValueError:
        assert stream.getvalue()


class Watched(io.StringIO):
    """It tells when a line with `word` has come."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word, self.there = word, threading.Event()

    def write(self, text: str) -> int:
        if self.word in text:
            self.there.set()
        return super().write(text)


def test_work_that_counts_nothing_yet_is_not_silent() -> None:
    stream = Watched("dataset photos: 0 samples")
    with progress("dataset photos", "samples", stream, every_s=0.001):
        assert stream.there.wait(60)


def test_waiting_says_what_for_as_long_as_it_lasts() -> None:
    stream = Watched("tables: reading (")
    with waiting("tables", stream, every_s=0.001) as now:
        now("reading")
        assert stream.there.wait(60)
    assert stream.getvalue().startswith("tables")


def test_short_waiting_leaves_nothing_behind() -> None:
    stream = io.StringIO()
    with waiting("tables", stream) as now:
        now("reading")
    assert stream.getvalue() == ""


def test_waiting_on_a_terminal_shows_time_and_words() -> None:
    stream = Terminal()
    with waiting("job 7", stream) as now:
        now("[bold]waits")
    assert "job 7" in stream.getvalue()
    assert "[bold]waits" in stream.getvalue()
    assert "0:00:00" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_no_thread_runs_beside_work_that_forks(stream: type[io.StringIO]) -> None:
    before, shown = set(threading.enumerate()), stream()
    with progress("verify digits", "runs", shown, forks=True) as callback:
        callback(3, 8)
        assert set(threading.enumerate()) <= before
    with progress("verify digits", "runs", shown) as callback:
        assert set(threading.enumerate()) - before
    assert "verify digits" in shown.getvalue()
