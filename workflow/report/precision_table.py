"""Make the table of precisions and memory layouts: how much faster each is than a base, and the loss that it ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURING, CellResult, Estimate, ratio
from workflow.report.derive import mixed_marks
from workflow.report.framework_tables import NOT_IN_STUDY, marked_words
from workflow.report.keys import cell_links, key_columns, sentence, size_columns
from workflow.report.table import NO_MARKS, Marks, Reason, Table, estimate_text, numbers, significant, words

PRECISION: Final = "precision"
BASE: Final = ("fp32", "nchw")
Kind = tuple[str, str]
"""Precision and layout."""


def precision(analysis: Analysis) -> Table:
    """Build the table with one row for cells that differ in precision and layout alone, and two columns for each of these: the ratio of
    its rate to that of the base, and the final loss."""
    rows = [row for row in _rows(analysis) if len(row) > 1]
    kinds = sorted({kind for row in rows for kind in row}, key=lambda kind: kind != BASE)
    bases = [_base(row) for row in rows]
    first = [row[base] for row, base in zip(rows, bases, strict=True)]
    columns = [column for column in key_columns(analysis, first) if column.key not in ("precision", "layout")]
    columns += [*size_columns(first), words("base", "Base", [" ".join(base) for base in bases])]
    for kind in kinds:
        cells = [row.get(kind) for row in rows]
        found = [_ratio(*pair) for pair in zip(cells, first, strict=True)]
        name, title = "_".join(kind), " ".join(kind)
        losses = [None if cell is None else cell.means["final_loss"] for cell in cells]
        columns.append(marked_words(f"{name}_ratio", title, found, cell_links(analysis, cells)))
        columns.append(numbers(f"{name}_final_loss", f"{title}: loss", significant, losses))
    return Table(
        name=PRECISION,
        title="Precision and layout",
        caption=sentence(
            f"{analysis.rate_words.capitalize()} over those of the base, which is {' '.join(BASE)} where there is such a cell, of the same "
            "processes and batch, with its 95 % confidence interval over runs; loss: of the last step, mean over runs. A precision that is "
            "fast and does not learn is no result",
            analysis.shared,
        )
        if rows
        else "",
        columns=tuple(columns),
        reasons=analysis.reasons,
        empty="The study has no cells that differ in precision or layout alone.",
    )


def _rows(analysis: Analysis) -> list[dict[Kind, CellResult]]:
    rows: dict[tuple[object, ...], dict[Kind, CellResult]] = {}
    alike: dict[str, tuple[tuple[str, str], ...]] = {}
    for cell in analysis.cells:
        if cell.keys_digest not in alike:
            keys: Mapping[str, object] = analysis.flat[cell.source, cell.cell_id]
            alike[cell.keys_digest] = tuple((name, repr(value)) for name, value in keys.items() if name not in ("precision", "layout"))
        row = rows.setdefault((cell.source, cell.shape, cell.cell.batch_size, alike[cell.keys_digest]), {})
        row[cell.cell.precision, cell.cell.layout] = cell
    return list(rows.values())


def _base(row: Mapping[Kind, CellResult]) -> Kind:
    return BASE if BASE in row else next(iter(row))


def _ratio(cell: CellResult | None, base: CellResult) -> tuple[str, Marks]:
    if cell is None:
        return Reason(NOT_IN_STUDY), NO_MARKS
    if cell.rate is None:
        return Reason(cell.reason or ""), cell.marks & {"untimed"}
    if base.rate is None:
        return Reason(f"base {base.reason}"), NO_MARKS
    if cell is base:
        return "1 (base)", cell.marks.intersection(MEASURING)
    found: Estimate = ratio(cell.rate, base.rate)
    marks = (cell.marks | mixed_marks(cell, base)).intersection(MEASURING)
    return estimate_text(found), marks | ({"baseline"} if base.marks.intersection(MEASURING) - marks else NO_MARKS)
