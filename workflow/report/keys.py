"""What every table begins with: the keys that tell its rows apart; and what all rows share, said once in the caption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED, CellResult, Shape, detail_title
from workflow.report.digits import NONE
from workflow.report.table import Column, Value, text
from workflow.run.record.rate import NOT_COMPARED


def key_columns(analysis: Analysis) -> list[Column]:
    """The model, every other key that differs in the study, and the source where there are several."""
    names = analysis.key_names
    columns = [Column(key=name, title=detail_title(name).capitalize(), number=False) for name in names]
    if len(analysis.sources) > 1:
        columns += [Column(key="source", title="Source", number=False), Column(key="hardware", title="Hardware", number=False, wrap=True)]
    return columns


def key_values(analysis: Analysis, cell: CellResult) -> list[Value]:
    """The values of key_columns."""
    values = analysis.key_texts[cell.source, cell.cell_id]
    if len(analysis.sources) > 1:
        return [*values, text(cell.source), text(", ".join(sorted(cell.distinct["hardware"])) or NONE)]
    return values


SIZE_COLUMNS: Final = (
    Column(key="batch_size", title="Batch"),
    Column(key="nodes", title="Nodes"),
    Column(key="gpus_per_node", title="Per node"),
)


def size_values(cell: CellResult) -> list[Value]:
    """The values of SIZE_COLUMNS."""
    return [text(cell.keys[column.key]) for column in SIZE_COLUMNS]


def several_shapes(shapes: Iterable[Shape]) -> frozenset[int]:
    """Return the numbers of processes that stand for several of the shapes."""
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
    """`1 node \N{MULTIPLICATION SIGN} 2 processes`."""
    _, nodes, per_node = cell.shape
    each = f"{per_node} {analysis.process_name if per_node == 1 else analysis.processes}"
    return f"{nodes} {'node' if nodes == 1 else 'nodes'} \N{MULTIPLICATION SIGN} {each}"


def counted_shape(analysis: Analysis, cell: CellResult) -> str:
    """`4 processes`; with its nodes where that number stands for several shapes of the study."""
    return shape_title(cell.shape, several_shapes(analysis.shapes), analysis)


def shares(analysis: Analysis) -> str:
    """What a node is where the nodes are parts of one machine; nothing where each is a machine of its own."""
    parts = max((cell.keys["nodes"] for cell in analysis.cells), default=1)
    schedulers = set(analysis.frame["scheduler"].drop_nulls().unique().to_list())
    if schedulers != {"local"} or parts == 1:
        return ""
    return f"Nodes are shares of one machine, not machines: its cores in {parts} parts, of which 1 node has one and {parts} nodes have all"


def not_compared(frame: pl.DataFrame) -> str:
    """Return what is not known of the runs in `frame` whose ranks nobody compared; nothing where there are none."""
    runs = frame.filter(MEASURED).select("warnings")
    if not (count := runs.filter(pl.col("warnings").list.contains(NOT_COMPARED)).height):
        return ""
    return f"Of {count} of {runs.height} runs nobody knows whether their ranks trained one network together: no checksum of parameters"


def sentence(*parts: str) -> str:
    """The parts that say something, each with its full stop."""
    return " ".join(f"{part}." for part in parts if part)
