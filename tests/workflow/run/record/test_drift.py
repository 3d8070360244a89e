"""The test of a drift: closed forms, and what it says of steps that depend on each other."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from workflow.run.record.rate import drift


def ar1(dice: random.Random, count: int, rho: float, spread: float = 0.05) -> list[float]:
    """Steps whose logarithms follow an AR(1)."""
    value, found = dice.gauss(0, spread), []
    for _ in range(count):
        found.append(0.1 * math.exp(value))
        value = rho * value + dice.gauss(0, spread * math.sqrt(1 - rho * rho))
    return found


def beyond(found: dict[str, Any] | None) -> bool:
    """At 5 %, two-sided: Student's t with 8 degrees of freedom."""
    assert found is not None
    return abs(found["change_ratio"]) > 2.306004 * found["stderr_ratio"]


def test_an_exact_line_is_found_exactly() -> None:
    """From 0.1 at the begin of the window to 0.11 at its end: 0.01 of a mean of 0.105."""
    found = drift([0.1 + 0.01 * (place + 0.5) / 200 for place in range(200)])
    assert found == {
        "change_ratio": pytest.approx(0.01 / 0.105),
        "stderr_ratio": pytest.approx(0, abs=1e-9),
        "others_ratio": pytest.approx([0] * 8, abs=1e-9),
        "steps": 200,
    }


def test_steps_that_are_all_alike_do_not_drift() -> None:
    found = drift([0.1] * 100)
    assert found is not None
    assert found["change_ratio"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("steps", [[], [0.1] * 99, [0.0] * 200])
def test_what_is_too_short_or_took_no_time_is_not_tested(steps: list[float]) -> None:
    assert drift(steps) is None


def test_the_unit_changes_nothing() -> None:
    steps = ar1(random.Random(1), 150, 0.5)
    one, other = drift(steps), drift([1000 * took for took in steps])
    assert one is not None
    assert other is not None
    assert other["change_ratio"] == pytest.approx(one["change_ratio"])
    assert other["others_ratio"] == pytest.approx(one["others_ratio"])


def test_long_windows_are_tested_in_blocks() -> None:
    found = drift([0.1 + 0.01 * place / 5000 for place in range(5000)])
    assert found is not None
    assert (found["change_ratio"], found["steps"]) == (pytest.approx(0.01 / 0.105, rel=1e-3), 5000)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_steps_that_depend_on_each_other_are_no_drift(rho: float) -> None:
    """About 5 of 100 windows. By the halves of the window, at 2 %, it were 70 of 100 with 0.9."""
    dice = random.Random(11)
    assert sum(beyond(drift(ar1(dice, 200, rho))) for _ in range(300)) <= 24


def test_a_ramp_of_3_percent_is_found() -> None:
    """Steps that scatter by 2 %, independent of each other: always."""
    dice = random.Random(12)
    for _ in range(20):
        assert beyond(drift([took * (1 + 0.03 * place / 200) for place, took in enumerate(ar1(dice, 200, 0.0, 0.02))]))
