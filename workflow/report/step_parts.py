"""Make the table of what happens in a step: the parts of the mean step of each measured cell."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Final

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED, CellResult
from workflow.report.meanings import describe_columns
from workflow.report.shared_columns import cell_table
from workflow.report.table_type import MEGA, MILLI, NONE, Table, numbers, percent, scaled

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
EXPLAINED: Final = ("backward_s", "exposed_s", "skew_s", "other_s", "residual_ratio", "sent_bytes", "network_s")
GRADIENT_BYTES: Final = {"none": 4, "fp16": 2, "bf16": 2, "noop": 0}
"""Bytes of a number in the exchange, by `comm_hook`; of the others they depend on the shapes of the network."""
Parts = Mapping[str, float | None]
"""Seconds of the parts of a mean step, and of `step_s`, and beside them `parameters` and `network_mbit`, the preflight's rate."""


def mean_parts(analysis: Analysis) -> dict[tuple[str, str], Parts]:
    """Return by source and cell the means over its measured runs.

    They are arithmetic means, so that the parts add up to the step. A part that some run does not tell is None, and in `other_s`. Cells
    without a run that tells parts are left out.
    """
    told = analysis.frame.filter(MEASURED & pl.col("part_step_s").is_not_null())
    names = [name for name in (*STEP_PARTS, "step_s") if name != "other_s"]
    each = [pl.when(pl.col(f"part_{name}").null_count() == 0).then(pl.col(f"part_{name}").mean()).alias(name) for name in names]
    found: dict[tuple[str, str], Parts] = {}
    each += [pl.col("parameters").max(), pl.col("network_mbit").mean()]
    for row in told.group_by("source", "cell_id", maintain_order=True).agg(*each).iter_rows(named=True):
        cell = row.pop("source"), row.pop("cell_id")
        found[cell] = {**row, "other_s": row["step_s"] - math.fsum(row[name] or 0.0 for name in names if name != "step_s")}
    return found


def gradient_bytes(cell: CellResult, row: Parts) -> float | None:
    """Return the bytes of all gradients as they are exchanged in a step; None where they are not, or nobody knows how."""
    own, width, parameters = cell.cell, GRADIENT_BYTES.get(cell.cell.comm_hook), row["parameters"]
    exchanged = cell.num_processes > 1 and own.mode == "train" and own.program is None and own.strategy != "fsdp2"
    return None if width is None or parameters is None or not exchanged else width * parameters


def sent_bytes(cell: CellResult, row: Parts) -> float | None:
    """Return the bytes that a process sends in the exchange of a step: 2 (n - 1)/n times the gradients (Patarasuk and Yuan, 2009)."""
    whole = gradient_bytes(cell, row)
    return None if whole is None else 2 * (1 - 1 / cell.num_processes) * whole


def node_bytes(cell: CellResult, row: Parts) -> float | None:
    """Return the least that a node sends to others in the exchange of a step, whatever its processes send each other."""
    whole = gradient_bytes(cell, row)
    return None if whole is None else 2 * (1 - 1 / cell.cell.nodes) * whole


def network_s(cell: CellResult, row: Parts) -> float | None:
    """Return the least time of the exchange of a step by the rate between nodes that the preflight measured, if each node sends no more
    than it must. None where that is not known."""
    sent, mbit = node_bytes(cell, row), row["network_mbit"]
    return None if sent is None or not mbit or cell.cell.nodes == 1 else sent * 8 / (MEGA * mbit)


def parts(analysis: Analysis) -> Table:
    """Build the table `parts`: one row per measured cell whose program tells parts."""
    told = mean_parts(analysis)
    cells = [cell for cell in analysis.cells if (cell.source, cell.cell_id) in told]
    rows = [told[cell.source, cell.cell_id] for cell in cells]
    sent, at_rate = list(map(sent_bytes, cells, rows)), list(map(network_s, cells, rows))
    columns = [
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
        numbers("step_s", "Step [ms]", _milliseconds, [row["step_s"] for row in rows], [cell.measuring - {"partial"} for cell in cells]),
        numbers(
            "residual_ratio",
            "Residual",
            percent,
            [(row["other_s"] or 0.0) / row["step_s"] if row["step_s"] else None for row in rows],
        ),
        numbers("sent_bytes", "Sent [MB]", partial(scaled, MEGA), sent),
        numbers("network_s", "At the preflight's rate [ms]", _milliseconds, at_rate),
    ]
    return cell_table(
        analysis,
        cells,
        columns,
        name="parts",
        title="What happens in a step",
        caption=[
            "Milliseconds and share of the mean step: arithmetic means over processes, measured steps and runs, so that the parts add up "
            "to the step",
            *describe_columns("parts", columns, EXPLAINED),
            f"{NONE}: not reported, and part of other",
        ],
        empty="No program reported the parts of its steps.",
    )


def _with_share(part: tuple[float, float] | None) -> str:
    if part is None:
        return NONE
    seconds, step_s = part
    return f"{_milliseconds(seconds)} ({percent(seconds / step_s)})" if step_s else _milliseconds(seconds)


def _milliseconds(seconds: float | None) -> str:
    return scaled(MILLI, seconds)
