"""Differences and margins: the tests against their definitions, and what is said where runs are too few."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from extras.compare.statistics import (
    Difference,
    NotSlower,
    differences,
    holm,
    least_p,
    noise,
    noncentrality,
    not_slower,
    power_to_hold,
    together,
)
from tests.workflow.report.builder import log_sample

EVEN = (100.0, 101.0, 99.0, 100.5, 99.5)


def one(first: Sequence[float], second: Sequence[float]) -> Difference:
    return differences([(log_sample(first), log_sample(second))], [""])[0]


def test_p_is_that_of_welch() -> None:
    second = (97.0, 98.5, 96.2, 99.0, 95.0, 96.0)
    found = one(EVEN, second)
    assert found.p == pytest.approx(stats.ttest_ind(np.log(EVEN), np.log(second), equal_var=False).pvalue)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("n", "m", "least"), [(3, 3, 0.1), (4, 4, 2 / 70), (3, 4, 2 / 35), (3, 5, 2 / 56), (1, 1, 1.0)])
def test_least_p_is_that_of_all_arrangements(n: int, m: int, least: float) -> None:
    assert least_p(n, m) == pytest.approx(least)
    if n > 1:
        exact = stats.mannwhitneyu(range(n), range(100, 100 + m), method="exact").pvalue
        assert least_p(n, m) == pytest.approx(exact)


def test_three_against_three_claim_nothing_and_say_why() -> None:
    found = one(EVEN[:3], [value / 2 for value in EVEN[:3]])
    assert found.verdict == "not known"
    assert found.p is None
    assert found.reason == "3 against 3 runs cannot reach p < 0.05 in an exact test (least 0.1); 4 each can"
    assert one(EVEN[:4], [value / 2 for value in EVEN[:4]]).verdict == "slower"
    assert "n=2, no interval" in one(EVEN[:2], EVEN).reason


def test_verdicts_need_the_effect_and_the_noise() -> None:
    assert one(EVEN, [1.05 * value for value in EVEN]).verdict == "faster"
    steady = [100 + value / 1000 for value in range(5)]
    tiny = one(steady, [0.992 * value for value in steady])
    assert tiny.p is not None
    assert tiny.p < 1e-9
    assert tiny.verdict == "no difference claimed"  # 0.8 % is below 1 %
    wild = np.exp(np.random.default_rng(3).normal(0, 0.2, 200)).tolist()
    shifted = one(wild, (0.88 * np.exp(np.random.default_rng(4).normal(0, 0.2, 200))).tolist())
    assert shifted.p is not None
    assert shifted.p < 0.001
    assert shifted.verdict == "no difference claimed"  # less than what one run differs from the next by
    assert one([100.0] * 4, [100.0] * 4).verdict == "no difference claimed"
    assert one([100.0] * 4, [90.0] * 4).verdict == "slower"


def test_many_cells_are_corrected_for_their_number() -> None:
    first, second = log_sample(EVEN), log_sample([0.985 * value for value in EVEN])
    assert differences([(first, second)], [""])[0].verdict == "slower"
    alike = log_sample(EVEN)
    among = differences([(first, second), *[(alike, alike)] * 30], [""] * 31)
    assert among[0].p_holm == pytest.approx(31 * (among[0].p or 0.0))
    assert among[0].verdict == "no difference claimed"
    assert (among[0].found or 0.0) > (differences([(first, second)], [""])[0].found or 1.0)


def test_what_cannot_be_compared_keeps_its_reason() -> None:
    assert differences([(None, log_sample(EVEN))], ["A: oom"])[0] == Difference(verdict="not known", reason="A: oom")


def gate(first: Sequence[float], second: Sequence[float], margin: float = 0.02) -> NotSlower:
    (found,) = differences([(log_sample(first), log_sample(second))], [""])
    return not_slower(found.ratio, margin)


def test_a_margin_is_held_not_held_or_cannot_be_told() -> None:
    same = [100.0, 100.2, 99.8, 100.1, 99.9]
    assert gate(same, same).answer == "held"
    assert gate(same, [0.95 * value for value in same]).answer == "not held"
    assert gate(same, [0.98 * value for value in same]).answer == "cannot be told"
    wide = [100.0, 108.0, 92.0]
    assert gate(wide, wide).answer == "cannot be told"
    assert (gate(wide, wide).runs or 0) > 50
    assert gate(wide[:2], wide).answer == "cannot be told"
    assert gate([100.0] * 3, [98.0] * 3).answer == "cannot be told"  # exactly at the margin, and no spread at all


def test_bound_is_one_sided() -> None:
    second = [0.995 * value for value in EVEN]
    found = gate(EVEN, second)
    upper = stats.ttest_ind(np.log(second), np.log(EVEN), equal_var=False).confidence_interval(0.90)
    assert found.bound == pytest.approx(math.exp(upper.low))


def test_power_is_that_of_simulated_tests() -> None:
    dice = np.random.default_rng(0)
    n, sd, margin, trials = 5, 0.01, 0.02, 40_000
    logs = dice.normal(0, sd, (2, trials, n))
    difference = logs[1].mean(1) - logs[0].mean(1)
    error = np.sqrt((logs[0].var(1, ddof=1) + logs[1].var(1, ddof=1)) / n)
    held = difference - stats.t.ppf(0.95, 2 * n - 2) * error > math.log(1 - margin)
    assert held.mean() == pytest.approx(power_to_hold(sd * math.sqrt(2 / n), 2 * n - 2, margin), abs=0.01)
    shift = noncentrality(2 * n - 2, 0.975) * sd * math.sqrt(2 / n)
    found = (difference + shift) / error > stats.t.ppf(0.975, 2 * n - 2)
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_runs_that_are_all_the_same_have_a_power() -> None:
    for spread in (0.0, 1e-13, 1e-9):
        found = gate([100.0, 100.0 * (1 + spread), 100.0], [100.0] * 3)
        assert (found.answer, found.power, found.runs) == ("held", 1.0, 3)


def test_cells_together() -> None:
    held = NotSlower(answer="held", margin=0.02, bound=0.99, power=0.9, runs=4)
    unsure = NotSlower(answer="cannot be told", margin=0.02, bound=0.97, power=0.5, runs=12)
    assert together([held, held], 0.02).answer == "held"
    assert together([held, held], 0.02).power == pytest.approx(0.81)
    assert together([held, unsure], 0.02) == NotSlower(answer="cannot be told", margin=0.02, bound=0.97, power=0.45, runs=12)
    assert together([unsure, NotSlower(answer="not held", margin=0.02)], 0.02).answer == "not held"
    assert together([], 0.02).answer == "cannot be told"


def test_noise_is_of_one_run() -> None:
    assert noise(log_sample(EVEN), log_sample([2 * value for value in EVEN])) == pytest.approx(math.sqrt(log_sample(EVEN).variance))
