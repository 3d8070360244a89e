"""Estimates with confidence intervals by one rule: the unit of replication is the run, not the step.

A run gives one number of a kind: its rate, samples of the window over wall time; beside it its median step. A cell gives the geometric
mean of its runs, with Student's t on the logarithms. Steps of one run depend on each other, so an interval made from them covers the
truth in 22 to 83 of 100 cases instead of 95 (simulated in tests/workflow/report/test_statistics.py). Fewer than three runs: no interval.

Runs are started in shuffled blocks, one block per repeat, and the runs of a block share the state of the machine. So the ratio of two cells
that were measured in the same blocks is estimated from the difference of their logarithms in each block (a paired interval), which the
state of a block does not enter. Where a block is not complete, or the blocks are not known: Welch on the logarithms.

What is said of several estimates at once, such as of the largest of them, needs `among`: each interval at the level that makes all of
them right together in 95 of 100 studies (Bonferroni). What is said because a number is high needs `least`: a one-sided bound.
benchmarks/marks.py simulates both.
"""

from __future__ import annotations

import math
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

MIN_RUNS = 3
LEVEL = 0.95


class LogSample(Struct, frozen=True, kw_only=True):
    """Mean and sample variance of the logarithms of `n` positive numbers; the variance of a single one is 0 and means nothing."""

    n: int
    mean: float
    variance: float
    by_block: tuple[tuple[int, float], ...] = ()
    """The number of the block (the repeat) and the logarithm of each number, in the order of the blocks; empty where it is not known."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A positive number, its interval at LEVEL (None, None where there is none) and the runs behind it (the smaller number of a ratio).

    `error` is the standard error of its logarithm, with `freedom` degrees of freedom; None where there is no interval. `paired`: whether
    the interval of a ratio was made from differences within blocks.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int
    error: float | None = None
    freedom: float = math.inf
    paired: bool = False

    def scaled(self, factor: float) -> Estimate:
        """The estimate of `factor` (> 0) times the quantity."""
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return replace(self, value=self.value * factor, low=low, high=high)

    def among(self, count: int) -> Estimate:
        """With the interval that holds also if this is the one of `count` estimates that was chosen by its value, such as the largest."""
        if self.error is None:
            return self
        wider = interval(math.log(self.value), self.error, self.freedom, self.n, 1 - (1 - LEVEL) / max(1, count))
        return replace(self, low=wider.low, high=wider.high)

    def least(self, level: float = LEVEL) -> float | None:
        """What the quantity exceeds with confidence `level` (one-sided); None where there is no interval, and so nothing to test."""
        return None if self.error is None else self.value * math.exp(-_quantile(self.freedom, level) * self.error)

    @property
    def plus_minus(self) -> float | None:
        """The larger distance from the value to an end of the interval."""
        return None if self.low is None or self.high is None else max(self.high - self.value, self.value - self.low)


def geometric_mean(sample: LogSample) -> Estimate:
    """Geometric mean of the runs with Student's t on the logarithms, n - 1 degrees of freedom."""
    standard_error = math.sqrt(sample.variance / sample.n)
    return interval(sample.mean, standard_error, sample.n - 1, sample.n)


def ratio(above: LogSample, below: LogSample) -> Estimate:
    """Return the geometric mean of `above` over that of `below`.

    Its interval is paired, with n - 1 degrees of freedom, where both were measured in the same blocks. Else it is Welch's: variances may
    differ, degrees of freedom after Satterthwaite.
    """
    center, n = above.mean - below.mean, min(above.n, below.n)
    if n < MIN_RUNS:
        return Estimate(value=math.exp(center), n=n)
    pairs = list(zip(above.by_block, below.by_block, strict=False))
    if len(pairs) == above.n == below.n and all(one[0] == other[0] for one, other in pairs):
        squares = math.fsum((one[1] - other[1] - center) ** 2 for one, other in pairs)
        return replace(interval(center, math.sqrt(squares / (n - 1) / n), n - 1, n), paired=True)
    share_above, share_below = above.variance / above.n, below.variance / below.n
    total = share_above + share_below
    freedom = math.inf if total == 0 else total**2 / (share_above**2 / (above.n - 1) + share_below**2 / (below.n - 1))
    return interval(center, math.sqrt(total), freedom, n)


def interval(center: float, error: float, freedom: float, n: int, level: float = LEVEL) -> Estimate:
    """The estimate exp(`center`) of `n` runs, where `error` is the standard error of `center`, with its two-sided interval."""
    if n < MIN_RUNS:
        return Estimate(value=math.exp(center), n=n)
    half = 0.0 if error == 0 else quantile(freedom, level) * error
    low, high = math.exp(center - half), math.exp(center + half)
    return Estimate(value=math.exp(center), low=low, high=high, n=n, error=error, freedom=freedom)


def quantile(freedom: float, level: float = LEVEL) -> float:
    """The two-sided `level` quantile of Student's t; `freedom` need not be whole."""
    return _quantile(freedom, (1 + level) / 2)


@lru_cache(maxsize=4096)
def _quantile(freedom: float, below: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, below))
