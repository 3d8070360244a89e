"""Make the table of the time that cells train until they reach an accuracy, from the evaluations in the midst of their runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import geometric_mean, log_sample
from workflow.report.keys import cell_table
from workflow.report.table import Table, estimates, numbers, percent, significant, words
from workflow.run.record.columns import MISSING, PREVENTED, Point

TIME_TO_ACCURACY: Final = "time-to-accuracy"
ANOTHER: Final = "target_accuracy of the study file names another"


def curve_of(row: Mapping[str, Any]) -> list[Point]:
    """Return the evaluations in a row of records.parquet. Where the program tells no epoch, the samples do."""
    flat, samples = row["evaluations"] or [], row["train_samples"]
    points = [Point(*flat[place : place + len(Point._fields)]) for place in range(0, len(flat), len(Point._fields))]
    if not samples:
        return points
    by_samples = row["global_batch_size"] / samples
    return [point if point.epoch is not None else point._replace(epoch=point.step * by_samples) for point in points]


def curves(analysis: Analysis) -> Iterator[tuple[Mapping[str, Any], list[Point]]]:
    """Yield the rows of all runs with a result, and their evaluations."""
    ended = analysis.frame.filter(~pl.col("status").is_in([MISSING, *PREVENTED]))
    names = ("source", "cell_id", "repeat", "status", "evaluations", "train_samples", "global_batch_size")
    for row in ended.select(names).iter_rows(named=True):
        yield row, curve_of(row)


def has_curves(analysis: Analysis) -> bool:
    """Return True if a run was evaluated in the midst of its training."""
    return any(len(points) > 1 for _, points in curves(analysis))


def time_to_accuracy(analysis: Analysis, target: float | None = None) -> Table:
    """Build the table: one row per cell with a run that tells an accuracy. Without a `target`, here or in the study, it is the best that
    all runs reached, but for those that did not end well: one that broke off after its first evaluation would make it the target of all."""
    runs: dict[tuple[str, str], list[tuple[Mapping[str, Any], list[Point]]]] = {}
    for row, points in curves(analysis):
        runs.setdefault((row["source"], row["cell_id"]), []).append((row, points))
    cells = [cell for cell in analysis.cells if any(points for _, points in runs.get((cell.source, cell.cell_id), ()))]
    own = [runs[cell.source, cell.cell_id] for cell in cells]
    target, origin = analysis.sources[0].target_accuracy if target is None else target, ""
    if target is None:
        ended = [(row["status"], _best(points)) for found in own for row, points in found if points]
        best = [accuracy for status, accuracy in ended if status == "ok"] or [accuracy for _, accuracy in ended]
        target = min(best, default=0.0)
        origin = f", the best accuracy that all runs reached that ended well ({ANOTHER})"
    rows = [_row(found, target) for found in own]
    columns = [
        numbers("target", "Target", percent, [target] * len(cells)),
        words("reached", "Runs that reached it", [row["reached"] for row in rows], number=True),
        numbers("epochs", "Epochs", significant, [row["epochs"] for row in rows]),
        estimates("training_s", "Training [s]", [row["training_s"] for row in rows], [cell.measuring for cell in cells]),
        numbers("best_accuracy", "Best accuracy", percent, [row["best"] for row in rows]),
        words("note", "Note", [row["note"] for row in rows], wrap=True),
    ]
    return cell_table(
        analysis,
        cells,
        columns,
        name=TIME_TO_ACCURACY,
        title="Time to accuracy",
        caption=[
            f"Until the first evaluation with {percent(target)} or more{origin}: epochs, mean over runs, and seconds of training, "
            "without evaluations and start-up, geometric mean over runs. Neither is shown unless every run of the "
            "cell reached it. The time between two evaluations is not resolved: a cell that is evaluated more often reaches it earlier",
            "\N{PLUS-MINUS SIGN} or [from, to] is the 95 % confidence interval over runs",
        ],
        empty="No run has reported the accuracy of an evaluation yet.",
    )


def _best(points: Sequence[Point]) -> float:
    return max(point.accuracy for point in points)


def _row(runs: list[tuple[Mapping[str, Any], list[Point]]], target: float) -> dict[str, Any]:
    """Return the values of a row by the keys of the columns; `best` is the mean of the runs' best accuracies."""
    firsts = [next((point for point in points if point.accuracy >= target), None) for _, points in runs]
    reached = [point for point in firsts if point is not None]
    short, others = [], []
    for (row, points), first in zip(runs, firsts, strict=True):
        if first is None:
            short.append(f"repeat {row['repeat']}: {_most(row, points)}")
        else:
            after = "" if first.training_s is None else f" after {significant(first.training_s)} s"
            others.append(f"repeat {row['repeat']}{after}")
    note = f"not reached: {'; '.join(short)}" + (f"; reached: {', '.join(others)}" if others else "")
    epochs = [point.epoch for point in reached if point.epoch is not None]
    seconds = [point.training_s for point in reached if point.training_s]
    return {
        "reached": f"{len(reached)}/{len(runs)}",
        "best": statistics.fmean(_best(points) for _, points in runs if points),
        "note": note if short else "",
        "epochs": statistics.fmean(epochs) if len(epochs) == len(runs) else None,
        "training_s": geometric_mean(log_sample(seconds)) if len(seconds) == len(runs) else None,
    }


def _most(row: Mapping[str, Any], points: list[Point]) -> str:
    """Say how far a run came that did not reach the target, and how it ended where it did not end well."""
    told = [] if row["status"] == "ok" else [row["status"]]
    return ", ".join([*told, *([f"at most {percent(_best(points))}"] if points else [])])
