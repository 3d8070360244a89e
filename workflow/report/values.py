"""Tables as values for programs: what their CSV has, with the marks of each value beside it."""

from __future__ import annotations

from typing import Any

from workflow.report.analysis import Analysis
from workflow.report.cells import MARKS
from workflow.report.table import Table
from workflow.report.tables import baseline_text, speedup


def speedup_values(analysis: Analysis) -> dict[str, Any]:
    """JSON-able. A value that was not measured is null, or the reason; `marks` says what a reader has to know of a number."""
    table = speedup(analysis)
    return {
        "study": analysis.study,
        "baseline": baseline_text(analysis),
        "runs": analysis.summary.num_runs,
        "ends": dict(analysis.summary.ends),
        "speedup": _rows(table),
        "marks": _marks(table),
    }


def table_values(table: Table) -> dict[str, Any]:
    """Any table, JSON-able."""
    return {"table": table.name, "rows": _rows(table), "marks": _marks(table)}


def _rows(table: Table) -> list[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    rows = []
    for row in table.rows:
        marks = {key: sorted(value.marks) for key, value in zip(keys, row, strict=True) if value.marks}
        rows.append({**{key: value.raw for key, value in zip(keys, row, strict=True)}, "marks": marks})
    return rows


def _marks(table: Table) -> dict[str, str]:
    used = {mark for row in table.rows for value in row for mark in value.marks}
    return {mark: sentence for mark, sentence in MARKS.items() if mark in used}
