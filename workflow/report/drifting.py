"""Whether the windows of a cell drift: what its runs tell, put together into one test with 5 % false alarms.

A run tells the change of its step time across the window, with a standard error that allows for steps that depend on each other
(workflow/run/drift.py). The cell's is the mean over its runs; degrees of freedom after Satterthwaite. Runs of an older version tell only
the median of the second half of the window over that of the first. How uncertain that is, only other runs say: Student's t over at least
MIN_RUNS of them, which finds less. Windows of fewer than MIN_STEPS steps are not tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from workflow.report.statistics import LEVEL, MIN_RUNS, quantile

MIN_STEPS: Final = 100  # as workflow/run/drift.py has it
LEAST_CHANGE: Final = 0.01
"""A change across the window that is smaller is no drift, however certain."""


def drift_sums(measured: pl.Expr) -> list[pl.Expr]:
    """For a group of runs: what `drifts` needs of those that are `measured`."""
    told = measured & pl.col("drift_change_ratio").is_finite() & (pl.col("drift_stderr_ratio") >= 0) & (pl.col("drift_freedom") > 0)
    error = pl.col("drift_stderr_ratio").filter(told)
    halves = pl.col("drift_ratio").filter(measured & (pl.col("num_measured_steps") >= MIN_STEPS) & (pl.col("drift_ratio") > 0)).log()
    return [
        error.count().alias("drift.n"),
        pl.col("drift_change_ratio").filter(told).mean().alias("drift.change"),
        error.pow(2).sum().alias("drift.squares"),
        (error.pow(4) / pl.col("drift_freedom").filter(told)).sum().alias("drift.fourths"),
        halves.count().alias("halves.n"),
        halves.mean().alias("halves.mean"),
        halves.var().alias("halves.variance"),
    ]


def drifts(sums: Mapping[str, Any]) -> bool:
    """Whether the change is larger than chance makes it in 95 of 100 cells without any, and than LEAST_CHANGE."""
    if n := sums["drift.n"]:
        squares, fourths = sums["drift.squares"], sums["drift.fourths"]
        return _beyond(sums["drift.change"], math.sqrt(squares) / n, squares**2 / fourths if fourths else math.inf)
    n = sums["halves.n"]
    if n < MIN_RUNS:
        return False
    return _beyond(2 * sums["halves.mean"], 2 * math.sqrt(sums["halves.variance"] / n), n - 1)  # halves lie half a window apart


def _beyond(change: float, error: float, freedom: float) -> bool:
    return abs(change) > LEAST_CHANGE and abs(change) > quantile(freedom, LEVEL) * error
