"""Combine the runs of each cell into estimates with confidence intervals, marks and labels."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from containers.engines import ENGINES, in_container
from workflow.report.collect import cell_of
from workflow.run.record.parquet_columns import SETTINGS, SOFTWARE, TIMES_ONLY, UNMEASURED
from workflow.run.record.rate import NOT_COMPARED, OTHERS, UNEVEN, first_of
from workflow.run.record.step_clock import STEPS
from workflow.run.record.window_check import CONFIRMED, STAGGERED_RATIO, STAGGERED_S
from workflow.study.cell import ARGS, NO_EXCHANGE, SIZES, WORDS, Cell, plain_text
from workflow.study.series import IMPLIED_BY_FRAMEWORK, NOT_SERIES, PARAMETERS_FILE, file_digest, redundant_keys

# Estimates with confidence intervals. The unit of replication is the run, not the step.
#
# A run gives one number of a kind: its rate, samples of the window over wall time; beside it its median step. A cell gives the geometric
# mean of its runs, with Student's t on the logarithms. Steps of one run depend on each other, so an interval made from them covers the
# truth in 22 to 83 of 100 cases instead of 95 (simulated in tests/workflow/report/test_cells.py). Fewer than three runs: no interval.
#
# Runs are started in shuffled blocks, one block per repeat, and the runs of a block share the state of the machine. So the ratio of two
# cells that were measured in the same blocks is estimated from the difference of their logarithms in each block (a paired interval), which
# the state of a block does not enter. Where a block is not complete, or the blocks are not known: Welch on the logarithms.
#
# What is said of several estimates at once, such as of the largest of them, needs `among`: each interval at the level that makes all of
# them right together in 95 of 100 studies (Bonferroni). What is said because a number is high needs `least`: a one-sided bound.
# benchmarks/marks.py simulates both.


MIN_RUNS = 3
LEVEL = 0.95
MAX_LOG: Final = 69.0
"""The natural logarithm of 1e30."""


class LogSample(Struct, frozen=True, kw_only=True):
    """Mean and sample variance of the logarithms of `n` positive numbers; the variance of a single one is 0 and means nothing."""

    n: int
    mean: float
    variance: float
    by_block: tuple[tuple[int, float], ...] = ()
    """The number of the block (the repeat) and the logarithm of each number, in the order of the blocks; empty where it is not known."""


def log_sample(values: Sequence[float], repeats: Sequence[int] = ()) -> LogSample:
    """Return mean and variance of the logarithms of positive numbers, and where their repeats are given the logarithms by repeat."""
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    squares = math.fsum((one - mean) ** 2 for one in logs)
    by_block = tuple(sorted(zip(repeats, logs, strict=True))) if repeats else ()
    return LogSample(n=len(logs), mean=mean, variance=squares / (len(logs) - 1) if len(logs) > 1 else 0.0, by_block=by_block)


class Estimate(Struct, frozen=True, kw_only=True):
    """A positive number, its interval at LEVEL (None, None: no interval) and its number of runs (the smaller one of a ratio).

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

    def scaled(self, factor: float) -> "Estimate":
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return replace(self, value=self.value * factor, low=low, high=high)

    def among(self, count: int) -> "Estimate":
        """Widen the interval so that it holds also for the one of `count` estimates that was chosen by its value."""
        if self.error is None:
            return self
        wider = interval(math.log(self.value), self.error, self.freedom, self.n, 1 - (1 - LEVEL) / max(1, count))
        return replace(self, low=wider.low, high=wider.high)

    def least(self, level: float = LEVEL) -> float | None:
        """Return what the quantity exceeds with confidence `level` (one-sided), or None where there is no interval."""
        return None if self.error is None else self.value * _exp(-one_sided_quantile(self.freedom, level) * self.error)

    @property
    def plus_minus(self) -> float | None:
        """Return the larger distance from the value to an end of the interval."""
        return None if self.low is None or self.high is None else max(self.high - self.value, self.value - self.low)


def geometric_mean(sample: LogSample) -> Estimate:
    """Compute the geometric mean of the runs, with Student's t on the logarithms, n - 1 degrees of freedom."""
    standard_error = math.sqrt(sample.variance / sample.n)
    return interval(sample.mean, standard_error, sample.n - 1, sample.n)


def ratio(above: LogSample, below: LogSample) -> Estimate:
    """Return the geometric mean of `above` over that of `below`.

    Its interval is paired (n - 1 degrees of freedom) where both were measured in the same blocks, else Welch's (unequal variances,
    degrees of freedom after Satterthwaite).
    """
    center, n = above.mean - below.mean, min(above.n, below.n)
    if n < MIN_RUNS:
        return Estimate(value=_exp(center), n=n)
    pairs = list(zip(above.by_block, below.by_block, strict=False))
    if len(pairs) == above.n == below.n and all(one[0] == other[0] for one, other in pairs):
        squares = math.fsum((one[1] - other[1] - center) ** 2 for one, other in pairs)
        return replace(interval(center, math.sqrt(squares / (n - 1) / n), n - 1, n), paired=True)
    share_above, share_below = above.variance / above.n, below.variance / below.n
    total = share_above + share_below
    freedom = math.inf if total == 0 else total**2 / (share_above**2 / (above.n - 1) + share_below**2 / (below.n - 1))
    return interval(center, math.sqrt(total), freedom, n)


def interval(center: float, error: float, freedom: float, n: int, level: float = LEVEL) -> Estimate:
    """Return the estimate exp(`center`) of `n` runs with its two-sided interval. `error` is the standard error of `center`."""
    if n < MIN_RUNS:
        return Estimate(value=_exp(center), n=n)
    half = 0.0 if error == 0 else quantile(freedom, level) * error
    low, high = _exp(center - half), _exp(center + half)
    return Estimate(value=_exp(center), low=low, high=high, n=n, error=error, freedom=freedom)


def _exp(value: float) -> float:
    """Return the power of e, within what squares and quotients stay numbers of: a record may tell of a step of 1e-300 s."""
    return math.exp(max(-MAX_LOG, min(value, MAX_LOG)))


def quantile(freedom: float, level: float = LEVEL) -> float:
    """Return the two-sided `level` quantile of Student's t; `freedom` need not be whole."""
    return one_sided_quantile(freedom, (1 + level) / 2)


@lru_cache(maxsize=4096)
def one_sided_quantile(freedom: float, below: float) -> float:
    """Return the value below which the share `below` of Student's t lies."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, below))


# Drift of the windows of a cell: its runs together give a test with 5 % false alarms.
#
# A run tells the change of its step time across the window, and as much of OTHERS other slow changes, of which no drift makes any
# (workflow/run/record/rate.py). Each is averaged over the runs; then the root mean square of the others is the standard error of the
# first. So what is alike in all runs, such as the phase in which bunches of input come, does not look certain because it comes again. Runs
# of an older version, which tell of no other changes, are not tested, and neither are short windows.
#
# A window that began ahead (batches that were read before it, steps in flight) has short first steps and then none that are as short: so
# is every window of which the means over the runs lie beyond EARLY_RATE and EARLY_STEPS.


MIN_CHANGE: Final = 0.01
"""A change across the window that is smaller is no drift, however certain."""
EARLY_RATE: Final = 1.02
"""How far the rate of a window may be above that of its last half, as `last_half_ratio`."""
EARLY_STEPS: Final = 0.9
"""How short its first steps may be then beside as many in a row of its last half, as `first_steps_ratio`."""


def drift_sums(measured: pl.Expr) -> list[pl.Expr]:
    """Return what `drifts` needs of a group of runs, of those that are `measured`."""
    told = measured & pl.col("drift_change_ratio").is_not_null() & pl.col("drift_others_ratio").is_not_null()
    return [
        *[pl.col(name).filter(measured).mean().alias(f"early.{name}") for name in ("last_half_ratio", "first_steps_ratio")],
        pl.col("drift_change_ratio").filter(told).mean().alias("drift.change"),
        *[pl.col("drift_others_ratio").list.get(place).filter(told).mean().alias(f"drift.{place}") for place in range(OTHERS)],
    ]


def drifts(sums: Mapping[str, Any]) -> bool:
    """Return True if the change is larger than chance makes it in 95 of 100 cells without any, and than MIN_CHANGE; or began_early."""
    if began_early(sums):
        return True
    change = sums["drift.change"]
    if change is None:
        return False
    error = math.sqrt(math.fsum(sums[f"drift.{place}"] ** 2 for place in range(OTHERS)) / OTHERS)
    return bool(abs(change) > max(MIN_CHANGE, quantile(OTHERS, LEVEL) * error))


def began_early(sums: Mapping[str, Any]) -> bool:
    """Return whether the first steps of the windows make their rate too high."""
    last_half, first_steps = sums["early.last_half_ratio"], sums["early.first_steps_ratio"]
    return last_half is not None and first_steps is not None and bool(last_half > EARLY_RATE and first_steps < EARLY_STEPS)


# Marks of numbers that are not what they seem to be. Each mark has one sentence, printed below every table that uses it.
#
# A mark is a fact, which stands in the records as it is told, or one of TESTS: a statement about what is behind the numbers, which chance
# makes in at most 5 of 100 cells that it is not true of. benchmarks/marks.py simulates the tests.


SHORT_STEPS: Final = 100
MIN_WINDOW_S: Final = 30.0
WINDOW_MISMATCH: Final = 0.02
WINDOW_MISMATCH_S: Final = 0.02  # one turn of the kernel's scheduler between two readings of the clock is no fault of it
SUPERLINEAR: Final = 1.03
RISING: Final = 1.03
BUDGET_MISMATCH: Final = 0.01

_APART: Final = f"the rate of at least one run differs by more than {UNEVEN * 100:.0f} % from what the median step alone would give"

MARKS: Final[dict[str, str]] = {
    "unreduced": "gradients were not exchanged (`comm_hook: noop`), so each rank trained a network of its own: this is for diagnosis, and "
    "no result",
    "replicas": "the ranks of a run did not train one network together: their parameters differ at the end, or a rank whose output nobody "
    "read ended later than rank 0; the run's warnings name them",
    "samples": "the program reports a number of samples that is not the global batch times the steps: the rate is made of the smaller "
    "number. The program does not compute the batch of the study in each step, or it counts wrongly",
    "impossible": "the model FLOP utilisation is above 100 %, which no GPU reaches: the FLOP or the precision that its program reports is "
    "wrong, or its rate is",
    "losses": "the losses of the first five steps differ from those of the cell that differs only in its framework, so this may be another "
    "network (`slipway check-frameworks` names the step). At step 0 the network differs; at a later step the optimizer, the data, or "
    "rounding, which grows from step to step in deep networks. The rates of these frameworks can be compared only if it is rounding",
    "short": f"the measured window is shorter than {SHORT_STEPS} steps, or shorter than {MIN_WINDOW_S:.0f} s",
    "unchecked": f"Slipway's own clock does not confirm the measured window to {CONFIRMED * 100:.0f} %: it is too short for that, or its "
    "lines were written late. Its length, and so the rate, is only what the program reports",
    "staggered": "the ranks did not measure at the same time: some ranks worked alone in a part of the window, so the rate is not what all "
    "ranks do together",
    "oversubscribed": "nodes, processes or threads of a run shared cores, or had fewer cores than the scheduler granted",
    "shared": "the nodes were not the run's alone: other jobs may have been on them, or others worked on them before or while it measured",
    "busy": "a machine did something else while it measured; the run's warnings name the cause",
    "unwatched": "on at least one node nobody could see what other programs did while it measured, so it is not known whether that node "
    "was busy with something else",
    "partial": "at least one run of this cell gave no number; the table `failures` lists these runs and says why",
    "drift": f"steps get slower or faster across the window, by more than {MIN_CHANGE * 100:.0f} % and by more than chance explains; or "
    f"the rate of the window is more than {EARLY_RATE * 100 - 100:.0f} % above that of its last half, because its first steps were short",
    "window": f"the steps of a rank do not add up to its window, by more than {WINDOW_MISMATCH * 100:.0f} %: its clock is wrong, or it did "
    "something between its steps",
    "assumed": "the rate is made of a count that the program does not report: the samples of a step are taken from `batch_size`, or the "
    "steps of a line of output from `every`. It is right only if the program does what the study states",
    "stalls": f"{_APART}: some steps lasted much longer or shorter than the others",
    "input": f"{_APART}: batches did not come evenly",
    "stragglers": f"{_APART}: some ranks were slower than the others, always or in turn",
    "gaps": f"{_APART}: time passed between the steps, in evaluation or checkpoints, or steps overlapped, or a clock is wrong",
    "uneven": f"{_APART}; the record is of a version that did not record the cause",
    "output": "steps were read from the output of the program: a step ended when its line arrived",
    "untimed": "the program reports no steps: only the wall times of its runs are known, and no rate or speed-up is made of them",
    "means": "a line of the program's output reported several steps, or several lines came at once: the times of steps are means over "
    "several steps, and say nothing about a single one",
    "budget": f"the steps stage to release do not add up to the run, by more than {BUDGET_MISMATCH * 100:.0f} %",
    "warned": "the run left warnings, which the report lists",
    "network": "the preflight found a slow node; the run's warnings name it",
    "resumed": "the run continued from a checkpoint: its times are those of its last attempt, and its window begins after the resume",
    "superlinear": f"the efficiency is above {SUPERLINEAR * 100:.0f} %, even at the lower end of its interval; look for a baseline "
    "that was slowed down",
    "rising": f"each process is faster than with fewer processes by more than {RISING * 100 - 100:.0f} %, even at the lower end of the "
    "interval",
    "hardware": "the compared runs had different hardware",
    "software": "the compared runs had different versions of framework, CUDA, cuDNN, NCCL or driver",
    "image": "the compared runs had different container images, or some had none",
    "program": "the compared runs had different files in the folder of the program",
    "dropout": "the network has dropout, for which each framework draws its own random numbers, so its losses do not show whether it is "
    "the same network as in the cell that differs only in its framework (`dropout: false` shows it)",
    "threads": "the compared runs had different numbers of CPU threads per process",
    "dataset": "the compared runs had different datasets, by their digests",
    "settings": "the compared runs had different settings of TF32, cuDNN's benchmark or determinism",
    "commit": "the compared runs were made by different commits of Slipway",
    "changed": "a run came from a checkout with changes that are in no commit",
    "batch": "the batch differs from the baseline's, per process and in all",
    "lengths": "sequences are in buckets, and the global batch differs from the baseline's. Other sequences fill no batch and are dropped, "
    "so the mix of lengths differs",
    "baseline": "the baseline of this comparison has marks that this cell does not have: see its row",
}
"""First those by which a number is not what it seems to be: so they have the first letters."""

OF_OTHERS: Final = ("impossible", "untimed", "budget", "superlinear", "rising", "batch", "lengths", "baseline")
"""Marks of a comparison, or of a number of one table."""
MEASURING: Final = MARKS.keys() - {*OF_OTHERS}
"""Marks that stand beside a number which was measured, in every table by one rule."""
TESTS: Final = frozenset({"drift", "superlinear", "rising"})

_FIVE = ("stage_s", "train_s", "result_s", "push_s", "release_s")

# column of a run -> when its number carries the mark; null (not measured) marks nothing
RUN_MARKS: Final[dict[str, pl.Expr]] = {
    "unreduced": (pl.col("comm_hook") == NO_EXCHANGE) & (pl.col("mode") == "train"),
    "short": (pl.col("num_measured_steps") < SHORT_STEPS) | (pl.col("window_s") < MIN_WINDOW_S),
    "unchecked": pl.col("window_told_s").is_not_null()
    & ~(
        (pl.col("window_most_s") <= pl.col("window_told_s") * (1 + CONFIRMED))
        & (pl.col("window_least_s") >= pl.col("window_told_s") * (1 - CONFIRMED))
    ).fill_null(False),
    "staggered": pl.col("window_together_s") > pl.col("window_s") * (1 + STAGGERED_RATIO) + STAGGERED_S,
    "oversubscribed": pl.col("oversubscribed"),
    "shared": ~pl.col("exclusive"),
    "busy": pl.col("busy").list.len() > 0,
    "unwatched": pl.col("others_unseen"),
    "hardware": pl.col("mixed_hardware"),
    "changed": pl.col("git_dirty") == "true",
    "window": ((pl.col("window_steps_ratio") - 1).abs() > WINDOW_MISMATCH)
    & ((pl.col("window_steps_ratio") - 1).abs() * pl.col("window_s") > WINDOW_MISMATCH_S),
    "samples": (pl.col("unit") != "tokens")
    & (pl.col("mode") != "infer")
    & (pl.coalesce("samples_reported", "samples") != pl.col("num_measured_steps") * pl.col("global_batch_size")),
    "assumed": pl.col("assumed").list.contains("steps") | (pl.col("assumed").list.contains("samples") & (pl.col("unit") != "tokens")),
    **{cause: pl.col("uneven_cause") == cause for cause in ("stalls", "input", "stragglers", "gaps")},
    "uneven": pl.col("uneven_cause").is_null() & ((pl.col("rate_to_median_ratio") - 1).abs() > UNEVEN),
    "impossible": pl.col("mfu") > 1,
    "output": pl.col("steps_source") == "log",
    "untimed": pl.col("steps_source") == "none",
    "means": pl.col("steps_together") > 1,
    "warned": pl.col("warnings").list.set_difference(pl.col("busy").fill_null([])).list.set_difference([NOT_COMPARED]).list.len() > 0,
    "replicas": (pl.col("comm_hook").ne_missing(NO_EXCHANGE) & (pl.col("ranks_apart").list.len() > 0)).fill_null(value=False)
    | (pl.col("late_ranks").list.len() > 0),
    "network": pl.col("network_findings").list.len() > 0,
    "resumed": pl.col("resumed_attempt").is_not_null(),
    "budget": (pl.sum_horizontal(_FIVE) - pl.col("run_s")).abs() > pl.max_horizontal(BUDGET_MISMATCH * pl.col("run_s"), 0.001),
}


def marks_as_columns() -> list[pl.Expr]:
    """Return each of RUN_MARKS as a column; what was not measured marks nothing."""
    return [expression.fill_null(value=False).alias(mark) for mark, expression in RUN_MARKS.items()]


def marks_of_runs(rows: pl.DataFrame) -> dict[str, tuple[str, ...]]:
    """Return the marks of each run, by its id."""
    found = rows.select("run_id", *marks_as_columns()).iter_rows(named=True)
    return {row["run_id"]: tuple(mark for mark in RUN_MARKS if row[mark]) for row in found}


# arithmetic means over the runs that were measured, or have wall times only: times add up only so
MEANS: Final = (
    *("run_s", *(f"{step}_s" for step in STEPS), "training_s"),
    *("first_step_s", "window_s", "step_min_s", "step_p99_s", "step_max_s", "eval_accuracy", "eval_loss", "final_loss"),
)
SAMPLES: Final = ("rate_per_s", "step_p50_s", "step_p95_s")
DISTINCT: Final = (
    "hardware",
    "software",
    "image_digest",
    "contained",
    "device",
    "threads_per_rank",
    "dataset_digest",
    "commit",
    "program_digest",
    *SETTINGS,
)

MEASURED: Final = (pl.col("status") == "ok") & pl.col("rate_per_s").is_not_null()
"""True if a row of records.parquet is a measurement, for all tables, plots and counts: it ended ok, and a rate could be made of it."""
CONTAINED: Final = (
    pl.when(pl.col("engine").is_in([name for name in ENGINES if not in_container(name)]))
    .then(pl.lit("no"))
    .when(pl.col("engine").is_not_null())
    .then(pl.lit("yes"))
)
"""True if a run was in a container. Without one it has no image, which differs from any; where no engine is told, nobody knows."""
_MIXED: Final = {
    **{"hardware": "hardware", "software": "software", "image_digest": "image", "contained": "image", "dataset_digest": "dataset"},
    **{"commit": "commit", "program_digest": "program", "threads_per_rank": "threads", **dict.fromkeys(SETTINGS, "settings")},
}
"""The names in DISTINCT of which one value is right, and the mark of several."""
ROUNDING: Final = 1e-9
_TAKEN: Final = (
    *("source", "cell_id", "series", "num_runs", "num_measured", "num_ended_well", "num_allocations", "num_node_sets", "input_wait_ratio"),
)
OF_ONE: Final = tuple(key for key in NOT_SERIES if key != "cell_id")
HAS_TIMES_ONLY: Final = (pl.col("status") == "ok") & ~MEASURED & pl.col("steps_source").eq_missing("none")
"""True if a run did all that it should, and has no rate: its program tells of no steps."""
ENDED_WELL: Final = MEASURED | HAS_TIMES_ONLY
END: Final = (
    pl.when(HAS_TIMES_ONLY)
    .then(pl.lit(TIMES_ONLY))
    .when((pl.col("status") == "ok") & ~MEASURED)
    .then(pl.lit(UNMEASURED))
    .otherwise(pl.col("status"))
)
"""How a row ended, where `ok` is a measurement."""


Shape = tuple[int, int, int]
"""Processes, nodes, processes of each node."""


class CellResult(Struct, frozen=True, kw_only=True, dict=True):
    """One cell of one source. `rate`, `step` and `p95` are samples of the runs' own rates, median steps and 95th percentiles; None where no
    run was measured. The runs that ended well (measured, or with wall times only) were in so many allocations (jobs, starts of them) and
    on so many different sets of hosts."""

    source: str
    cell_id: str
    series: str
    cell: Cell
    num_runs: int
    num_measured: int
    num_ended_well: int
    num_allocations: int
    num_node_sets: int
    rate: LogSample | None
    step: LogSample | None
    p95: LogSample | None
    means: Mapping[str, float | None]
    input_wait_ratio: float | None
    distinct: Mapping[str, frozenset[str]]
    failures: frozenset[str]
    marks: frozenset[str]
    first_losses: Mapping[int, float] | None = None
    """Step -> loss, of the first run that ended well and told them."""

    @cached_property
    def unit(self) -> str:
        return self.cell.unit

    @property
    def num_processes(self) -> int:
        return self.cell.world_size

    @property
    def shape(self) -> Shape:
        return self.cell.world_size, self.cell.nodes, self.cell.gpus_per_node

    @property
    def measuring(self) -> frozenset[str]:
        return self.marks & MEASURING

    def size(self, key: str) -> int:
        return int(getattr(self.cell, key))

    @cached_property
    def step_s(self) -> Estimate | None:
        """Return the geometric mean of the runs' medians."""
        return geometric_mean(self.step) if self.step else None

    @cached_property
    def p95_s(self) -> Estimate | None:
        return geometric_mean(self.p95) if self.p95 else None

    @cached_property
    def rate_per_s(self) -> Estimate | None:
        """Return the rate of all processes together: the geometric mean of the runs' rates over wall time."""
        return geometric_mean(self.rate) if self.rate else None

    @property
    def reason(self) -> str | None:
        """Explain why there is no number; None if there is one."""
        return None if self.rate else ", ".join(sorted(self.failures)) or "not measured"


def cells_of(frame: pl.DataFrame) -> tuple[CellResult, ...]:
    """Return the cells in the study's order."""
    software = pl.concat_str([pl.format(f"{name} {{}}", pl.col(name)) for name in SOFTWARE], separator=", ", ignore_nulls=True)
    rows = frame.with_columns(
        MEASURED.alias("measured"),
        ENDED_WELL.alias("ended_well"),
        software.alias("software"),
        CONTAINED.alias("contained"),
        pl.coalesce("git_sha", "slipway_version").alias("commit"),
        pl.when(~MEASURED).then(END).alias("failures"),
    )
    waited = pl.col("input_wait_mean_s") / pl.col("step_mean_s")
    input_wait = pl.when(waited < 1 + ROUNDING).then(pl.min_horizontal(waited, pl.lit(1.0)))  # more than a step is no part of it
    job = pl.format("{} {} {}", "scheduler", "job_id", pl.col("restart_count").fill_null(0))
    hosts = pl.col("hosts").str.split(",").list.unique().list.sort().list.join(",")
    logs = {name: pl.col(name).filter("measured").log() for name in SAMPLES}
    groups = rows.group_by("source", "cell_id", maintain_order=True).agg(
        pl.col("series", "cell", *OF_ONE).first(),
        pl.len().alias("num_runs"),
        pl.col("measured").sum().alias("num_measured"),
        pl.col("ended_well").sum().alias("num_ended_well"),
        *[expression.mean().alias(f"{name}.mean") for name, expression in logs.items()],
        *[expression.var().alias(f"{name}.variance") for name, expression in logs.items()],
        *[expression.count().alias(f"{name}.n") for name, expression in logs.items()],
        pl.col("repeat").filter("measured").alias("blocks"),
        logs["rate_per_s"].alias("rates"),
        *[pl.col(name).filter("ended_well").mean() for name in MEANS],
        input_wait.filter("measured").mean().alias("input_wait_ratio"),
        *[pl.col(name).filter("ended_well").drop_nulls().unique() for name in DISTINCT],
        pl.col("failures").drop_nulls().unique(),
        pl.col("first_losses").filter(pl.col("ended_well") & (pl.col("first_losses").list.len() > 0)).first(),
        job.filter("ended_well").drop_nulls().n_unique().alias("num_allocations"),
        hosts.filter("ended_well").drop_nulls().n_unique().alias("num_node_sets"),
        *drift_sums(pl.col("measured")),
        *[expression.filter("ended_well").any().alias(f"mark.{name}") for name, expression in RUN_MARKS.items()],
    )
    return tuple(_results(groups))


def _results(groups: pl.DataFrame) -> Iterator[CellResult]:
    """Yield the cell of each row. What cells have in common, of a series or of all, is one object for them."""
    first: dict[str, Cell] = {}
    met: dict[tuple[tuple[str, ...], ...], Mapping[str, frozenset[str]]] = {}
    for row in groups.iter_rows(named=True):
        cell = first.get(row["series"]) or first.setdefault(row["series"], cell_of(row["cell"]))
        values = tuple([tuple(row[name]) for name in DISTINCT])
        if values not in met:
            met[values] = {name: frozenset(found) for name, found in zip(DISTINCT, values, strict=True)}
        marks = {name for name in RUN_MARKS if row[f"mark.{name}"]} | mixed_marks_of(met[values])
        marks |= {"partial"} if 0 < row["num_ended_well"] < row["num_runs"] else set()
        marks |= {"drift"} if drifts(row) else set()
        rate, step, p95 = (
            LogSample(n=row[f"{name}.n"], mean=row[f"{name}.mean"], variance=row[f"{name}.variance"] or 0.0) if row[f"{name}.n"] else None
            for name in SAMPLES
        )
        yield CellResult(
            **{name: row[name] for name in _TAKEN},
            cell=dataclasses.replace(cell, **{key: row[key] for key in NOT_SERIES}),
            rate=rate and replace(rate, by_block=tuple(sorted(zip(row["blocks"], row["rates"], strict=True)))),
            step=step,
            p95=p95,
            means={name: row[name] for name in MEANS},
            distinct=met[values],
            failures=frozenset(row["failures"]),
            marks=frozenset(marks),
            first_losses=first_of(row["first_losses"]),
        )


def mixed_marks_of(distinct: Mapping[str, frozenset[str]]) -> set[str]:
    """Return marks for hardware, software or settings that differ between runs whose numbers are combined. What a record does not tell is
    equal to all."""
    found = {mark for name, mark in _MIXED.items() if len(distinct.get(name, ())) > 1}
    return found if "cpu" in distinct["device"] else found - {"threads"}


# Labels of series, which hold only the keys that differ inside the study.


PREFIX: Final = {"comm_hook": "hook ", "augmentation": "augmentation "}
STEP_WORDS: Final = {"steps.warmup": "warm-up steps", "steps.measured": "measured steps", "steps.total": "steps in all"}
DETAILS: Final = ("dataset_spec", "optimizer", "steps", "args")


def flat_keys(cell: Cell) -> dict[str, object]:
    """Return the keys that make a series, nested ones as `optimizer.learning_rate`; the best known first."""
    flat = {}
    keys = cell.all_keys()
    for key in (*WORDS, *sorted(keys.keys() - set(WORDS) - set(NOT_SERIES) - set(IMPLIED_BY_FRAMEWORK))):
        value = keys[key]
        if key in DETAILS and isinstance(value, Mapping):
            flat.update({f"{key}.{name}": inner for name, inner in sorted(value.items())})
        else:
            flat[key] = file_digest(value) if key == PARAMETERS_FILE else value
    return flat


def varying(cells: Sequence[CellResult]) -> list[str]:
    """Return the keys with more than one value among the cells. Two names of a data set hide what differs in its specification."""
    flats = [flat_keys(cell) for cell in {cell.series: cell.cell for cell in cells}.values()]
    names = dict.fromkeys(name for flat in flats for name in flat)
    found = [name for name in names if name not in redundant_keys(flats) and len({repr(flat.get(name)) for flat in flats}) > 1]
    return [name for name in found if not (name.startswith("dataset_spec.") and "dataset" in found)]


def constant(cells: Sequence[CellResult]) -> str:
    """Format what all cells share of the best known keys beside the model: `pytorch, digits, train, fp32, nchw`."""
    if not cells:
        return ""
    flat, *others = [flat_keys(cell) for cell in {cell.series: cell.cell for cell in cells}.values()]
    same = [name for name in WORDS[1:] if all(other.get(name) == flat[name] for other in others)]
    shown = [f"{PREFIX.get(name, '')}{flat[name]}" for name in same if flat[name] not in (None, "none", "site")]
    return ", ".join(shown)


def legend_keys(cells: Sequence[CellResult]) -> list[str]:
    """Return the varying keys that a legend needs: without a detail of optimizer or steps where the others tell the series apart."""
    names = varying(cells)
    flats = [flat_keys(cell) for cell in {cell.series: cell.cell for cell in cells}.values()]

    def kinds(of: Sequence[str]) -> int:
        return len({tuple(repr(flat.get(name)) for name in of) for flat in flats})

    for name in reversed([name for name in names if name.split(".")[0] in DETAILS]):
        without = [other for other in names if other != name]
        if kinds(without) == kinds(names):
            names = without
    return names


def detail_title(name: str) -> str:
    """Format a key by its last part, such as `learning rate`, or as STEP_WORDS has it, such as `measured steps`."""
    inner = name.rpartition(".")[2]
    if name.startswith(ARGS) and inner in (*WORDS, *SIZES):
        return name  # an argument that is called as a key of the cell
    return STEP_WORDS.get(name) or inner.replace("_", " ")


def value_text(name: str, value: Any) -> str:
    """Format a value for a legend, such as `resnet18`, `hook fp16`, `learning_rate 0.1`."""
    if name in WORDS:
        prefix = PREFIX.get(name, "")
        return f"{prefix}{value}" if value != "none" or not prefix else f"no {prefix.strip()}"
    return f"no {detail_title(name)}" if value is None else f"{detail_title(name)} {plain_text(value)}"


def series_words(cell: CellResult, names: Sequence[str]) -> list[str]:
    """Return the values of the keys, as a legend has them."""
    flat = flat_keys(cell.cell)
    return [value_text(name, flat.get(name)) for name in names]


def batch_text(kind: str, size: int) -> str:
    """Describe what a line holds constant: `batch 32` of each process (weak), or `global batch 64` (strong)."""
    return f"global batch {size}" if kind == "strong" else f"batch {size}"
