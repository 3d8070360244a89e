"""Whether the windows of a cell drift: what its runs tell, put together into a test with 5 % false alarms.

A run tells the change of its step time across the window, and as much of OTHERS other slow changes, of which no drift makes any
(workflow/run/record/drift.py). Each is averaged over the runs; then the root mean square of the others is the standard error of the first.
So what is alike in all runs, such as the phase in which bunches of input come, does not look certain because it comes again. Runs of an
older version tell only the median of the second half of the window over that of the first. How uncertain that is, only other runs say:
Student's t over at least MIN_RUNS of them. Windows of fewer than MIN_STEPS steps are not tested.

A window that began ahead (batches that were read before it, steps in flight) has short first steps and then none that are as short: so is
every window of which the means over the runs lie beyond EARLY_RATE and EARLY_STEPS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from workflow.report.statistics import LEVEL, MIN_RUNS, quantile
from workflow.run.record.drift import MIN_STEPS, OTHERS

LEAST_CHANGE: Final = 0.01
"""A change across the window that is smaller is no drift, however certain."""
EARLY_RATE: Final = 1.02
"""How far the rate of a window may be above that of its last half, as `last_half_ratio`."""
EARLY_STEPS: Final = 0.9
"""How short its first steps may be then beside as many in a row of its last half, as `first_steps_ratio`."""
BEGAN_EARLY: Final = (pl.col("last_half_ratio") > EARLY_RATE) & (pl.col("first_steps_ratio") < EARLY_STEPS)


def drift_sums(measured: pl.Expr) -> list[pl.Expr]:
    """For a group of runs: what `drifts` needs of those that are `measured`."""
    told = measured & pl.col("drift_change_ratio").is_not_null() & pl.col("drift_others_ratio").is_not_null()
    halves = pl.col("drift_ratio").filter(measured & (pl.col("num_measured_steps") >= MIN_STEPS) & (pl.col("drift_ratio") > 0)).log()
    return [
        *[pl.col(name).filter(measured).mean().alias(f"early.{name}") for name in ("last_half_ratio", "first_steps_ratio")],
        pl.col("drift_change_ratio").filter(told).mean().alias("drift.change"),
        *[pl.col("drift_others_ratio").list.get(place).filter(told).mean().alias(f"drift.{place}") for place in range(OTHERS)],
        halves.count().alias("halves.n"),
        halves.mean().alias("halves.mean"),
        halves.var().alias("halves.variance"),
    ]


def drifts(sums: Mapping[str, Any]) -> bool:
    """Whether the change is larger than chance makes it in 95 of 100 cells without any, and than LEAST_CHANGE; or began_early."""
    if began_early(sums):
        return True
    if sums["drift.change"] is not None:
        error = math.sqrt(math.fsum(sums[f"drift.{place}"] ** 2 for place in range(OTHERS)) / OTHERS)
        return _beyond(sums["drift.change"], error, OTHERS)
    n = sums["halves.n"]
    if n < MIN_RUNS:
        return False
    return _beyond(2 * sums["halves.mean"], 2 * math.sqrt(sums["halves.variance"] / n), n - 1)  # halves lie half a window apart


def began_early(sums: Mapping[str, Any]) -> bool:
    """Return whether the first steps of the windows make their rate too high."""
    last_half, first_steps = sums["early.last_half_ratio"], sums["early.first_steps_ratio"]
    return last_half is not None and first_steps is not None and bool(last_half > EARLY_RATE and first_steps < EARLY_STEPS)


def _beyond(change: float, error: float, freedom: float) -> bool:
    return abs(change) > LEAST_CHANGE and abs(change) > quantile(freedom, LEVEL) * error
