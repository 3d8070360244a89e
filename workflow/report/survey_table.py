"""Make the table of the survey: what each framework does with each network on each machine, by its device and threads.

With several sources it also has, for each line of a machine, how many of its nodes do as much as one node of a faster machine: estimated
between the measured numbers of nodes, or predicted beyond them by the rules of the table `prediction`.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from msgspec import structs

from workflow.report.analysis import Analysis
from workflow.report.bounds import is_anchor
from workflow.report.cell_columns import key_columns, sentence, shared_machine_note, size_columns
from workflow.report.cells import MIN_RUNS, CellResult, Estimate, quantile
from workflow.report.prediction import FARTHEST, LEVEL, Prediction, nodes_that_reach, predict
from workflow.report.prediction_table import SHARES, LineModel, line_models
from workflow.report.table import MILLI, NO_MARKS, NONE, Marks, Reason, Table, scaled, significant, with_interval, words
from workflow.study.series import NOT_SERIES, PROGRAM_STARTED, flat

OF_MACHINE: Final = ("device", "backend", "threads", "dataset_spec", "steps", "epochs", "seed", PROGRAM_STARTED, *NOT_SERIES)
"""Keys in which the cells of two machines that do the same work may differ."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measured cell, or how many nodes of its machine are as fast as one node of `faster`; `nodes` is None if that is not known."""

    cell: CellResult
    marks: Marks
    nodes: Estimate | None
    faster: CellResult | None = None
    basis: str = "measured"
    note: str = ""


def survey(analysis: Analysis) -> Table:
    """Build the table: one row per measured cell, then the estimated ones of the same network and framework."""
    cells = [cell for cell in analysis.cells if cell.num_measured and not is_anchor(cell)]
    measured = [Row(cell=cell, marks=cell.measuring, nodes=Estimate(value=cell.cell.nodes, n=cell.num_measured)) for cell in cells]
    rows = sorted([*measured, *_estimates(analysis, cells)], key=lambda row: (row.cell.cell.model, row.cell.cell.framework))
    cells = [row.cell for row in rows]
    batch, _, per_node = size_columns(cells)
    columns = [
        *key_columns(analysis, cells),
        words("ran_on", "Ran on", [_each(cell, "device") for cell in cells]),
        words("threads_per_process", "Threads used", [_each(cell, "threads_per_rank") for cell in cells], number=True),
        batch,
        *with_interval("nodes", "Nodes", _number, [row.nodes for row in rows], [row.marks if row.faster else NO_MARKS for row in rows]),
        per_node,
        *with_interval("step_p50_s", "Step p50 [ms]", partial(scaled, MILLI), [None if row.faster else row.cell.step_s for row in rows]),
        *with_interval(
            "rate_per_s",
            analysis.rate_words.capitalize(),
            partial(significant, digits=4),
            [(row.faster or row.cell).rate_per_s for row in rows],
            [NO_MARKS if row.faster else row.marks for row in rows],
        ),
        words("basis", "Basis", [row.basis for row in rows]),
        words("equal_to", "As fast as", [_faster_words(row.faster) for row in rows]),
        words("note", "Note", [row.note if row.nodes else Reason(row.note) for row in rows], wrap=True),
    ]
    return Table(
        name="survey",
        title="Survey of frameworks, networks and machines",
        caption=sentence(
            "Step: median, and rate of all processes together: geometric means over runs, with an interval from 3 runs on. Ran on, threads "
            "used: of each process. Interpolated, predicted: estimated, not measured: so many nodes do what one node of another directory "
            "does in the same time, with the same batch per process. [low, high]: 95 %, or 90 % where predicted",
            analysis.shared,
        ),
        columns=tuple(columns),
        empty="No run was measured.",
        reasons=analysis.reasons,
    )


def _estimates(analysis: Analysis, cells: Sequence[CellResult]) -> Iterator[Row]:
    """Yield for each line and each faster node of another source that does the same work how many nodes of the line are as fast."""
    if len(analysis.sources) < 2:
        return
    largest: dict[str, dict[str, CellResult]] = defaultdict(dict)
    for cell in cells:
        others = largest[_work(cell)]
        if cell.cell.nodes == 1 and (cell.source not in others or cell.num_processes > others[cell.source].num_processes):
            others[cell.source] = cell
    for model in line_models(analysis):
        weak = model.comparison.cell
        if model.line[2] == "strong" or not model.points:
            continue
        for faster in largest[_work(weak)].values():
            rate = faster.rate_per_s
            slower = rate is None or (model.points[0].nodes == 1 and rate.value <= model.points[0].rate)
            if faster.source != weak.source and not slower:
                yield _estimate(model, faster, is_share=bool(shared_machine_note(analysis, faster.source)))


def _work(cell: CellResult) -> str:
    """Return what two machines must have in common for their rates to be of the same work."""
    keys = {key: value for key, value in flat(cell.cell.all_keys()).items() if key.partition(".")[0] not in OF_MACHINE}
    return json.dumps([cell.unit, cell.cell.batch_size, keys], sort_keys=True, default=str)


def _estimate(model: LineModel, faster: CellResult, *, is_share: bool) -> Row:
    """Return how many nodes of a line are as fast as the node `faster`, or why that is not known."""
    points, rate = model.points, faster.rate_per_s
    row = Row(cell=model.comparison.cell, marks=model.marks, nodes=None, faster=faster)
    if rate is None or rate.value < points[0].rate:
        return replace(row, basis="refused", note=f"fewer than {points[0].nodes} nodes, of which none was measured")
    within = rate.value <= max(point.rate for point in points)
    nodes = nodes_that_reach(points, rate.value)
    why = SHARES if is_share or model.why == SHARES else None if within else model.why
    if why or nodes is None:
        return replace(row, basis="refused", note=why or f"more than {FARTHEST} times the {model.largest} nodes that were measured")
    found = Estimate(value=nodes, n=rate.n)
    row = replace(row, nodes=found, basis="interpolated" if within else "predicted")
    if rate.error is None or model.few_runs:
        return replace(row, note=f"no interval: a cell has fewer than {MIN_RUNS} runs")
    half = quantile(rate.freedom) * math.hypot(rate.error, max(point.error for point in points))
    predicted = None if within else predict(points, max(math.ceil(nodes), model.largest + 1))
    if isinstance(predicted, Prediction):
        half = math.hypot(math.log(predicted.high / predicted.rate), quantile(rate.freedom, LEVEL) * rate.error)
    low, high = (nodes_that_reach(points, rate.value * math.exp(sign * half)) for sign in (-1, 1))
    return replace(
        row, nodes=structs.replace(found, low=low, high=high), note="its interval ends beyond what is predicted" if high is None else ""
    )


def _each(cell: CellResult, name: str) -> str:
    return ", ".join(sorted(map(str, cell.distinct[name]))) or NONE


def _number(nodes: float | None) -> str:
    """Format a number of nodes: `2` is measured, `2.00` estimated."""
    return str(nodes) if isinstance(nodes, int) else significant(nodes)


def _faster_words(faster: CellResult | None) -> str | None:
    return None if faster is None else f"1 node \N{MULTIPLICATION SIGN} {faster.cell.gpus_per_node} of {faster.source}"
