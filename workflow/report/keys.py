"""Columns that every table begins with, the keys that tell its rows apart, and what all rows share, for the caption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED, CellResult, Shape, detail_title
from workflow.report.number_format import NONE
from workflow.report.table import Column, words
from workflow.run.record.rate import NOT_COMPARED


def key_columns(analysis: Analysis, cells: Sequence[CellResult]) -> list[Column]:
    """Make columns of the model, every other key that differs in the study, and the source if there are several; one row per cell."""
    texts = [analysis.key_texts[cell.source, cell.cell_id] for cell in cells]
    columns = [
        Column(key=name, title=detail_title(name).capitalize(), values=[row[index] for row in texts], number=False)
        for index, name in enumerate(analysis.key_names)
    ]
    if len(analysis.sources) > 1:
        hardware = [", ".join(sorted(cell.distinct["hardware"])) or NONE for cell in cells]
        columns += [words("source", "Source", [cell.source for cell in cells]), words("hardware", "Hardware", hardware, wrap=True)]
    return columns


SIZE_TITLES: Final = {"batch_size": "Batch", "nodes": "Nodes", "gpus_per_node": "Per node"}


def size_columns(cells: Sequence[CellResult], names: Iterable[str] = SIZE_TITLES) -> list[Column]:
    """Make columns of the sizes of the cells."""
    return [Column(key=name, title=SIZE_TITLES[name], values=[getattr(cell.cell, name) for cell in cells]) for name in names]


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


def shares(analysis: Analysis) -> str:
    """Explain what a node is if nodes are parts of one machine; else empty."""
    parts = max((cell.cell.nodes for cell in analysis.cells), default=1)
    schedulers = set(analysis.frame["scheduler"].drop_nulls().unique().to_list())
    if schedulers != {"local"} or parts == 1:
        return ""
    return f"Nodes are shares of one machine, not machines: its cores in {parts} parts, of which 1 node has one and {parts} nodes have all"


def not_compared(frame: pl.DataFrame) -> str:
    """Explain for how many runs in `frame` nobody compared the ranks; empty where there are none."""
    runs = frame.filter(MEASURED).select("warnings")
    if not (count := runs.filter(pl.col("warnings").list.contains(NOT_COMPARED)).height):
        return ""
    return f"Of {count} of {runs.height} runs nobody knows whether their ranks trained one network together: no checksum of parameters"


def sentence(*parts: str) -> str:
    """Join the parts that say something, each with its full stop."""
    return " ".join(f"{part}." for part in parts if part)
