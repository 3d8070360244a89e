"""How many steps a cell asks for, and which ranks told of fewer."""

from __future__ import annotations

from typing import Any

import pytest

from workflow.run.record.events import MAX_STEPS, RankEvents, Step
from workflow.run.record.steps_asked import StepsAsked, steps_asked, too_few_steps

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
