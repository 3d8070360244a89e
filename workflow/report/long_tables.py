"""The tables with one row per thing: every comparison, and every run that gave no number."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, Final

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED
from workflow.report.derive import Comparison
from workflow.report.digits import NONE, percent, significant
from workflow.report.statistics import Estimate
from workflow.report.table import Column, Table, Value, number, text
from workflow.run.record.columns import MISSING, UNREADABLE
from workflow.study.cell import ARGS, SIZES, UNITS, WORDS, Cell, plain_text

LONGEST: Final = 400
LAST_LINES: Final = 3
RUN_AGAIN: Final = (
    "Results that failed run again with `slipway run STUDY --retry failed`, prevented and missing runs with the same command as before. "
    "A run that ended ok does not run again."
)
KEYS: Final = (*(field.name for field in fields(Cell) if field.name in WORDS and field.name != "device"), *SIZES)
SCALING: Final = (
    *(
        "source",
        "cell",
        *KEYS,
        "processes",
        "hardware",
        "scaling",
        "primary",
        "runs",
        "allocations",
        "node_sets",
        "step_s",
        "step_low_s",
        "step_high_s",
        "samples_per_s",
        "samples_per_s_low",
        "samples_per_s_high",
        "tokens_per_s",
        "tokens_per_s_low",
        "tokens_per_s_high",
        "window_s",
    ),
    *("partner", "speedup", "speedup_low", "speedup_high", "efficiency", "efficiency_low", "efficiency_high", "interval", "reason"),
)


def failures(analysis: Analysis) -> Table:
    """Table o: every run of the study without a measurement, with the reason. Runs not yet begun stand at the end."""
    several = len(analysis.sources) > 1
    heads = [("source", "Source")] if several else []
    heads += [
        ("run", "Run"),
        ("attempt", "Attempt"),
        ("end", "End"),
        ("reason", "Reason"),
        ("rank", "Rank"),
        ("host", "Host"),
        ("exit", "Exit"),
    ]
    heads += [("last_lines", "Last lines"), ("files", "Files")]
    numbers, sentences = ("attempt", "rank"), ("reason", "last_lines", "files")
    columns = [Column(key=key, title=title, number=key in numbers, wrap=key in sentences) for key, title in heads]
    failed = analysis.frame.filter(~MEASURED).sort(pl.col("status") == MISSING, maintain_order=True)
    rows = [_failure(row) for row in failed.iter_rows(named=True)]
    return Table(
        name="failures",
        title="Runs without a measurement",
        caption=RUN_AGAIN,
        columns=tuple(columns),
        rows=tuple(
            (text(row["source"]), *values) if several else values for row, values in zip(failed.iter_rows(named=True), rows, strict=True)
        ),
        empty="Every run of the study was measured.",
    )


def reason_of(row: Mapping[str, Any]) -> str | None:
    """Why a row of records.parquet is no measurement, in words."""
    if row["status"] == "ok" and row["steps_source"] == "none":
        return "ended ok; its program tells of no steps (events: none), so that there are wall times only"
    untold = ": its program told no tokens" if row["unit"] == "tokens" and row["tokens"] is None else ""
    return row["status_reason"] or {MISSING: "not run yet", "ok": f"ended ok, but no rate could be measured{untold}"}.get(row["status"])


def _failure(row: Mapping[str, Any]) -> tuple[Value, ...]:
    files = (
        f"runs/{row['run_id']}/attempts/{row['attempt']}/"
        if row["attempt"]
        else f"runs/{row['record']}"
        if row["status"] == UNREADABLE
        else None
    )
    end = row["failed_signal"] or row["failed_exit_code"]
    return (
        text(row["run_id"]),
        number(_whole, row["attempt"]),
        text(row["status"]),
        text(short(reason_of(row))),
        number(_whole, row["failed_rank"]),
        text(short(row["failed_host"])),
        text("" if end is None else end),
        text(short(last_lines(row))),
        text(files),
    )


def last_lines(row: Mapping[str, Any]) -> str:
    """The last of what the rank that failed wrote; a record may also hold its lines as a JSON list."""
    told = row["failed_last_lines"] or ""
    lines = told.splitlines()
    if told.startswith("["):
        with suppress(ValueError):
            lines = [str(line) for line in json.loads(told)]
    return "\n".join(lines[-LAST_LINES:])


def short(value: str | None) -> str | None:
    """What programs wrote, but not too long; the beginning says what, so it stays."""
    return value if value is None or len(value) <= LONGEST else value[:LONGEST] + "\N{HORIZONTAL ELLIPSIS}"


def scaling(analysis: Analysis) -> Table:
    """Every comparison, weak and strong, with its partner: what the other tables are made from, for programs to read."""
    words = {*WORDS, "source", "cell", "hardware", "scaling", "partner", "interval", "reason"}
    arguments = sorted({name for comparison in analysis.comparisons for name in comparison.cell.keys.get("args") or ()})
    columns = [Column(key=name, title=name.replace("_", " "), number=name not in words) for name in SCALING]
    return Table(
        name="scaling",
        title="Every comparison",
        caption="Weak: the baseline has the same batch per process. Strong: the same global batch. low, high: 95 % confidence interval; "
        "interval: how that of the ratio was made, from differences within each repeat (paired) or by Welch.",
        columns=(*columns, *(Column(key=f"{ARGS}{name}", title=f"{ARGS}{name}") for name in arguments)),
        rows=tuple((*_comparison(one), *_arguments(one.cell.keys, arguments)) for one in analysis.comparisons),
    )


def _arguments(keys: Mapping[str, Any], names: Sequence[str]) -> list[Value]:
    """Those of a cell's program; nothing where it has not all of them."""
    args = keys.get("args") or {}
    return [text(plain_text(args[name]) if name in args else None) for name in names]


def _comparison(comparison: Comparison) -> tuple[Value, ...]:
    cell, partner = comparison.cell, comparison.partner
    step = cell.step_s
    return (
        text(cell.source),
        text(cell.cell_id),
        *[text(cell.keys.get(key)) for key in KEYS],
        text(cell.num_processes),
        text(" / ".join(sorted(cell.distinct["hardware"]))),
        text("baseline" if comparison.is_baseline else comparison.scaling if partner else None),
        text(int(comparison.primary)),
        text(cell.num_measured, marks=cell.marks & {"partial"}),
        text(cell.num_allocations),
        text(cell.num_node_sets),
        *_three(step, marks=cell.marks - {"partial"}),
        *[value for unit in UNITS for value in _three(cell.rate_per_s if cell.unit == unit else None, marks=cell.marks - {"partial"})],
        number(significant, cell.means.get("window_s")),
        text(partner.cell_id if partner else None),
        *_three(comparison.speedup, marks=comparison.marks),
        *_three(comparison.efficiency, marks=comparison.marks, as_percent=True),
        text(_interval_method(comparison.speedup)),
        text(comparison.reason),
    )


def _interval_method(ratio: Estimate | None) -> str | None:
    """Return how the interval of a ratio was made; None where it has none."""
    return None if ratio is None or ratio.low is None else "paired" if ratio.paired else "welch"


def _three(estimate: Estimate | None, marks: frozenset[str] = frozenset(), *, as_percent: bool = False) -> tuple[Value, Value, Value]:
    show = percent if as_percent else _four_digits
    value, low, high = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return number(show, value, marks), number(show, low), number(show, high)


def _four_digits(value: float | None) -> str:
    return significant(value, 4)


def _whole(value: int | None) -> str:
    return NONE if value is None else str(value)
