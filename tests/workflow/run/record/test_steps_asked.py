"""How many steps a cell asks for, and which ranks told of fewer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workflow.run.record.events import MAX_STEPS, RankEvents, Step, StepsAsked, most_steps, parse_events, steps_asked, too_few_steps
from workflow.run.record.run_record import measured

CELLS = [
    {"steps": {"warmup": 10, "measured": 50}, "epochs": None},
    {"steps": {"warmup": 0, "measured": 1}, "epochs": None},
    {"steps": {"warmup": 10, "measured": 50, "total": 100}, "epochs": None},
    {"steps": None, "epochs": 3},
    {"steps": None, "epochs": 1},
]
SAMPLES = 100
"""With a global batch of 8 an epoch is 12 steps."""


def whole(cell: dict[str, Any]) -> dict[str, Any]:
    return {**cell, "global_batch_size": 8}


@pytest.mark.parametrize(
    ("cell", "first", "asked"),
    [
        (CELLS[0], 0, (60, 50)),
        (CELLS[0], 9, (51, 41)),
        (CELLS[0], 50, (10, 0)),
        (CELLS[0], 60, (0, 0)),
        (CELLS[1], 0, (1, 1)),
        (CELLS[2], 0, (100, 50)),
        (CELLS[2], 30, (70, 50)),
        (CELLS[2], 60, (40, 30)),
        (CELLS[3], 0, (36, 29)),
        (CELLS[3], 20, (16, 9)),
        (CELLS[4], 0, (12, 10)),
        ({"steps": {"warmup": 1, "measured": 2 * MAX_STEPS}, "epochs": None}, 0, (MAX_STEPS, MAX_STEPS - 1)),
    ],
)
def test_what_is_asked_of_a_rank(cell: dict[str, Any], first: int, asked: tuple[int, int]) -> None:
    assert steps_asked(whole(cell), SAMPLES, first) == asked


@pytest.mark.parametrize("cell", CELLS)
def test_no_more_steps_are_kept_than_the_cell_asks_for(cell: dict[str, Any]) -> None:
    asked = steps_asked(whole(cell), SAMPLES)
    assert most_steps(whole(cell), asked) == asked.total
    assert most_steps(whole(cell), None) == (MAX_STEPS if cell["steps"] is None else asked.total)


def step_line(step: int, **fields: Any) -> bytes:
    values = {
        "event": "step",
        "step": step,
        "seconds": 0.5,
        "measured": True,
        "samples": 8,
        "monotonic_ns": (step + 1) * 500_000_000,
        **fields,
    }
    return json.dumps(values).encode() + b"\n"


def test_a_million_steps_in_one_line_are_no_more_than_what_is_asked() -> None:
    events = parse_events([step_line(MAX_STEPS - 1, steps=MAX_STEPS, seconds=1e-6)], 60)
    assert (sorted(events.steps), events.beyond, events.broken_lines) == (list(range(60)), MAX_STEPS - 60, 0)


def test_more_steps_than_asked_are_left_out_and_warned_of() -> None:
    """The wall time that the program tells of its window is that of more steps than are kept."""
    lines = [step_line(step) for step in range(20)]
    lines.append(b'{"event": "run_stop", "window_wall_s": 10.0}\n')
    found = measured({0: parse_events(lines, 10)}, 1, 8, "train", None, StepsAsked(10, 10))
    assert found["performance"]["samples_per_s"] == pytest.approx(16)
    assert found["windows"] == ["rank 0 wrote 20 steps, and the cell asks for 10: the last ones were left out"]
    lines[5] = lines[4]
    events = parse_events(lines, 30)
    assert (len(events.steps), events.beyond, events.broken_lines) == (19, 0, 1)
    assert "tell a step again" in measured({0: events}, 1, 8)["warnings"][0]


def told(warmup: int, measured: int) -> RankEvents:
    step = Step(seconds=1.0, input_s=None, measured=False, samples=None, loss=None, end_ns=None)
    return RankEvents(steps={number: step._replace(measured=number >= warmup) for number in range(warmup + measured)})


def test_the_first_rank_that_tells_of_fewer_is_named() -> None:
    asked = StepsAsked(60, 50)
    assert too_few_steps({0: told(10, 50), 1: told(10, 50)}, asked) is None
    assert too_few_steps({0: told(5, 60)}, asked) is None, "more than asked are a warning"
    assert too_few_steps({}, asked) is None, "that a rank is missing is said elsewhere"
    nothing = too_few_steps({0: told(10, 50), 1: told(0, 0)}, asked)
    assert nothing == "rank 1 ended well, and wrote 0 of the 50 measured steps that were asked"
    assert str(too_few_steps({0: told(60, 0)}, asked)).startswith("rank 0 ended well, and wrote 0 of the 50 measured")
    assert too_few_steps({0: told(9, 50)}, asked) == "rank 0 ended well, and wrote 59 of the 60 steps that were asked"
    assert too_few_steps({0: told(0, 0)}, StepsAsked(0, 0)) is None, "nothing was left after a resume"
