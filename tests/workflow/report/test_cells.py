"""Rule 1: the run is the unit. Closed forms, and a simulation of what the intervals promise."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from tests.workflow.report.builder import log_sample
from workflow.report.cells import Estimate, LogSample, geometric_mean, quantile, ratio

TRIALS = 2000


def test_geometric_mean_and_its_interval_by_hand() -> None:
    """exp(0), exp(1), exp(2): mean 1, variance 1, t(2) = 4.302653, half width 4.302653 / sqrt(3)."""
    estimate = geometric_mean(log_sample([1.0, math.e, math.e**2]))
    half = 4.302652729911275 / math.sqrt(3)
    assert estimate.value == pytest.approx(math.e)
    assert (estimate.low, estimate.high) == (pytest.approx(math.exp(1 - half)), pytest.approx(math.exp(1 + half)))


def test_quantiles_of_student() -> None:
    assert [quantile(n) for n in (1, 4, 30)] == pytest.approx([12.70620473617471, 2.7764451051977987, 2.0422724563012373])
    assert quantile(math.inf) == pytest.approx(1.959963984540054)


def test_fewer_than_three_runs_have_no_interval() -> None:
    for values in ([2.0], [2.0, 2.1]):
        assert geometric_mean(log_sample(values)).low is None
        assert ratio(log_sample(values), log_sample([1.0, 1.1, 1.2])).high is None
        assert ratio(log_sample([1.0, 1.1, 1.2]), log_sample(values)).low is None
    two = geometric_mean(log_sample([2.0, 8.0]))
    assert two.value == pytest.approx(4.0)
    assert (two.least(), two.among(4)) == (None, two)


def test_runs_that_agree_exactly_have_an_interval_without_width() -> None:
    same = log_sample([0.25] * 3)
    assert geometric_mean(same) == Estimate(value=0.25, low=0.25, high=0.25, n=3, error=0.0, freedom=2)
    assert ratio(same, log_sample([0.5] * 3)).low == 0.5


def test_welch_by_hand() -> None:
    """Variances 0.01 and 0.04 of three and four runs: se^2 = 0.01/3 + 0.04/4, degrees of freedom by Satterthwaite."""
    above, below = LogSample(n=3, mean=1.0, variance=0.01), LogSample(n=4, mean=0.5, variance=0.04)
    estimate = ratio(above, below)
    square = 0.01 / 3 + 0.04 / 4
    freedom = square**2 / ((0.01 / 3) ** 2 / 2 + (0.04 / 4) ** 2 / 3)
    half = quantile(freedom) * math.sqrt(square)
    assert freedom == pytest.approx(4.5714, abs=2e-2)
    assert (estimate.low, estimate.high) == (pytest.approx(math.exp(0.5 - half)), pytest.approx(math.exp(0.5 + half)))
    assert estimate.n == 3


def test_a_paired_ratio_by_hand() -> None:
    """Differences 0.1, 0.2 and 0.3 of three blocks: mean 0.2, deviation 0.1, t(2) = 4.302653; the blocks themselves differ by much more."""
    above, below = log_sample([math.exp(x) for x in (0.1, 1.2, 2.3)]), log_sample([math.exp(x) for x in (0.0, 1.0, 2.0)])
    estimate = ratio(above, below)
    half = 4.302652729911275 * 0.1 / math.sqrt(3)
    assert estimate.paired
    assert estimate.freedom == 2
    assert (estimate.value, estimate.n) == (pytest.approx(math.exp(0.2)), 3)
    assert (estimate.low, estimate.high) == (pytest.approx(math.exp(0.2 - half)), pytest.approx(math.exp(0.2 + half)))
    assert estimate.among(4).paired


@pytest.mark.parametrize("blocks", [(1, 2, 4), (1, 2), ()])
def test_a_ratio_of_other_blocks_is_made_by_welch(blocks: tuple[int, ...]) -> None:
    """Of other repeats, of fewer of them, or where the repeats are not known."""
    above, below = log_sample([1.0, 1.1, 1.2]), log_sample([0.5, 0.6, 0.7])
    of_others = replace(below, by_block=tuple(zip(blocks, [log for _, log in below.by_block], strict=False)))
    estimate = ratio(above, of_others)
    assert not estimate.paired
    assert estimate == ratio(replace(above, by_block=()), replace(below, by_block=()))


def test_equal_samples_give_the_pooled_test() -> None:
    """With equal variances and sizes Welch's degrees of freedom are 2 (n - 1)."""
    sample = LogSample(n=5, mean=0.0, variance=0.02)
    half = quantile(8) * math.sqrt(2 * 0.02 / 5)
    assert ratio(sample, sample).high == pytest.approx(math.exp(half))


def test_scaling_an_estimate() -> None:
    estimate = Estimate(value=0.1, low=0.08, high=0.125, n=3)
    assert estimate.scaled(8) == Estimate(value=0.8, low=0.64, high=1.0, n=3)
    assert estimate.plus_minus == pytest.approx(0.025)
    assert Estimate(value=2.0, n=1).scaled(2) == Estimate(value=4.0, n=1)


def test_bounds_at_other_levels_by_hand() -> None:
    """Student's t of 4 degrees of freedom: 2.131847 below which 95 of 100 are, 4.604095 two-sided for 99 of 100."""
    estimate = geometric_mean(LogSample(n=5, mean=0.0, variance=0.05))
    assert estimate.least() == pytest.approx(math.exp(-2.131846786 * 0.1))
    assert estimate.among(5).low == pytest.approx(math.exp(-4.604094871 * 0.1))
    assert estimate.among(1) == estimate
    assert estimate.scaled(3).least() == pytest.approx(3 * math.exp(-2.131846786 * 0.1))


def step_medians(generator: np.random.Generator, runs: int, run_deviation: float, steps: int = 100) -> np.ndarray:
    """[trials, runs] medians of runs whose steps follow an AR(1) with rho 0.6 on the logarithm, around a level of the run's own."""
    noise = generator.normal(0, 0.05 * math.sqrt(1 - 0.36), (steps, TRIALS, runs))
    series = np.empty_like(noise)
    series[0] = noise[0] / math.sqrt(1 - 0.36)
    for step in range(1, steps):
        series[step] = 0.6 * series[step - 1] + noise[step]
    return np.exp(np.median(series, axis=0) + generator.normal(0, run_deviation, (TRIALS, runs)))


def coverage(estimates: list[Estimate], truth: float) -> float:
    return sum(one.low is not None and one.high is not None and one.low <= truth <= one.high for one in estimates) / len(estimates)


@pytest.mark.parametrize("runs", [3, 5])
def test_a_95_percent_interval_covers_the_truth_in_93_to_97_of_100_studies(runs: int) -> None:
    medians = step_medians(np.random.default_rng(7), runs, run_deviation=0.02)
    assert 0.93 <= coverage([geometric_mean(log_sample(row)) for row in medians.tolist()], 1.0) <= 0.97


def test_so_does_the_interval_of_a_speed_up_of_unequal_cells() -> None:
    generator = np.random.default_rng(11)
    base = step_medians(generator, 5, run_deviation=0.01).tolist()
    cell = (0.6 * step_medians(generator, 4, run_deviation=0.03)).tolist()
    pairs = zip(base, cell, strict=True)
    assert 0.93 <= coverage([ratio(log_sample(first), log_sample(second)) for first, second in pairs], 1 / 0.6) <= 0.97


def rates_in_blocks(runs: int, cell_deviation: float, speedup: float) -> list[tuple[LogSample, LogSample]]:
    """Return TRIALS pairs of a cell and its baseline: the state of each block deviates by 5 %, and each run of the baseline by 1 %."""
    generator = np.random.default_rng([runs, round(1000 * cell_deviation)])
    blocks = generator.normal(0, 0.05, (TRIALS, runs))
    cell = blocks + generator.normal(math.log(speedup), cell_deviation, (TRIALS, runs))
    base = blocks + generator.normal(0, 0.01, (TRIALS, runs))
    return [(log_sample(one), log_sample(other)) for one, other in zip(np.exp(cell).tolist(), np.exp(base).tolist(), strict=True)]


@pytest.mark.parametrize("runs", [3, 5, 10])
@pytest.mark.parametrize("cell_deviation", [0.01, 0.03])
def test_a_paired_interval_covers_the_truth_also_where_blocks_differ(runs: int, cell_deviation: float) -> None:
    pairs = rates_in_blocks(runs, cell_deviation, 1.08)
    assert 0.93 <= coverage([ratio(cell, base) for cell, base in pairs], 1.08) <= 0.97


def test_a_paired_interval_sees_a_speed_up_of_8_percent_through_a_block_effect_of_5_percent() -> None:
    """With three repeats: Welch takes the differences of the blocks for scatter of the runs, and finds a third of the speed-ups."""
    pairs = rates_in_blocks(3, 0.01, 1.08)
    paired = [ratio(cell, base) for cell, base in pairs]
    welch = [ratio(replace(cell, by_block=()), base) for cell, base in pairs]
    found = [sum(one.low is not None and one.low > 1 for one in estimates) / TRIALS for estimates in (paired, welch)]
    assert found[0] >= 0.96
    assert found[1] < 0.4


def test_the_interval_of_the_largest_of_eight_allows_for_the_choice() -> None:
    """Eight equal cells against one baseline: the own interval of the highest misses the truth more often than it says."""
    generator = np.random.default_rng(17)
    logs = generator.normal(0, 0.05, (TRIALS, 9, 5))
    samples = [
        [LogSample(n=5, mean=mean, variance=variance) for mean, variance in zip(means, variances, strict=True)]
        for means, variances in zip(logs.mean(axis=2).tolist(), logs.var(axis=2, ddof=1).tolist(), strict=True)
    ]
    best = [max((ratio(cell, base) for cell in cells), key=lambda one: one.value) for base, *cells in samples]
    assert coverage(best, 1.0) < 0.92
    assert coverage([one.among(8) for one in best], 1.0) >= 0.95


def test_an_interval_from_the_steps_of_the_runs_would_not() -> None:
    """Why the run is the unit: pooling the steps of five runs claims far more than it knows."""
    generator = np.random.default_rng(13)
    levels = generator.normal(0, 0.02, (TRIALS, 5, 1))
    steps = levels + generator.normal(0, 0.05, (TRIALS, 5, 100))
    pooled = steps.reshape(TRIALS, -1)
    half = 1.96 * pooled.std(axis=1, ddof=1) / math.sqrt(pooled.shape[1])
    assert np.mean(np.abs(pooled.mean(axis=1)) <= half) < 0.5
