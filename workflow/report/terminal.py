"""The speed-up table on a terminal: what `make demo` and `slipway tables` print last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.tabular import tabulated, wrapped
from workflow.report.analysis import Analysis
from workflow.report.formats import shown
from workflow.report.keys import shares
from workflow.report.table import raised
from workflow.report.tables import against_text, baseline_text, speedup

if TYPE_CHECKING:
    from rich.console import Console


BRACKETS: Final = "[low, high] and \N{PLUS-MINUS SIGN}: 95 % confidence interval over runs"


def print_speedup(analysis: Analysis, page: Path | None = None, console: Console | None = None) -> int:
    """Print the speed-up table, its marks, how many rows failed and where `page` lies. Returns the number of failed rows."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console(soft_wrap=True)
    width = console.width if console.is_terminal else None
    table = speedup(analysis)
    columns, rows, _ = shown(table, len(table.rows))
    letters = table.letters()

    def put(text: str, style: str = "") -> None:
        for part in [text] if width is None else wrapped(text, width):
            console.print(Text(part, style=style), soft_wrap=True)

    narrow = [index for index, column in enumerate(columns) if column.key != "hardware"]  # its source names it
    cells = [[row[index].text + raised(sorted(letters[mark] for mark in row[index].marks)) for index in narrow] for row in rows]
    put(f"{analysis.study}: speed-up (efficiency) relative to {baseline_text(analysis)}")
    if rows:
        head, lines = tabulated([columns[index].title for index in narrow], cells, width)
        muted = sorted({row[index].text for row in rows for index in narrow if row[index].muted and row[index].text})
        for line in head:
            console.print(Text(line, style="bold"), soft_wrap=True)
        for line in lines:
            text = Text(line)
            text.highlight_words(muted, style="red")
            console.print(text, soft_wrap=True)
    else:
        put(f"{analysis.study}: no cells")
    for words in filter(None, (against_text(analysis), shares(analysis))):
        put(f"{words}.", "dim")
    for letter, sentence in table.footnotes():
        put(f" {raised([letter])} {sentence}", "dim")
    if any("[" in text or "\N{PLUS-MINUS SIGN}" in text for row in cells for text in row):
        put(f" {BRACKETS}", "dim")
    summary = analysis.summary
    put(summary.closing_line(), "bold red" if summary.failed_rows else "bold")
    if page is not None:
        console.print(Text(f"report: {page}"), soft_wrap=True)
    return summary.failed_rows
