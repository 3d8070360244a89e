"""Table h: what the runs took, in process hours and GPU hours, prevented attempts included and told apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import ENDED_WELL, CellResult
from workflow.report.digits import significant
from workflow.report.keys import SIZE_COLUMNS, key_columns, key_values, sentence, size_values
from workflow.report.leads import to_cells
from workflow.report.table import Column, Table, Value, number
from workflow.run.record.columns import PREVENTED

PARTS: Final = {"measured": "Measured", "failed": "Failed", "prevented": "Prevented", "repeated": "Repeated", "aside": "Set aside"}
HOUR_S: Final = 3600.0


def hours(analysis: Analysis) -> Table:
    """One row per cell that took any time: run_s of its attempts x its processes, and x its GPUs."""
    took = {(row["source"], row["cell_id"]): row for row in _seconds(analysis.frame).iter_rows(named=True)}
    columns = [
        *key_columns(analysis),
        *SIZE_COLUMNS,
        *[Column(key=f"{part}_process_h", title=title) for part, title in PARTS.items()],
        Column(key="process_h", title="Process hours"),
        Column(key="gpu_h", title="GPU hours"),
    ]
    cells = [(cell, row) for cell in analysis.cells if (row := took.get((cell.source, cell.cell_id))) and _total(row)]
    return Table(
        name="hours",
        title="What the runs took",
        caption=sentence(
            "Hours of a run (stage to release) times its processes. Failed: results without a measurement. Prevented: attempts that were "
            "cut off, also where a later one was measured. Repeated: results that a later one replaced. Set aside: attempts that were "
            "delivered when another one had their number. GPU hours: times its GPUs. Attempts without a readable record are in none",
            _in_all(cells),
            analysis.shared,
        ),
        columns=tuple(columns),
        rows=tuple((*key_values(analysis, cell), *_values(cell, row)) for cell, row in cells),
        leads=to_cells(analysis, columns, [cell for cell, _ in cells]),
        empty="No run has taken any time yet.",
    )


def _seconds(frame: pl.DataFrame) -> pl.DataFrame:
    """Per cell the seconds of its attempts by how they ended, and of all of them times their GPUs."""
    run_s = pl.col("run_s").fill_null(0.0)
    cut = pl.col("status").is_in(PREVENTED)
    return (
        frame.filter(pl.col("cell_id").is_not_null())
        .group_by("source", "cell_id", maintain_order=True)
        .agg(
            run_s.filter(ENDED_WELL).sum().alias("measured"),
            (run_s.filter(~ENDED_WELL & ~cut).sum() + pl.col("unmeasured_s").sum()).alias("failed"),
            (run_s.filter(cut).sum() + pl.col("prevented_s").sum()).alias("prevented"),
            pl.col("repeated_s").sum().alias("repeated"),
            pl.col("aside_s").sum().alias("aside"),
            ((run_s * pl.col("num_gpus").fill_null(0)).sum() + pl.col("beside_gpu_s").sum()).alias("gpu_s"),
        )
    )


def _total(row: Mapping[str, Any]) -> float:
    return float(sum(row[part] for part in PARTS))


def _values(cell: CellResult, row: Mapping[str, Any]) -> list[Value]:
    parts = [row[part] * cell.num_processes / HOUR_S for part in PARTS]
    shown = [*parts, sum(parts), row["gpu_s"] / HOUR_S]
    return [*size_values(cell), *[number(significant, value) for value in shown]]


def _in_all(cells: list[tuple[CellResult, dict[str, Any]]]) -> str:
    process_h = sum(_total(row) * cell.num_processes for cell, row in cells) / HOUR_S
    lost_h = sum(row["prevented"] * cell.num_processes for cell, row in cells) / HOUR_S
    gpu_h = sum(row["gpu_s"] for _, row in cells) / HOUR_S
    return f"In all {significant(process_h)} process hours, {significant(lost_h)} of them prevented; {significant(gpu_h)} GPU hours"
