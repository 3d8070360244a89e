"""A rank's clock against ours: what cannot be is found, what can be is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workflow.run.node.beats import Beats
from workflow.run.node.rank_clock import RankClock

EVERY_S = 0.5


def watched(path: Path, rate: float, step_s: float = 0.1, late: int = 1, steps: int = 200, told: bool = True) -> str | None:
    """The finding about a rank whose clock goes `rate` times as fast as ours, and that is looked at every half second; of its lines `late`
    are written at once."""
    beats, lines, look = Beats(path, 0.0), list[str](), 0
    for step in range(steps):
        now = 5.0 + (step + 1) * step_s
        lines.append(
            json.dumps({"event": "step", "step": step, "seconds": step_s * rate, "monotonic_ns": int(now * rate * 1e9) if told else None})
        )
        while look * EVERY_S < now:
            beats.poll(look * EVERY_S)
            look += 1
        if len(lines) >= late:
            with path.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
            lines.clear()
    beats.poll(look * EVERY_S)
    return beats.clock.problem()


@pytest.mark.parametrize(("rate", "wrong"), [(1.0, False), (0.99, False), (1.5, False), (0.8, True), (0.5, True)])
def test_a_slow_clock_is_found(tmp_path: Path, rate: float, wrong: bool) -> None:
    found = watched(tmp_path / "events-0.jsonl", rate)
    assert (found is not None) == wrong, found
    if rate == 0.5:
        assert found is not None
        assert found.startswith(
            "tells of 9.75 s from step 4 to step 199, and at least 18.5 s went by between these lines by Slipway's clock"
        )


def test_lines_that_come_in_bunches_are_no_slow_clock(tmp_path: Path) -> None:
    assert watched(tmp_path / "events-0.jsonl", 1.0, late=20) is None


def test_of_a_short_run_and_of_steps_without_a_time_nothing_is_said(tmp_path: Path) -> None:
    assert watched(tmp_path / "events-0.jsonl", 0.5, steps=15) is None
    assert watched(tmp_path / "events-1.jsonl", 0.5, told=False) is None


def test_a_look_that_comes_late_or_ends_early_says_nothing_of_the_rank() -> None:
    ours = RankClock(0.0)
    ours.look(10.0, True, (0, 10**9))
    ours.look(300.0, True, None)  # we were stopped meanwhile
    ours.look(600.0, False, (9, 2 * 10**9))
    ours.look(900.0, True, (10, 3 * 10**9))
    assert ours.problem() is None
