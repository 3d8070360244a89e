"""Links of the page: names of places in it, and addresses of the files beside it.

Names and addresses hold ASCII letters, digits and `_.-~%/` alone, whatever a cell, a run or a directory is called: an address cannot begin
with a scheme, end its attribute, or mean something else than it says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from workflow.report.analysis import Analysis
from workflow.report.cells import CellResult
from workflow.report.table import MOST_ROWS, Column
from workflow.study.cell import SIZES


def cell_anchor(analysis: Analysis, source: str, cell_id: str) -> str:
    """Return the name of the place of a cell's runs; with several sources it has the number of its source."""
    if len(analysis.sources) == 1:
        return f"cell-{quote(cell_id, safe='', errors='replace')}"
    number = next(number for number, one in enumerate(analysis.sources, 1) if one.label == source)
    return f"cell-{number}-{quote(cell_id, safe='', errors='replace')}"


def cell_links(analysis: Analysis, cells: Sequence[CellResult | None]) -> list[str]:
    """Return the anchor of each cell, "" for None."""
    return ["" if cell is None else cell_anchor(analysis, cell.source, cell.cell_id) for cell in cells[:MOST_ROWS]]


def linked(analysis: Analysis, columns: Sequence[Column], cells: Sequence[CellResult]) -> tuple[Column, ...]:
    """Link the numbers of a table of cells, but not their sizes, to the runs of the cell."""
    links = cell_links(analysis, cells)
    return tuple(replace(column, links=links) if column.number and column.key not in SIZES else column for column in columns)


def file_links(analysis: Analysis, page_dir: Path | None) -> Callable[[str, Sequence[str]], str]:
    """Return a function from the label of a source and names below its results directory to the address.

    Addresses are relative to `page_dir` (None: the first results directory), so that they hold in a copy too.
    """
    start = (page_dir or Path(analysis.sources[0].path)).resolve()
    roots: Mapping[str, str] = {source.label: os.path.relpath(source.path, start) for source in analysis.sources}

    def link(source: str, names: Sequence[str]) -> str:
        path = "/".join((roots[source], *names)).removeprefix("./")
        return quote(os.fsencode(path), safe="/")

    return link
