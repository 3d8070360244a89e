"""Steps without one of their parts, in numbers that can be checked by hand."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from workflow.run.record.events import Step
from workflow.run.record.model import WhatIf
from workflow.run.record.step_parts import what_if

PARTS = {"input_s": 0.01, "copy_s": 0.002, "forward_s": 0.02, "backward_s": 0.04, "optimizer_s": 0.005}


def step(seconds: float, exchange_s: float | None, **parts: Any) -> Step:
    found = {"input_s": None, **parts}
    return Step(step=0, seconds=seconds, measured=True, samples=2, exchange_s=exchange_s, **found)


def found(ranks: list[list[Step]], mode: str = "train", straggler: int | None = None) -> WhatIf:
    result = what_if([dict(enumerate(steps)) for steps in ranks], range(len(ranks[0])), mode, straggler)
    assert result is not None
    return result


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def test_slow_input_of_one_rank_is_found_on_the_critical_path() -> None:
    """Rank 1 waits 50 ms for its batch, rank 0 as long for rank 1; the exchange alone takes 10 ms, the rest 80 ms on both."""
    late = {"input_s": 0.05, "forward_s": 0.02, "backward_s": 0.05, "optimizer_s": 0.01}
    even = {**late, "input_s": 0.0}
    result = found([[step(0.14, 0.06, **even)], [step(0.14, 0.01, **late)]], straggler=1)
    assert (result.step_s, result.no_input_s, result.no_exposed_s) == (near(0.14), near(0.09), near(0.13))
    assert result.no_skew_s == near(0.09), "if rank 1 was no slower than the other"
    assert (result.no_copy_s, result.no_other_s) == (None, near(0.14))
    assert result.slow_part == "input"


def test_ranks_that_are_slow_in_turn_are_as_fast_as_their_mean() -> None:
    result = found([[step(0.1, 0.01), step(0.1, 0.03)], [step(0.1, 0.03), step(0.1, 0.01)]])
    assert (result.step_s, result.no_skew_s, result.slow_part) == (near(0.1), near(0.09), None)


def test_input_that_ranks_lack_in_turn_is_taken_away_step_by_step() -> None:
    """Each rank waits 40 ms in its own step: a mean of 20 ms over ranks, but every step is 40 ms longer."""
    late, even = {"input_s": 0.04}, {"input_s": 0.0}
    result = found([[step(0.1, 0.01, **late), step(0.1, 0.05, **even)], [step(0.1, 0.05, **even), step(0.1, 0.01, **late)]])
    assert (result.step_s, result.no_input_s) == (near(0.1), near(0.06))


def test_one_rank_waits_for_nobody() -> None:
    result = found([[step(0.1, None, **PARTS)]])
    assert (result.no_exposed_s, result.no_skew_s) == (None, None)
    assert (result.no_input_s, result.no_copy_s, result.no_other_s) == (near(0.09), near(0.098), near(0.077))
    told = found([[step(0.1, 0.001, **PARTS)]])
    assert (told.no_exposed_s, told.no_skew_s) == (near(0.099), near(0.1))


def test_ranks_of_an_inference_go_their_own_ways() -> None:
    result = found([[step(0.1, None, input_s=0.04)], [step(0.2, None, input_s=0.0)]], mode="infer")
    assert (result.step_s, result.no_input_s, result.no_skew_s) == (near(0.15), near(0.13), None)


def test_a_wait_of_the_host_while_the_device_computes_costs_nothing() -> None:
    """The events of the stream fill 95 of 100 ms; the host waited 60 ms for its batch meanwhile."""
    busy = {"input_s": 0.06, "forward_s": 0.03, "backward_s": 0.06, "optimizer_s": 0.005}
    assert found([[step(0.1, None, **busy)]]).no_input_s == near(0.095)


@pytest.mark.parametrize("lost", ["forward_s", "backward_s", "optimizer_s", "input_s"])
def test_what_is_no_part_is_not_known_where_a_part_is_not_told(lost: str) -> None:
    parts = {name: value for name, value in PARTS.items() if name != lost}
    assert found([[step(0.1, 0.0, **parts)]]).no_other_s is None


def test_nothing_is_said_of_ranks_of_which_one_does_not_tell_how_long_it_waited() -> None:
    ranks = [{0: step(0.1, 0.01, **PARTS), 1: step(0.1, 0.01, **PARTS)}, {0: step(0.1, 0.02, **PARTS), 1: step(0.1, None, **PARTS)}]
    assert what_if(ranks, [0, 1], "train", None) is None
    assert what_if(ranks, [0], "train", None) is not None
    assert what_if([{0: step(0.1, None)}], [0], "train", None) is None, "no part at all"
    assert what_if([], [], "train", None) is None


@pytest.mark.parametrize("seed", range(20))
def test_neither_the_order_of_ranks_nor_the_unit_of_time_changes_what_is_found(seed: int) -> None:
    rng = random.Random(seed)
    count, length = rng.randint(2, 5), rng.randint(1, 6)
    ranks = [
        [step(rng.uniform(0.2, 0.3), rng.uniform(0, 0.1), **{name: rng.uniform(0, 0.05) for name in PARTS}) for _ in range(length)]
        for _ in range(count)
    ]
    slow = rng.randrange(count)
    first = msgspec.to_builtins(found(ranks, straggler=slow))
    order = rng.sample(range(count), count)
    moved = found([ranks[rank] for rank in order], straggler=order.index(slow))
    assert msgspec.to_builtins(moved) == {name: pytest.approx(value) for name, value in first.items()}
    names = ("seconds", "exchange_s", *PARTS)
    slower = [[one._replace(**{name: 8 * getattr(one, name) for name in names}) for one in steps] for steps in ranks]
    scaled = msgspec.to_builtins(found(slower, straggler=slow))
    assert scaled == {name: value if name == "slow_part" else pytest.approx(8 * value) for name, value in first.items()}
    assert all(value <= first["step_s"] + 1e-12 for name, value in first.items() if name != "slow_part"), "no removal makes it slower"
