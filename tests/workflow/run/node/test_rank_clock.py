"""A rank's clock against ours: what cannot be is found, what can be is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workflow.run.node.rank_clock import RankClock, StepLine
from workflow.run.node.ranks import Beats

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
    return beats.clock.problem() or beats.clock.unwatched(look * EVERY_S)


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
    ours.look(10.0, True, [StepLine(0, 10**9, 0.1)])
    ours.look(300.0, True, [])  # we were stopped meanwhile
    ours.look(600.0, False, [StepLine(9, 2 * 10**9, 0.1)])
    ours.look(900.0, True, [StepLine(10, 3 * 10**9, 0.1)])
    assert ours.problem() is None
    assert ours.unwatched(900.0) is None


def at_once(
    path: Path, rate: float, *, steps: int = 40, step_s: float = 0.5, start: float | None = None, stamps: bool = True, late_s: float = 0.0
) -> tuple[str | None, str | None]:
    """The findings about a rank that steps from 5 s on, and writes all its lines at the end of its last step; with `start`, it has written
    a line at that time. `stamps`: whether it noted the time of each step, or has that of the end in all lines; `late_s`: for so long we
    had not looked when they came."""
    end = 5.0 + steps * step_s
    beats, look = Beats(path, 0.0), 0.0
    while look < end - late_s:
        beats.poll(look)
        if start is not None and start <= look and not path.exists():
            path.write_text('{"event": "phase", "phase": "train"}\n')
        look += 1.0
    moments = [(5.0 + (step + 1) * step_s if stamps else end) * rate for step in range(steps)]
    lines = [
        json.dumps({"event": "step", "step": step, "seconds": step_s * rate, "monotonic_ns": int(moment * 1e9)})
        for step, moment in enumerate(moments)
    ]
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
    beats.poll(max(look, end))
    return beats.clock.problem(), beats.clock.unwatched(max(look, end) + 0.01)


@pytest.mark.parametrize("stamps", [True, False])
@pytest.mark.parametrize(("rate", "warned"), [(0.1, True), (0.5, True), (1.0, False), (0.99, False)])
def test_a_slow_clock_whose_lines_come_all_at_once_is_told_to_be_unwatched(tmp_path: Path, rate: float, warned: bool, stamps: bool) -> None:
    problem, unwatched = at_once(tmp_path / "events-0.jsonl", rate, start=4.0, stamps=stamps, steps=80)
    assert problem is None
    assert (unwatched is not None) == warned, unwatched
    if rate == 0.1:
        assert unwatched is not None
        assert unwatched.startswith("tells of 4 s in its steps 0 to 79, whose lines came within 1 s after a silence of 38 s")


def test_lines_that_come_at_once_after_a_long_start_cannot_be_compared(tmp_path: Path) -> None:
    assert at_once(tmp_path / "events-0.jsonl", 1.0)[1] is not None
    assert at_once(tmp_path / "events-1.jsonl", 1.0, start=4.0)[1] is None


def test_a_short_run_within_one_look_is_not_warned(tmp_path: Path) -> None:
    for number, steps in enumerate((1, 2, 10, 90)):
        assert at_once(tmp_path / f"events-{number}.jsonl", 1.0, steps=steps, step_s=0.01) == (None, None)


def test_a_node_program_that_was_frozen_blames_no_rank(tmp_path: Path) -> None:
    assert at_once(tmp_path / "events-0.jsonl", 1.0, late_s=20.0) == (None, None)


def test_a_first_step_that_takes_long_counts_with_its_time(tmp_path: Path) -> None:
    """It compiles; then come steps for longer than a look, in lines that a GPU lets come a little late."""
    beats, path = Beats(tmp_path / "events-0.jsonl", 0.0), tmp_path / "events-0.jsonl"
    path.write_text('{"event": "phase", "phase": "train"}\n')
    for look in range(21):
        beats.poll(float(look))
    lines = [{"event": "step", "step": step, "seconds": 0.3 if step else 17.0, "monotonic_ns": 20_500_000_000} for step in range(12)]
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)
    beats.poll(21.0)
    assert beats.clock.problem() is None
    assert beats.clock.unwatched(21.0) is None


def test_of_very_many_lines_at_once_the_first_and_the_last_are_read(tmp_path: Path) -> None:
    assert at_once(tmp_path / "events-0.jsonl", 0.1, steps=5000, step_s=0.01)[1] is not None


@pytest.mark.parametrize("late", [1, 20, 100])
@pytest.mark.parametrize("rate", [1.0, 1.5])
def test_lines_that_are_watched_as_they_come_are_compared(tmp_path: Path, late: int, rate: float) -> None:
    assert watched(tmp_path / "events-0.jsonl", rate, late=late, steps=600) is None
