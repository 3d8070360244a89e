"""Rates of programs whose device, or loader, is ahead of what the helper sees: true, or marked with the cause. Time is a number here."""

import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.containers.specs import library
from tests.workflow.report.builder import collected, make_cell, make_record
from workflow.report.study_tables import TABLES
from workflow.run.record.events import read_events
from workflow.run.record.model import Performance
from workflow.run.record.rate import performance

BATCH = 32
HOST_S = 0.0001
"""What the program itself does for a step."""
DEVICE_S = 0.01
LOADER_S = 0.013


class Machine:
    """A clock, a device that computes the steps handed to it one after the other, and a loader that reads ahead."""

    def __init__(self, *, ahead: int, device: str) -> None:
        self.now = 1000.0
        self.ahead, self.device = ahead, device
        self.ready = self.now
        self.in_flight: deque[float] = deque()

    def compute(self) -> None:
        """Hand over a step; at most `ahead` of them may wait."""
        self.now += HOST_S
        self.ready = max(self.now, self.ready) + DEVICE_S
        self.in_flight.append(self.ready)
        if len(self.in_flight) > self.ahead or self.device == "none":
            self.now = max(self.now, self.in_flight.popleft())

    def wait(self, *_: Any) -> None:
        """Until all steps are computed."""
        self.now = max(self.now, self.ready)

    def batches(self, buffer: int) -> Iterator[int]:
        """Return what the loader makes one after the other, as far ahead as its buffer has room; that is full at the begin."""
        ready, taken = self.now, []
        for number in range(10**6):
            if number >= buffer:
                ready = max(ready, taken[number - buffer] if buffer else self.now) + LOADER_S
            self.now = max(self.now, ready)
            taken.append(self.now)
            yield number


@pytest.fixture
def helper() -> ModuleType:
    return library("slipway_events")


def trained(
    helper: ModuleType, monkeypatch: pytest.MonkeyPatch, path: Path, machine: Machine, steps: dict[str, int], buffer: int | None
) -> Performance:
    """The record's `performance` of a program on this machine that reads no loss."""
    monkeypatch.setattr(helper, "time", SimpleNamespace(monotonic=lambda: machine.now, time=lambda: machine.now))
    if machine.device == "jax":
        jax = SimpleNamespace(live_arrays=list, block_until_ready=machine.wait, __version__="1")
        monkeypatch.setitem(sys.modules, "jax", jax)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", SimpleNamespace(_backends={"cuda": 1}))  # type: ignore[arg-type]
    cell = {"steps": steps, "batch_size": BATCH, "device": "cuda"}
    run = helper.Run(cell, str(path), {})
    for _ in run.steps(range(10**6) if buffer is None else machine.batches(buffer), samples=BATCH):
        machine.compute()
    run.finish()
    run.events.file.close()
    found = performance(read_events(path, 1), 1, BATCH)
    assert found is not None
    return found


def footnotes(path: Path, found: Performance) -> list[str]:
    """Of the table with these numbers, without the mark of a short window."""
    record = make_record(make_cell())
    record["performance"] |= {
        name: msgspec.to_builtins(getattr(found, name)) for name in ("samples_per_s", "drift", "last_half_ratio", "first_steps_ratio")
    }
    return [sentence for _, _, sentence in TABLES["times"](collected(path / "results", [record], repeats=1)).footnotes()]


@pytest.mark.parametrize("device", ["jax", "unknown"])
@pytest.mark.parametrize("measured", [50, 200, 1000])
def test_steps_in_flight_are_waited_for_at_the_ends_of_the_window_or_marked(
    helper: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, measured: int
) -> None:
    """32 steps in flight, of which the warm-up leaves room for 22."""
    machine = Machine(ahead=32, device=device)
    found = trained(helper, monkeypatch, tmp_path, machine, {"warmup": 10, "measured": measured}, None)
    off = abs(found.samples_per_s * DEVICE_S / BATCH - 1)
    said = footnotes(tmp_path, found)
    if device == "jax":
        assert off < 0.02
        assert found.window_steps_ratio == pytest.approx(1, abs=0.02)
        assert said == [], "the rate is true"
    else:
        assert off > 0.02 or measured == 1000
    assert off < 0.02 or any("because its first steps were short" in one for one in said)


@pytest.mark.parametrize(("buffer", "measured"), [(16, 150), (16, 200), (16, 600), (64, 1000), (2, 1000), (0, 100)])
def test_batches_that_were_read_ahead_are_marked_where_they_make_the_rate_too_high(
    helper: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, buffer: int, measured: int
) -> None:
    """The loader needs 13 ms for a batch, and the device 10: the buffer lasts for four times as many steps."""
    machine = Machine(ahead=1, device="none")
    found = trained(helper, monkeypatch, tmp_path, machine, {"warmup": 2, "measured": measured}, buffer)
    off = found.samples_per_s * LOADER_S / BATCH - 1
    said = footnotes(tmp_path, found)
    assert off < 0.02 or any("because its first steps were short" in one for one in said)
    assert bool(buffer > 2) == (off > 0.02), "what the case is about"


def test_a_program_whose_numbers_are_true_has_no_mark(helper: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = trained(helper, monkeypatch, tmp_path, Machine(ahead=1, device="none"), {"warmup": 2, "measured": 200}, None)
    assert found.samples_per_s == pytest.approx(BATCH / DEVICE_S, rel=0.02)
    assert footnotes(tmp_path, found) == []
