"""Print tables on a terminal: the speed-up, which `make demo` and `slipway tables` print last, and any that is asked for by name."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from base.sanitize import printable
from base.tabular import tabulated, wrapped
from workflow.report.analysis import Analysis
from workflow.report.formats import shown
from workflow.report.shared_columns import not_compared, shared_machine_note
from workflow.report.study_tables import against_text, baseline_text, speedup
from workflow.report.table_type import MAX_ROWS, Table, estimates, raised

BRACKETS: Final = "[low, high] and \N{PLUS-MINUS SIGN}: 95 % confidence interval over runs"


def print_speedup(analysis: Analysis, page: Path | None = None, console: Console | None = None) -> int:
    """Print the speed-up table, its marks, how many rows failed and where `page` is; return the number of failed rows."""
    console = console or Console(soft_wrap=True)
    table = _with_rates(speedup(analysis), analysis)
    put = partial(_put, console)
    put(f"{analysis.study}: speed-up (efficiency) relative to {baseline_text(analysis)}")
    cells = _print_rows(console, table)
    if not table.num_rows:
        put(f"{analysis.study}: no cells")
    for words in filter(None, (against_text(analysis), not_compared(analysis.frame), shared_machine_note(analysis))):
        put(f"{words}.", "dim")
    _print_footnotes(console, table)
    if any("[" in text or "\N{PLUS-MINUS SIGN}" in text for row in cells for text in row):
        put(f" {BRACKETS}", "dim")
    summary = analysis.summary
    put(summary.closing_line(), "bold red" if summary.failed_rows else "bold")
    if page is not None:
        console.print(Text(printable(f"report: {page}")), soft_wrap=True)
    return summary.failed_rows


def _with_rates(table: Table, analysis: Analysis) -> Table:
    """Add the rate of each row if every row has one size only: then no speed-up tells them apart."""
    lines = list(analysis.lines.values())
    if any(len(line) > 1 for line in lines):
        return table
    rates = [line[0].cell.rate_per_s for line in lines]
    return replace(table, columns=(*table.columns, estimates("rate", analysis.rate_words.capitalize(), rates)))


def print_table(table: Table) -> None:
    """Print title, rows, caption and marks."""
    console = Console(soft_wrap=True)
    _put(console, table.title)
    if not _print_rows(console, table):
        _put(console, table.empty)
        return
    _put(console, table.caption, "dim")
    _print_footnotes(console, table)


def _print_rows(console: Console, table: Table) -> list[list[str]]:
    columns, rows, _ = shown(table, max(table.num_rows, MAX_ROWS + 1))
    letters = table.letters
    narrow = [index for index, column in enumerate(columns) if column.key != "hardware"]  # its source names it
    cells = [
        [row[index].text.replace("\n", " / ") + raised(sorted(letters[mark] for mark in row[index].marks)) for index in narrow]
        for row in rows
    ]
    if not rows:
        return []
    titles = [columns[index].title for index in narrow]
    head, lines = tabulated(titles, cells, _width(console))
    muted = sorted({row[index].text for row in rows for index in narrow if row[index].is_reason and row[index].text})
    for line in head:
        console.print(Text(line, style="bold"), soft_wrap=True)
    for line in lines:
        text = Text(line)
        text.highlight_words(muted, style="red")
        console.print(text, soft_wrap=True)
    if not head:
        widest = len(max((line for part in tabulated(titles, cells) for line in part), key=len))
        _put(console, f"Each row is one line in {widest} columns: a wider terminal, or the same command with `| less -S` behind it.", "dim")
    return cells


def _print_footnotes(console: Console, table: Table) -> None:
    for letter, mark, sentence in table.footnotes():
        _put(console, f" {raised([letter])} {mark}: {sentence}", "dim")


def _put(console: Console, text: str, style: str = "") -> None:
    width = _width(console)
    for part in [text] if width is None else wrapped(text, width):
        console.print(Text(part, style=style), soft_wrap=True)


def _width(console: Console) -> int | None:
    return console.width if console.is_terminal else None
