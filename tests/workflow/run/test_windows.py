"""Short windows from the program to the record: what Slipway's own clock confirms, what it does not, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.workflow.run.world import World
from workflow.run.record.reading import validate_record
from workflow.run.record.window_seen import CONFIRMED, STAGGERED_RATIO, STAGGERED_S

pytestmark = pytest.mark.slow
TRIES = 5


def run(world: World, run_id: str) -> dict[str, Any]:
    code, log = world.run(run_id)
    assert code == 0, log
    record = world.record(run_id)
    validate_record(record)
    return record


def test_a_window_that_was_three_times_as_long_is_an_error(world: World) -> None:
    record = run(world, world.cell(measured=50, step_s=0.06, clock=1 / 3, tells=1 / 3))
    assert record["status"] == "error"
    reason = str(record["status_reason"])
    assert reason.startswith("rank 0 on local-0 tells of 1")
    assert "went by between these lines by Slipway's clock" in reason


@pytest.mark.parametrize("clock", [{"clock": 1 / 2}, {"stamps": False}])
def test_half_a_second_or_one_without_stamps_is_a_warning_and_not_confirmed(world: World, clock: dict[str, Any]) -> None:
    """What it does between its steps it need not tell: its clock may be right, and its rate is not. On a machine that stands still
    meanwhile, its second is several, which no clock may be wrong by, or nobody looks at it: that run is forgotten."""
    for _ in range(TRIES):
        record = run(world, world.cell(measured=50, step_s=0.02, tells=1 / 2, **clock))
        seen = record["window_seen"]
        if seen["window_s"] < 0.8 and seen["most_s"] - seen["least_s"] < 0.3:
            break
    assert record["status"] == "ok", record["status_reason"]
    assert seen["least_s"] > seen["window_s"] * (1 + CONFIRMED)
    assert any("its rate looks too high" in warning for warning in record["warnings"])


def test_a_file_of_events_that_was_written_anew_is_not_confirmed(world: World) -> None:
    """What was pushed tells of another window than what was watched."""
    record = run(world, world.cell(measured=50, step_s=0.03, last="tell anew"))
    assert record["status"] == "ok"
    assert record["window_seen"]["least_s"] > record["window_seen"]["window_s"] * (1 + CONFIRMED)
    assert any("its rate looks too high" in warning for warning in record["warnings"])


@pytest.mark.parametrize("sync", [True, False])
def test_ranks_that_measured_at_other_times_are_seen(world: World, sync: bool) -> None:
    record = run(world, world.cell(2, measured=100, step_s=0.01, sync=sync, late={"1": 3.0}))
    assert record["status"] == "ok"
    window_s, together_s = record["performance"]["window_s"], record["window_seen"]["together_s"]
    assert (together_s > window_s * (1 + STAGGERED_RATIO) + STAGGERED_S) == (not sync)


@pytest.fixture
def loaded() -> Iterator[None]:
    """Four busy processes for each core."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(("nodes", "each"), [(1, 1), (2, 2)])
def test_an_honest_half_second_on_a_machine_under_heavy_load_is_not_called_wrong(world: World, nodes: int, each: int) -> None:
    record = run(world, world.cell(nodes, each, measured=50, step_s=0.01))
    assert record["status"] == "ok"
    assert not [warning for warning in record["warnings"] if "Slipway's clock" in warning]
    seen = record["window_seen"]
    assert seen["most_s"] >= seen["window_s"] * 0.95, "whatever the load, what was seen has room for what was"
