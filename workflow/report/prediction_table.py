"""Predict the lines of a study: table `prediction`, the continuation of its plots, and the sentence of the page."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from workflow.report.analysis import Analysis
from workflow.report.bounds import is_anchor
from workflow.report.cells import MEASURING, MIN_RUNS, CellResult, Estimate, batch_text, mixed_marks_of
from workflow.report.prediction import FARTHEST, LEVEL, NODES, RATES, Point, Prediction, merged, predict, why_no_model
from workflow.report.shared_columns import key_columns, line_label, sentence, shared_machine_note
from workflow.report.speedup import BATCH, Comparison, Line
from workflow.report.table_type import (
    NO_MARKS,
    Marks,
    Reason,
    Table,
    numbers,
    percent,
    range_text,
    significant,
    whole,
    with_interval,
    words,
)

HOUR_S: Final = 3600.0
MILLION: Final = 1_000_000
MAX_SENTENCES: Final = 3
STRONG: Final = (
    "strong scaling: with a fixed global batch each process gets a smaller one, and no measured size shows how fast it computes that; "
    "only weak scaling is predicted"
)
INFERENCE: Final = "inference: processes exchange nothing, and the published series that the interval is made of are of training"
SHARES: Final = "nodes are shares of one machine, so nobody can have more of them, and no network is between them"


@dataclass(frozen=True, kw_only=True)
class LineModel:
    """What a line of the study is predicted from: its points with `per_node` processes on each node, or `why` there is nothing."""

    line: Line
    comparison: Comparison
    """The largest measured one."""
    per_node: int
    points: tuple[Point, ...]
    marks: Marks
    few_runs: bool
    """True if nobody knows of a point how its runs vary."""
    why: str | None

    @property
    def largest(self) -> int:
        return self.points[-1].nodes if self.points else 0

    def predict(self, nodes: int) -> Prediction | str:
        return self.why or predict(self.points, nodes)


def line_models(analysis: Analysis) -> Iterator[LineModel]:
    """Yield the model of each line with a measured cell that trains something of use."""
    of_shares = {source.label: SHARES if shared_machine_note(analysis, source.label) else None for source in analysis.sources}
    for line, comparisons in analysis.lines.items():
        kind, batch = line[2:]
        measured = [one for one in comparisons if _is_possible(one.cell) and one.cell.size(BATCH[kind]) == batch]
        if measured and not is_anchor(measured[0].cell):
            yield _line_model(measured, line, of_shares[line[0]])


def _is_possible(cell: CellResult) -> bool:
    """Return True if a cell has a rate that a machine may have."""
    return cell.rate_per_s is not None and RATES[0] <= cell.rate_per_s.value <= RATES[1] and cell.cell.nodes <= NODES


def _line_model(measured: Sequence[Comparison], line: Line, why: str | None) -> LineModel:
    kind = line[2]
    by_node: dict[int, list[CellResult]] = {}
    for one in measured:
        by_node.setdefault(one.cell.cell.gpus_per_node, []).append(one.cell)
    points = {per_node: merged(map(_point, cells)) for per_node, cells in by_node.items()}
    per_node = max(points, key=lambda size: (why_no_model(points[size]) is None, points[size][-1].nodes * size, size))
    cells = by_node[per_node]
    mode = {one.cell.cell.mode for one in measured}
    differ = mixed_marks_of({name: frozenset().union(*(cell.distinct[name] for cell in cells)) for name in cells[0].distinct}) & {
        "hardware"
    }
    why = why or (STRONG if kind == "strong" else INFERENCE if mode == {"infer"} else why_no_model(points[per_node]))
    return LineModel(
        comparison=max(measured, key=lambda one: (one.cell.num_processes, one.cell.cell.nodes)),
        line=line,
        per_node=per_node,
        points=points[per_node],
        marks=frozenset().union(*(cell.marks for cell in cells)).intersection(MEASURING),
        few_runs=any(cell.num_measured < MIN_RUNS for cell in cells),
        why=why or ("the measured runs had different hardware" if differ else None),
    )


def _point(cell: CellResult) -> Point:
    rate = cell.rate_per_s
    if rate is None:
        raise ValueError(f"{cell.cell_id} was not measured")
    return Point(cell.cell.nodes, rate.value, rate.error or 0.0)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A predicted size of a line, or why there is none."""

    model: LineModel
    processes: int | None
    found: Prediction | str

    @property
    def prediction(self) -> Prediction | None:
        return self.found if isinstance(self.found, Prediction) else None

    @property
    def rate(self) -> Estimate | None:
        """Return the rate with its prediction interval; it is of no runs, and `n` says nothing."""
        one = self.prediction
        return None if one is None else Estimate(value=one.rate, low=one.low, high=one.high, n=one.nodes)

    @property
    def efficiency(self) -> Estimate | None:
        """Return the efficiency against the line's baseline; None without one that was measured."""
        base, one = self.model.comparison.partner, self.rate
        if one is None or self.processes is None or base is None or base.rate_per_s is None:
            return None
        return one.scaled(base.num_processes / base.rate_per_s.value / self.processes)


def rows_of(models: Iterable[LineModel], sizes: Sequence[int] = ()) -> Iterator[Row]:
    """Yield a row for each of `sizes`, numbers of processes; without any, for each doubling up to FARTHEST times the largest."""
    for model in models:
        if model.why is not None:
            yield Row(model=model, processes=None, found=model.why)
            continue
        for processes in sizes or [factor * model.largest * model.per_node for factor in (2, FARTHEST)]:
            nodes, rest = divmod(processes, model.per_node)
            whole = f"{processes} are no whole nodes of {model.per_node}"
            yield Row(model=model, processes=processes, found=whole if rest else model.predict(nodes))


def prediction(analysis: Analysis, sizes: Sequence[int] = (), samples: float = MILLION) -> Table:
    """Build the table of what more nodes would bring: rate, efficiency and hours for so many `samples`, each with its interval."""
    rows = list(rows_of(line_models(analysis), sizes))
    cells = [row.model.comparison.cell for row in rows]
    found, marks = [row.prediction for row in rows], [row.model.marks if row.prediction else NO_MARKS for row in rows]
    unit = analysis.units[0] if len(analysis.units) == 1 else "samples or tokens"
    work = samples / HOUR_S
    hours = [one and Estimate(value=work / one.rate, low=work / one.high, high=work / one.low, n=one.nodes) for one in found]
    process_hours = [each and each.scaled(row.processes or 0) for row, each in zip(rows, hours, strict=True)]
    columns = [
        *key_columns(analysis, cells),
        words("batch", "Batch", [batch_text(*row.model.line[2:]) for row in rows], folds=True),
        numbers("processes", f"{analysis.processes[0].upper()}{analysis.processes[1:]}", whole, [row.processes for row in rows]),
        numbers("nodes", "Nodes", whole, [one and one.nodes for one in found]),
        *with_interval("rate_per_s", analysis.rate_words.capitalize(), significant, [row.rate for row in rows], marks),
        *with_interval("efficiency", "Efficiency", percent, [row.efficiency for row in rows]),
        *with_interval("hours", "Hours", significant, hours),
        *with_interval("process_hours", {"GPU": "GPU hours"}.get(analysis.process_name, "Process hours"), significant, process_hours),
        numbers("covered", "Held", percent, [one and one.covered for one in found]),
        words("measured", "From nodes", [_measured(row.model) for row in rows]),
        words("note", "Note", [_note(row) for row in rows], wrap=True),
    ]
    return Table(
        name="prediction",
        title="What more nodes would bring",
        caption=sentence(
            f"Predicted from the measured nodes by t(n) = c + b (1 - 1/n). [low, high]: {100 * LEVEL:.0f} % prediction interval, made of "
            "predictions of published series whose truth is known, and of the variation of the runs. Held: the share of these true "
            f"values that such an interval held, each document by the others. Hours: of {samples:,.15g} {unit}",
            analysis.shared,
        ),
        columns=tuple(columns),
        empty="No run was measured.",
    )


def prediction_words(analysis: Analysis) -> list[str]:
    """Describe for the first lines what twice the nodes would bring, and how often such an interval was right."""
    return list(islice(_words(analysis), MAX_SENTENCES))


def _words(analysis: Analysis) -> Iterator[str]:
    for model in line_models(analysis):
        for row in rows_of([model]):
            one, efficiency = row.prediction, row.efficiency
            if one is not None and one.factor <= 2:
                reach = range_text(significant, row.rate)
                share = f", {range_text(percent, efficiency)} efficiency" if efficiency else ""
                yield (
                    f"{line_label(analysis, model.comparison, model.line)} on {row.processes} {analysis.processes} would reach {reach} "
                    f"{model.comparison.cell.unit}/s{share}. In the published series such an interval held {percent(one.covered)} of the "
                    "true values."
                )


def _measured(model: LineModel) -> str:
    return f"{', '.join(str(point.nodes) for point in model.points)} \N{MULTIPLICATION SIGN} {model.per_node}"


def _note(row: Row) -> str:
    reason = row.found if isinstance(row.found, str) else ""
    runs = f"a point with fewer than {MIN_RUNS} runs adds nothing to the interval" if row.model.few_runs and not reason else ""
    return Reason(reason) if reason else runs
