"""Progress: plain lines by the clock given, a bar on a terminal."""

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


def test_a_bar_on_a_terminal_drawn_by_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # on a dumb terminal rich draws no bar
    before = set(threading.enumerate())
    for unit in ("bytes", "runs"):
        clock, stream = Clock(), Terminal()
        with progress("work", unit, stream, clock) as callback:
            for done, total in ((1, 0), (2, 4), (4, 4)):
                clock.now += 1
                callback(done, total)
                assert set(threading.enumerate()) <= before, "the work may fork"
        assert "\x1b[" in stream.getvalue()
        assert f"{describe(2, 4, 2, unit)}" in stream.getvalue()
        assert stream.getvalue().endswith("in 3.0 s\n")


def test_waiting_leaves_nothing_behind_but_on_a_terminal() -> None:
    for stream in (io.StringIO(), Terminal()):
        with waiting("job 7", stream) as now:
            now("[bold]waits")
        assert ("[bold]waits" in stream.getvalue()) == stream.isatty()
