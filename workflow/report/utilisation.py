"""Table m: how much of its GPUs a model uses, and the memory that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED, CellResult
from workflow.report.digits import percent, significant
from workflow.report.keys import SIZE_COLUMNS, key_columns, key_values, sentence, size_values
from workflow.report.leads import to_cells
from workflow.report.table import Column, Table, Value, number, text

GIGA: Final = 1e9
TERA: Final = 1e12
GIB: Final = 2**30
OLDER: Final = " (of records of earlier versions with it)"
ALIKE: Final = ("device", "flop_per_unit", "flop_source", "arithmetic", "gpu_models", "peak_flop_per_s", "peak_source")
"""What all runs of a cell have in common, or there is no number."""


def utilisation(analysis: Analysis) -> Table:
    """One row per measured cell."""
    found = {(row["source"], row["cell_id"]): row for row in _cells(analysis.frame).iter_rows(named=True)}
    cells = [(cell, row) for cell in analysis.cells if (row := found.get((cell.source, cell.cell_id))) is not None]
    heads = {"arithmetic": "Precision", "flop_per_unit": "GFLOP per sample", "flop_source": "FLOP told by", "flop_per_s": "TFLOP/s"}
    heads["flop_per_unit"] = f"GFLOP per {' or '.join(unit.removesuffix('s') for unit in analysis.units)}"
    heads |= {"peak_flop_per_s": "Peak TFLOP/s", "mfu": "MFU", "peak_memory_bytes": "Memory [GiB]", "note": "Note"}
    words = ("arithmetic", "flop_source", "note")
    columns = [
        *key_columns(analysis),
        *SIZE_COLUMNS,
        *[Column(key=key, title=title, number=key not in words, wrap=key == "note") for key, title in heads.items()],
    ]
    sources = dict.fromkeys(f"{row['gpu_models']}: {row['peak_source']}" for _, row in cells if row["peak_source"])
    counts = analysis.frame.filter(MEASURED & (pl.col("flop_source") == "model") & (pl.col("mode") != "infer"))
    older = counts["model_first_macs"].null_count() > 0
    why = dict.fromkeys(filter(None, (_why(cell, row) for cell, row in cells)))
    return Table(
        name="utilisation",
        title="Model FLOP utilisation and memory",
        caption=sentence(
            "MFU: FLOP that the model needs for one sample or token, forward and backward, without what is computed again (PaLM, appendix "
            "B) and, of networks of Slipway, without the gradient of what the first layer reads"
            f"{OLDER if older else ''}, times the rate, over the peak of the {analysis.processes}; geometric mean over runs. TFLOP/s: the "
            f"same of one {analysis.process_name}. Peak: dense, of the vendor{'; ' if sources else ''}{'; '.join(sources)}. Memory: the "
            "most of all processes and runs: on GPUs of PyTorch's allocator, on CPUs the resident set",
            f"No MFU where {'; '.join(why)}" if why else "",
            analysis.shared,
        ),
        columns=tuple(columns),
        rows=tuple((*key_values(analysis, cell), *_values(cell, row)) for cell, row in cells),
        leads=to_cells(analysis, columns, [cell for cell, _ in cells]),
        empty="No run was measured.",
    )


def _cells(frame: pl.DataFrame) -> pl.DataFrame:
    """Per measured cell what its runs have in common, null where they differ."""
    return (
        frame.filter(MEASURED & pl.col("cell_id").is_not_null())
        .group_by("source", "cell_id", maintain_order=True)
        .agg(
            *[pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()).alias(name) for name in ALIKE],
            pl.col("mfu").log().mean().exp().alias("mfu"),
            pl.col("peak_memory_bytes").max(),
            pl.any_horizontal(pl.col(name).n_unique() > 1 for name in ALIKE).alias("differ"),
        )
    )


def _values(cell: CellResult, row: Mapping[str, Any]) -> list[Value]:
    rate, flop = cell.rate_per_s, row["flop_per_unit"]
    why = _why(cell, row)
    return [
        *size_values(cell),
        text(row["arithmetic"]),
        number(partial(_in, GIGA), flop),
        text(row["flop_source"]),
        number(partial(_in, TERA), flop * rate.value / cell.num_processes if flop and rate else None),
        number(partial(_in, TERA, digits=4), row["peak_flop_per_s"]),
        number(percent, None if why else row["mfu"], cell.marks & {"impossible"}),
        number(partial(_in, GIB), row["peak_memory_bytes"]),
        text(why, muted=True),
    ]


def _in(unit: float, value: float | None, digits: int = 3) -> str:
    return significant(None if value is None else value / unit, digits)


def _why(cell: CellResult, row: Mapping[str, Any]) -> str | None:
    """Why there is no utilisation; None where there is one."""
    if row["device"] == "cpu":
        return "it ran on CPUs, whose peak is not told"
    if row["differ"]:
        return "the runs of a cell differ in their GPUs, or in what their program tells"
    if row["flop_per_unit"] is None:
        return f"the FLOP of a {cell.unit.removesuffix('s')} are not known: a program tells them by start(flop_per_unit=...)"
    if row["arithmetic"] is None:
        return "the precision of its matrices is not known: a program tells it by start(precision=...)"
    if row["peak_flop_per_s"] is None:
        return f"the peak of {row['gpu_models'] or 'its GPUs'} in {row['arithmetic']} is not known here"
    return None
