"""The speed-up table on a terminal: what `make demo` and `slipway tables` print last."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from workflow.report.analysis import Analysis
from workflow.report.formats import shown
from workflow.report.table import raised
from workflow.report.tables import baseline_text, speedup

if TYPE_CHECKING:
    from rich.console import Console

WIDE: Final = 200  # a log has no edge to wrap at


def print_speedup(analysis: Analysis, page: Path | None = None, console: Console | None = None) -> int:
    """Print the speed-up table, its marks, how many rows failed and where `page` lies. Returns the number of failed rows."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = console or Console(width=None if sys.stdout.isatty() else WIDE)
    table = speedup(analysis)
    columns, rows = shown(table)
    letters = table.letters()
    drawn = RichTable(title=Text(f"{analysis.study}: speed-up (efficiency) relative to {baseline_text(analysis)}"), title_justify="left")
    narrow = [index for index, column in enumerate(columns) if column.key != "hardware"]  # its source names it
    for column in (columns[index] for index in narrow):
        drawn.add_column(Text(column.title), justify="right" if column.number else "left", overflow="fold")
    for row in ([row[index] for index in narrow] for row in rows):
        drawn.add_row(
            *[Text(value.text + raised(sorted(letters[mark] for mark in value.marks)), style="red" if value.muted else "") for value in row]
        )
    if rows:
        console.print(drawn)
    else:
        console.print(Text(f"{analysis.study}: no cells"))
    for letter, sentence in table.footnotes():
        console.print(Text(f" {raised([letter])} {sentence}", style="dim"))
    summary = analysis.summary
    console.print(Text(summary.closing_line(), style="bold red" if summary.failed_rows else "bold"))
    if page is not None:
        console.print(Text(f"report: {page}"), soft_wrap=True)
    return summary.failed_rows
