"""Make the table of the time that cells train until they reach an accuracy, from the evaluations in the midst of their runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURING, Estimate, LogSample, geometric_mean
from workflow.report.keys import key_columns, linked, sentence, size_columns
from workflow.report.table import Table, estimate_text, numbers, percent, significant, value_of, words
from workflow.run.record.columns import CURVE, MISSING, PREVENTED

TIME_TO_ACCURACY: Final = "time-to-accuracy"


class Point(NamedTuple):
    """An evaluation of a run, by the numbers of CURVE."""

    step: float
    epoch: float | None
    accuracy: float | None
    training_s: float | None


def curve_of(row: Mapping[str, Any]) -> list[Point]:
    """Return the evaluations in a row of records.parquet that tell an accuracy. An epoch that no program tells is that of the samples."""
    flat, samples = row["evaluations"] or [], row["train_samples"]
    points = [Point(*flat[place : place + len(CURVE)]) for place in range(0, len(flat), len(CURVE))]
    by_samples = row["global_batch_size"] / samples if samples else None
    return [
        point._replace(epoch=point.step * by_samples) if point.epoch is None and by_samples else point
        for point in points
        if point.accuracy is not None
    ]


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
    """Build the table: one row per cell with a run that tells an accuracy. Without a `target` it is the best that all runs reached."""
    runs: dict[tuple[str, str], list[tuple[Mapping[str, Any], list[Point]]]] = {}
    for row, points in curves(analysis):
        runs.setdefault((row["source"], row["cell_id"]), []).append((row, points))
    cells = [cell for cell in analysis.cells if any(points for _, points in runs.get((cell.source, cell.cell_id), ()))]
    own = [runs[cell.source, cell.cell_id] for cell in cells]
    best = [max(map(_accuracy, points)) for found in own for _, points in found if points]
    asked = target if target is not None else min(best, default=0.0)
    told = "" if target is not None else ", the best accuracy that all runs reached (--target names another)"
    rows = [_row(found, asked) for found in own]
    columns = [
        *key_columns(analysis, cells),
        *size_columns(cells),
        numbers("target", "Target", percent, [asked] * len(cells)),
        words("reached", "Runs that reached it", [row["reached"] for row in rows], number=True),
        numbers("epochs", "Epochs", significant, [row["epochs"] for row in rows]),
        numbers(
            "training_s",
            "Training [s]",
            estimate_text,
            [row["training_s"] for row in rows],
            [cell.marks.intersection(MEASURING) for cell in cells],
            raw=value_of,
        ),
        numbers("best_accuracy", "Best accuracy", percent, [row["best"] for row in rows]),
        words("note", "Note", [row["note"] for row in rows], wrap=True),
    ]
    return Table(
        name=TIME_TO_ACCURACY,
        title="Time to accuracy",
        caption=sentence(
            f"Until the first evaluation with {percent(asked)} or more{told}: epochs, mean over runs, and seconds of training, "
            "without evaluations and start-up, geometric mean over runs. Neither is shown unless every run of the "
            "cell reached it. What lies between two evaluations is not known: a cell that is evaluated more often reaches it earlier",
            "\N{PLUS-MINUS SIGN} or [from, to] is the 95 % confidence interval over runs",
            analysis.shared,
        ),
        columns=linked(analysis, columns, cells),
        reasons=analysis.reasons,
        empty="No run has told the accuracy of an evaluation yet.",
    )


def _accuracy(point: Point) -> float:
    return point.accuracy or 0.0


def _row(runs: list[tuple[Mapping[str, Any], list[Point]]], target: float) -> dict[str, Any]:
    """Return the values of a row by the keys of the columns; `best` is the mean of the runs' best accuracies."""
    firsts = [next((point for point in points if _accuracy(point) >= target), None) for _, points in runs]
    reached = [point for point in firsts if point is not None]
    short = [
        f"repeat {row['repeat']}: {f'at most {percent(max(map(_accuracy, points)))}' if points else row['status']}"
        for (row, points), first in zip(runs, firsts, strict=True)
        if first is None
    ]
    found = {
        "reached": f"{len(reached)}/{len(runs)}",
        "best": statistics.fmean(max(map(_accuracy, points)) for _, points in runs if points),
        "note": f"not reached: {'; '.join(short)}" if short else "",
    }
    epochs = [point.epoch for point in reached if point.epoch is not None]
    whole = len(reached) == len(runs)
    return {
        **found,
        "epochs": statistics.fmean(epochs) if whole and len(epochs) == len(runs) else None,
        "training_s": _seconds(reached) if whole else None,
    }


def _seconds(points: list[Point]) -> Estimate | None:
    """Return the geometric mean of the runs' seconds; None unless all are known."""
    logs = [math.log(point.training_s) for point in points if point.training_s]
    if len(logs) < len(points):
        return None
    variance = statistics.variance(logs) if len(logs) > 1 else 0.0
    return geometric_mean(LogSample(n=len(logs), mean=statistics.fmean(logs), variance=variance))
