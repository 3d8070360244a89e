"""Marks beside a number that is not what it seems: each has one sentence, printed below every table that uses it.

A mark is a fact, which stands in the records as it is told, or one of TESTS: a statement about what is behind the numbers, which chance
makes in at most 5 of 100 cells that it is not true of. benchmarks/marks.py simulates the tests.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from workflow.report.drifting import EARLY_RATE, LEAST_CHANGE
from workflow.run.record.rate import UNEVEN
from workflow.run.record.replicas import NOT_COMPARED
from workflow.run.record.window_seen import CONFIRMED, STAGGERED_RATIO, STAGGERED_S

MIN_STEPS: Final = 100
MIN_WINDOW_S: Final = 30.0
WINDOW_MISMATCH: Final = 0.02
WINDOW_MISMATCH_S: Final = 0.02  # one turn of the kernel's scheduler between two readings of the clock is no fault of it
SUPERLINEAR: Final = 1.03
RISING: Final = 1.03
BUDGET_MISMATCH: Final = 0.01

_APART: Final = f"the rate of at least one run differs by more than {UNEVEN * 100:.0f} % from what the median step alone would give"

MARKS: Final[dict[str, str]] = {
    "replicas": "the ranks of a run have not trained one network together: they ended with different parameters, which in data parallelism "
    "are the same on all, or a rank whose output nobody read ended later than rank 0; the run's warnings name them",
    "samples": "the program reports another number of samples than the batch in all times the steps: the rate is made of the smaller one, "
    "and the program does not do the batch of the study in each step, or counts wrongly",
    "impossible": "the model FLOP utilisation is above 100 %, which no GPU reaches: the FLOP or the precision that its program reports is "
    "wrong, or its rate is",
    "losses": "this may be another network than in the cell that differs only in its framework, since the losses of the first five steps "
    "differ: at step 0 the network does; at a later one the optimizer, the data, or rounding, which grows from step to step in deep "
    "networks. The rates of these frameworks can be compared only if it is rounding",
    "short": f"the measured window is shorter than {MIN_STEPS} steps, or shorter than {MIN_WINDOW_S:.0f} s",
    "unchecked": f"Slipway's own clock does not confirm the measured window to {CONFIRMED * 100:.0f} %: it is too short for that, or its "
    "lines were not written as it went; how long it was, and so the rate, is the program's word",
    "staggered": "the ranks did not measure at the same time: for a part of a rank's window others had not begun theirs, or had ended, so "
    "that the rate is not what they do together",
    "oversubscribed": "nodes, processes or threads of a run shared cores, or had fewer cores than the scheduler granted",
    "shared": "the nodes were not the run's alone: other jobs may have been on them, or others worked on them before or while it measured",
    "busy": "a machine did something else while it measured",
    "unwatched": "on at least one node nobody could see what other programs did while it measured, so it is not known whether that node "
    "was busy with something else",
    "partial": "at least one run of this cell gave no number; the table `failures` lists these runs and says why",
    "drift": f"steps get slower or faster across the window: by more than {LEAST_CHANGE * 100:.0f} %, and more than chance leaves; or the "
    f"rate of the window is more than {EARLY_RATE * 100 - 100:.0f} % above that of its last half, since its first steps were short",
    "window": f"a rank's steps add up to something else than its window, by more than {WINDOW_MISMATCH * 100:.0f} %: its clock is "
    "wrong, or it did something between its steps",
    "assumed": "the rate is made of a count that the program does not report, and is right only if the program does what the study states",
    "stalls": f"{_APART}: some steps lasted much longer or shorter than the others",
    "input": f"{_APART}: batches did not come evenly",
    "stragglers": f"{_APART}: some ranks were slower than the others, always or in turn",
    "gaps": f"{_APART}: time passed between the steps, in evaluation or checkpoints, or steps overlapped, or a clock is wrong",
    "uneven": f"{_APART}; the record is of a version that did not record the cause",
    "output": "steps were read from what the program printed: a step ended when its line came",
    "untimed": "the program reports no steps: only the wall times of its runs are known, and no rate or speed-up is made of them",
    "means": "a line of the program's output reported several steps, or several lines came at once: the times of steps are means over "
    "several steps, and say nothing about a single one",
    "budget": f"the steps stage to release add up to something else than the run, by more than {BUDGET_MISMATCH * 100:.0f} %",
    "warned": "the run left warnings, which the report lists",
    "network": "the preflight found a slow node or link; the run's warnings name it",
    "resumed": "the run went on from a checkpoint: its times are those of its last attempt, its window comes after the resume",
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
    "lengths": "sequences lie in buckets, and the global batch differs from the baseline's: of each bucket another part fills no batch and "
    "is dropped, so that the lengths are mixed in another way",
    "baseline": "the baseline of this comparison carries marks that this cell does not: see its row",
}
"""First those by which a number is not what it seems to be: so they have the first letters."""

ASSUMED: Final = {
    "samples": "The samples of a step are those of `batch_size`",
    "steps": "The steps of a line of output are those of `every`",
}
"""What is assumed -> from which key of the study, for the footnote of the mark."""

MEASURING: Final = (
    *(
        "short",
        "unchecked",
        "staggered",
        "oversubscribed",
        "shared",
        "busy",
        "unwatched",
        "partial",
        "drift",
        "window",
        "samples",
        "assumed",
        "warned",
        "replicas",
        "network",
        "resumed",
    ),
    *("stalls", "input", "stragglers", "gaps", "uneven", "output", "means"),
    *("hardware", "software", "image", "program", "threads", "dataset", "settings", "commit", "changed", "losses", "dropout"),
)
"""Those that stand beside a number which was measured, in every table by one rule."""
TESTS: Final = frozenset({"drift", "superlinear", "rising"})

_FIVE = ("stage_s", "train_s", "result_s", "push_s", "release_s")

# column of a run -> when its number carries the mark; null (not measured) marks nothing
RUN_MARKS: Final[dict[str, pl.Expr]] = {
    "short": (pl.col("num_measured_steps") < MIN_STEPS) | (pl.col("window_s") < MIN_WINDOW_S),
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
    "replicas": (pl.col("ranks_apart").list.len() > 0).fill_null(value=False) | (pl.col("late_ranks").list.len() > 0),
    "network": pl.col("network_findings").list.len() > 0,
    "resumed": pl.col("resumed_attempt").is_not_null(),
    "budget": (pl.sum_horizontal(_FIVE) - pl.col("run_s")).abs() > pl.max_horizontal(BUDGET_MISMATCH * pl.col("run_s"), 0.001),
}


def marks_as_columns() -> list[pl.Expr]:
    """RUN_MARKS, each in a column of its name; what was not measured marks nothing."""
    return [expression.fill_null(value=False).alias(mark) for mark, expression in RUN_MARKS.items()]


def marks_of_runs(rows: pl.DataFrame) -> dict[str, tuple[str, ...]]:
    """Of each run id those that its number carries."""
    found = rows.select("run_id", *marks_as_columns()).iter_rows(named=True)
    return {row["run_id"]: tuple(mark for mark in RUN_MARKS if row[mark]) for row in found}
