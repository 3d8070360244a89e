"""Make the table of what happens in a step: the parts of the mean step of each measured cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED, MEASURING, CellResult
from workflow.report.keys import key_columns, linked, sentence, size_columns
from workflow.report.table import NONE, Table, numbers, percent, scaled

STEP_PARTS: Final[dict[str, str]] = {
    "input_s": "Input wait",
    "copy_s": "Copy",
    "forward_s": "Forward",
    "backward_s": "Backward",
    "exposed_s": "Exposed communication",
    "skew_s": "Skew",
    "optimizer_s": "Optimizer",
    "other_s": "Other",
}
MILLI: Final = 1e-3


def mean_parts(analysis: Analysis) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return by source and cell the means over its measured runs, of the parts in seconds, `step_s` among them.

    They are arithmetic means, so that the parts add up to the step. A part that some run does not tell is None, and in `other_s`. Cells
    without a run that tells parts are left out.
    """
    told = analysis.frame.filter(MEASURED & pl.col("part_step_s").is_not_null())
    names = [name for name in (*STEP_PARTS, "step_s") if name != "other_s"]
    each = [pl.when(pl.col(f"part_{name}").null_count() == 0).then(pl.col(f"part_{name}").mean()).alias(name) for name in names]
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in told.group_by("source", "cell_id", maintain_order=True).agg(*each).iter_rows(named=True):
        known = math.fsum(row[name] or 0.0 for name in names if name != "step_s")
        found[row["source"], row["cell_id"]] = {**row, "other_s": row["step_s"] - known}
    return found


def parts(analysis: Analysis) -> Table:
    """Build the table `parts`: one row per measured cell whose program tells parts."""
    told = mean_parts(analysis)
    found = [(cell, row) for cell in analysis.cells if (row := told.get((cell.source, cell.cell_id))) is not None]
    cells, rows = [cell for cell, _ in found], [row for _, row in found]
    columns = [
        *key_columns(analysis, cells),
        *size_columns(cells),
        *[
            numbers(
                name,
                f"{title} [ms]",
                _with_share,
                [None if row[name] is None else (row[name], row["step_s"]) for row in rows],
                raw=lambda part: part[0],
            )
            for name, title in STEP_PARTS.items()
        ],
        numbers("step_s", "Step [ms]", _milliseconds, [row["step_s"] for row in rows], _marks(cells)),
        numbers("residual_ratio", "Residual", percent, [row["other_s"] / row["step_s"] if row["step_s"] else None for row in rows]),
    ]
    return Table(
        name="parts",
        title="What happens in a step",
        caption=sentence(
            "Milliseconds and share of the mean step, over processes, measured steps and runs; arithmetic means, so that the parts add up "
            "to the step. Backward: without what is waited for other processes. Exposed communication: what also the last process waits "
            "in the exchange. Skew: what the others wait beyond that, for a slower one. Other, over the step the residual: what no part "
            f"tells of. {NONE}: not told, and in other",
            analysis.shared,
        ),
        columns=linked(analysis, columns, cells),
        empty="No program told parts of its steps.",
    )


def _with_share(part: tuple[float, float] | None) -> str:
    if part is None:
        return NONE
    seconds, step_s = part
    return f"{_milliseconds(seconds)} ({percent(seconds / step_s)})" if step_s else _milliseconds(seconds)


def _milliseconds(seconds: float | None) -> str:
    return scaled(MILLI, seconds)


def _marks(cells: Sequence[CellResult]) -> list[frozenset[str]]:
    return [cell.marks.intersection(MEASURING) - {"partial"} for cell in cells]
