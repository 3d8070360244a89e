"""Make the table of the time that cells train until they reach an accuracy, from the evaluations in the midst of their runs."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import Estimate, geometric_mean, log_sample
from workflow.report.shared_columns import cell_table
from workflow.report.table_type import Table, estimates, numbers, percent, significant, words
from workflow.run.record.parquet_columns import MISSING, PREVENTED, Point

TIME_TO_ACCURACY: Final = "time-to-accuracy"
ANOTHER: Final = "target_accuracy of the study file names another"


class Evaluated(NamedTuple):
    """A run with a result, and its evaluations."""

    source: str
    cell_id: str
    repeat: int
    status: str
    points: list[Point]

    @property
    def best(self) -> float:
        return max(point.accuracy for point in self.points)


def curve_of(evaluations: Any, samples: int | None, global_batch_size: int) -> list[Point]:
    """Return the evaluations in a row of records.parquet. Where the program tells no epoch, the samples do."""
    flat = evaluations or ()
    points = [Point(*flat[place : place + len(Point._fields)]) for place in range(0, len(flat), len(Point._fields))]
    by_samples = global_batch_size / samples if samples else None
    return [point if point.epoch is not None or not by_samples else point._replace(epoch=point.step * by_samples) for point in points]


def curves(analysis: Analysis) -> Iterator[Evaluated]:
    """Yield all runs with a result."""
    ended = analysis.frame.filter(~pl.col("status").is_in([MISSING, *PREVENTED]))
    names = ("source", "cell_id", "repeat", "status", "evaluations", "train_samples", "global_batch_size")
    for source, cell_id, repeat, status, *told in ended.select(names).iter_rows():
        yield Evaluated(source, cell_id, repeat, status, curve_of(*told))


def has_curves(analysis: Analysis) -> bool:
    """Return True if a run was evaluated in the midst of its training."""
    return any(len(run.points) > 1 for run in curves(analysis))


def time_to_accuracy(analysis: Analysis, target: float | None = None) -> Table:
    """Build the table: one row per cell with a run that tells an accuracy. Without a `target`, here or in the study, it is the best that
    all runs reached, but for those that did not end well: one that broke off after its first evaluation would make it the target of all."""
    runs: dict[tuple[str, str], list[Evaluated]] = {}
    for run in curves(analysis):
        runs.setdefault((run.source, run.cell_id), []).append(run)
    cells = [cell for cell in analysis.cells if any(run.points for run in runs.get((cell.source, cell.cell_id), ()))]
    own = [runs[cell.source, cell.cell_id] for cell in cells]
    target, origin = analysis.sources[0].target_accuracy if target is None else target, ""
    if target is None:
        ended = [run for found in own for run in found if run.points]
        target = min((run.best for run in [run for run in ended if run.status == "ok"] or ended), default=0.0)
        origin = f", the best accuracy that all runs reached that ended well ({ANOTHER})"
    rows = [_row(found, target) for found in own]
    columns = [
        numbers("target", "Target", percent, [target] * len(cells)),
        words("reached", "Runs that reached it", [row.reached for row in rows], number=True),
        numbers("epochs", "Epochs", significant, [row.epochs for row in rows]),
        estimates("training_s", "Training [s]", [row.training_s for row in rows], [cell.measuring for cell in cells]),
        numbers("best_accuracy", "Best accuracy", percent, [row.best for row in rows]),
        words("note", "Note", [row.note for row in rows], wrap=True),
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


class _Row(NamedTuple):
    reached: str
    best: float
    """The mean of the runs' best accuracies."""
    note: str
    epochs: float | None
    training_s: Estimate | None


def _row(runs: Sequence[Evaluated], target: float) -> _Row:
    firsts = [next((point for point in run.points if point.accuracy >= target), None) for run in runs]
    reached = [point for point in firsts if point is not None]
    short = [f"repeat {run.repeat}: {_most(run)}" for run, first in zip(runs, firsts, strict=True) if first is None]
    epochs = [point.epoch for point in reached if point.epoch is not None]
    seconds = [point.training_s for point in reached if point.training_s]
    return _Row(
        reached=f"{len(reached)}/{len(runs)}",
        best=statistics.fmean(run.best for run in runs if run.points),
        note=f"not reached: {'; '.join(short)}" if short else "",
        epochs=statistics.fmean(epochs) if len(epochs) == len(runs) else None,
        training_s=geometric_mean(log_sample(seconds)) if len(seconds) == len(runs) else None,
    )


def _most(run: Evaluated) -> str:
    """Say how far a run came that did not reach the target, and how it ended where it did not end well."""
    told = [] if run.status == "ok" else [run.status]
    return ", ".join([*told, *([f"at most {percent(run.best)}"] if run.points else [])])
