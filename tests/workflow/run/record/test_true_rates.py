"""Programs with clocks of their own, whose true rate is known: the record has it within 2 %, or names what it does not know."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest

from base.rooms import ROOMS
from workflow.run.record.events import RankEvents
from workflow.run.record.run_record import measured
from workflow.run.record.steps_asked import StepsAsked

BATCH = 32
STEP_S = 0.05
STEPS = {"warmup": 10, "measured": 100}
TRUE = BATCH / STEP_S
STEP = r"step (?P<step>\d+)"


def library(name: str) -> ModuleType:
    """A fresh copy of a module of containers/lib."""
    spec = importlib.util.spec_from_file_location(name, ROOMS / "containers" / "lib" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_output(lines: Iterable[tuple[float, str]], expression: str, **settings: Any) -> dict[str, Any]:
    """What a record has of a program that prints these lines, each at its time; rank 0 of one."""
    steps = library("slipway_steps").Steps({"step": expression, **settings}, STEPS, 0.0)
    events = RankEvents()
    events.add({"event": "run_start", "steps_source": "log"})
    for now, line in lines:
        event = steps.take([line], now)
        if event is not None:
            events.add({"event": "step", "monotonic_ns": round(now * 1e9), **event})
    for sentence in steps.warnings():
        events.add({"event": "warning", "message": sentence})
    events.add({"event": "run_stop", "train_s": 100.0})
    return measured({0: events}, 1, BATCH, "train", None, StepsAsked(110, 100))


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_latencies_that_overlap_do_not_make_the_window_longer(in_flight: int) -> None:
    lines = [(number * STEP_S, f"step {number} took {in_flight * STEP_S * 1000:.2f} ms") for number in range(1, 121)]
    found = of_output(lines, rf"{STEP} took (?P<milliseconds>\S+)")
    assert found["contradiction"] is None
    assert found["performance"]["samples_per_s"] == pytest.approx(TRUE, rel=0.02)
    assert found["performance"]["step_s"]["p50"] == pytest.approx(in_flight * STEP_S)
    assert found["performance"]["uneven_cause"] == (None if in_flight == 1 else "gaps")
