"""Where the numbers of the page lead: names of places in it, and addresses of the files beside it.

Names and addresses hold ASCII letters, digits and `_.-~%/` alone, whatever a cell, a run or a directory is called: an address cannot begin
with a scheme, end its attribute, or mean something else than it says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from workflow.report.analysis import Analysis
from workflow.report.cells import CellResult
from workflow.report.table import MOST_ROWS, Column
from workflow.study.cell import SIZES


def cell_place(analysis: Analysis, source: str, cell_id: str) -> str:
    """The name of the place where the runs of a cell stand; with several sources it has the number of its source."""
    if len(analysis.sources) == 1:
        return f"cell-{quote(cell_id, safe='', errors='replace')}"
    number = next(number for number, one in enumerate(analysis.sources, 1) if one.label == source)
    return f"cell-{number}-{quote(cell_id, safe='', errors='replace')}"


def to_cells(analysis: Analysis, columns: Sequence[Column], cells: Sequence[CellResult]) -> tuple[tuple[str, ...], ...]:
    """`leads` of a table with a row for each of the cells: every number of a row leads to its cell's runs. Its keys lead nowhere."""
    measured = [column.number and column.key not in SIZES for column in columns]
    places = (cell_place(analysis, cell.source, cell.cell_id) for cell in cells[:MOST_ROWS])
    return tuple(tuple(place if leads else "" for leads in measured) for place in places)


def links(analysis: Analysis, page_dir: Path | None) -> Callable[[str, Sequence[str]], str]:
    """A function: the label of a source and names below its results directory -> the address, seen from a page in `page_dir` (None: in the
    first results directory). Relative, so that it holds in a copy too."""
    start = (page_dir or Path(analysis.sources[0].path)).resolve()
    roots: Mapping[str, str] = {source.label: os.path.relpath(source.path, start) for source in analysis.sources}

    def link(source: str, names: Sequence[str]) -> str:
        path = "/".join((roots[source], *names)).removeprefix("./")
        return quote(os.fsencode(path), safe="/")

    return link
