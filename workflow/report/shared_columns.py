"""Make what tables and page share: the columns that tell cells apart, words for shapes and captions, links to runs and files."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import polars as pl

from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED, CellResult, Shape, batch_text, detail_title, series_words
from workflow.report.speedup import Comparison, Line
from workflow.report.table_type import MAX_ROWS, NONE, Column, Table, words
from workflow.run.record.rate import NOT_COMPARED
from workflow.study.cell import SIZES

SEPARATOR: Final = " \N{MIDDLE DOT} "


def key_columns(analysis: Analysis, cells: Sequence[CellResult]) -> list[Column]:
    """Make columns of the model, every other key that differs in the study, and the source if there are several; one row per cell."""
    texts = [analysis.key_texts[cell.source, cell.cell_id] for cell in cells]
    columns = [
        Column(key=name, title=detail_title(name).capitalize(), values=[row[index] for row in texts], number=False, folds=True)
        for index, name in enumerate(analysis.key_names)
    ]
    if len(analysis.sources) > 1:
        hardware = [", ".join(sorted(cell.distinct["hardware"])) or NONE for cell in cells]
        columns += [
            words("source", "Source", [cell.source for cell in cells], folds=True),
            words("hardware", "Hardware", hardware, wrap=True, folds=True),
        ]
    return columns


SIZE_TITLES: Final = {"batch_size": "Batch", "nodes": "Nodes", "gpus_per_node": "Per node"}


def size_columns(cells: Sequence[CellResult], names: Iterable[str] = SIZE_TITLES) -> list[Column]:
    """Make columns of the sizes of the cells."""
    return [Column(key=name, title=SIZE_TITLES[name], values=[getattr(cell.cell, name) for cell in cells], folds=True) for name in names]


def rows_of(analysis: Analysis, rows: Iterable[Mapping[str, Any]]) -> tuple[list[CellResult], list[Mapping[str, Any]]]:
    """Return the cells that have one of `rows`, in the order of the study, and the row of each. A row names its source and cell."""
    known = {(row["source"], row["cell_id"]): row for row in rows}
    found = [cell for cell in analysis.cells if (cell.source, cell.cell_id) in known]
    return found, [known[cell.source, cell.cell_id] for cell in found]


def cell_table(  # noqa: PLR0913 - what a table says
    analysis: Analysis,
    cells: Sequence[CellResult],
    columns: Iterable[Column],
    *,
    name: str,
    title: str,
    caption: Iterable[str],
    sizes: Iterable[str] = SIZE_TITLES,
    empty: str = "No run was measured.",
) -> Table:
    """Make a table with a row for each of `cells`: what tells them apart, then `columns`, whose numbers lead to the runs of the cell."""
    every, stated = _stated([*key_columns(analysis, cells), *size_columns(cells, sizes), *columns])
    text = sentence(*caption, stated, analysis.shared)
    return Table(name=name, title=title, caption=text, columns=linked(analysis, every, cells), empty=empty)


STATED: Final = ("gpus_per_node", "allocations", "node_sets", "input_wait_ratio")
"""Columns that the caption states where all rows have one value: with them a table is wider than the page."""


def _stated(columns: Sequence[Column]) -> tuple[list[Column], str]:
    """Mark the columns of STATED that have one value in all rows; return them all, and the sentence that has these values."""
    found, phrases = [], []
    for column in columns:
        values = {value for value in column.values if value} if column.key in STATED and len(column.values) > 1 else set()
        texts = {column.show(value) for value in values}
        found.append(replace(column, stated=len(texts) == 1) if column.key in STATED else column)
        phrases += [f"{column.title.lower()} {text}" for text in texts if len(texts) == 1]
    return found, f"In all rows: {', '.join(phrases)}" if phrases else ""


def several_shapes(shapes: Iterable[Shape]) -> frozenset[int]:
    """Return the numbers of processes that several of the shapes have."""
    return frozenset(processes for processes, count in Counter(shape[0] for shape in shapes).items() if count > 1)


def shape_key(shape: Shape, several: Collection[int]) -> str:
    """Return `processes_4`; with the nodes if that number is one of `several`."""
    return f"processes_{shape[0]}" + (f"_on_{shape[1]}_nodes" if shape[0] in several else "")


def shape_title(shape: Shape, several: Collection[int], analysis: Analysis) -> str:
    """Return `4 GPUs`; with the nodes if that number is one of `several`."""
    processes, nodes, per_node = shape
    word = analysis.processes if processes > 1 else analysis.process_name
    return f"{processes} {word}" + (f" ({nodes}\N{MULTIPLICATION SIGN}{per_node})" if processes in several else "")


def shape_words(analysis: Analysis, cell: CellResult) -> str:
    """Format a shape, such as `1 node × 2 processes`."""
    _, nodes, per_node = cell.shape
    each = f"{per_node} {analysis.process_name if per_node == 1 else analysis.processes}"
    return f"{nodes} {'node' if nodes == 1 else 'nodes'} \N{MULTIPLICATION SIGN} {each}"


def counted_shape(analysis: Analysis, cell: CellResult) -> str:
    """Format the processes of a cell, such as `4 processes`; with its nodes if several shapes have that number."""
    return shape_title(cell.shape, several_shapes(analysis.shapes), analysis)


def line_label(analysis: Analysis, comparison: Comparison, line: Line | None = None, *, with_model: bool = True) -> str:
    """Format a label, such as `resnet18 · 32 each`; `line`: where the comparison stands on another than its own."""
    names = analysis.label_names if with_model else analysis.label_names[1:]
    words = [*series_words(comparison.cell, names), batch_text(*(line or comparison.line)[2:])]
    return printable(SEPARATOR.join([*words, comparison.cell.source] if len(analysis.sources) > 1 else words))


def cell_label(analysis: Analysis, cell: CellResult) -> str:
    """Format a label that tells a cell from all others of the study, such as `lenet · batch 32 · 2×1`."""
    shape = f"{cell.cell.nodes}\N{MULTIPLICATION SIGN}{cell.cell.gpus_per_node}"
    source = [cell.source] if len(analysis.sources) > 1 else []
    return printable(SEPARATOR.join([*series_words(cell, analysis.cell_names), f"batch {cell.cell.batch_size}", shape, *source]))


def shared_machine_note(analysis: Analysis, source: str | None = None) -> str:
    """Explain what a node is if nodes are parts of one machine, in all of the study or in one source of it; else empty."""
    frame = analysis.frame if source is None else analysis.frame.filter(pl.col("source") == source)
    parts = max((cell.cell.nodes for cell in analysis.cells if source in (None, cell.source)), default=1)
    schedulers = set(frame["scheduler"].drop_nulls().unique().to_list())
    if schedulers != {"local"} or parts == 1:
        return ""
    return f"Nodes are shares of one machine, not machines: its cores in {parts} parts, of which 1 node has one and {parts} nodes have all"


def not_compared(frame: pl.DataFrame) -> str:
    """Explain for how many runs in `frame` nobody compared the ranks; empty where there are none."""
    runs = frame.filter(MEASURED).select("warnings")
    if not (count := runs.filter(pl.col("warnings").list.contains(NOT_COMPARED)).height):
        return ""
    return (
        f"{count} of {runs.height} runs have no checksum of their parameters, so nobody knows whether their ranks trained one network "
        "together"
    )


def sentence(*parts: str) -> str:
    """Join the parts that say something, each with its full stop."""
    return " ".join(f"{part}." for part in parts if part)


# Links of the page: names of places in it, and addresses of the files beside it.
#
# Names and addresses hold ASCII letters, digits and `_.-~%/` alone, whatever a cell, a run or a directory is called: an address cannot
# begin with a scheme, end its attribute, or mean something else than it says.


def cell_anchor(analysis: Analysis, source: str, cell_id: str) -> str:
    """Return the name of the place of a cell's runs; with several sources it has the number of its source."""
    if len(analysis.sources) == 1:
        return f"cell-{quote(cell_id, safe='', errors='replace')}"
    number = next(number for number, one in enumerate(analysis.sources, 1) if one.label == source)
    return f"cell-{number}-{quote(cell_id, safe='', errors='replace')}"


def cell_links(analysis: Analysis, cells: Sequence[CellResult | None]) -> list[str]:
    """Return the anchor of each cell, "" for None."""
    return ["" if cell is None else cell_anchor(analysis, cell.source, cell.cell_id) for cell in cells[:MAX_ROWS]]


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
