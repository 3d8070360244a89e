"""Plots of what happened inside the runs: where a run's time goes, the steps' times, the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from base.errors import RecordError
from base.jsonfile import read_content
from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED, CellResult
from workflow.report.derive import Comparison
from workflow.report.plots import NOTHING, efficiency, legend_columns, line_label, log_scale, overview, throughput
from workflow.report.rendering import HEIGHT, SEPARATOR, WIDTH, finished, label_lines, nothing, titled, wrapped_labels
from workflow.report.style import MUTED, SERIES, STEPS
from workflow.run.record.columns import SHOWN_STEPS
from workflow.run.record.model import NotBelieved
from workflow.run.record.reading import read_record

MOST_BARS: Final = 40
MOST_CURVES: Final = len(SERIES)
BAR: Final = 21
LINE: Final = 14


def budget(analysis: Analysis) -> dict[str, Any]:
    """The steps of a run, stacked, one bar per cell."""
    import altair as alt

    cells = _measured(analysis)
    values = [
        {"cell": label, "step": step, "order": order, "seconds": seconds}
        for label, comparison in cells[:MOST_BARS]
        for order, step in enumerate(SHOWN_STEPS)
        if (seconds := comparison.cell.means[f"{step}_s"])
    ]
    if not values:
        return nothing("Where the time of a run goes", NOTHING)
    order = [label for label, _ in cells[:MOST_BARS]]
    colour = alt.Color(
        "step:N",
        scale=alt.Scale(domain=list(SHOWN_STEPS), range=[STEPS[step] for step in SHOWN_STEPS]),
        legend=alt.Legend(title=None, orient="bottom", columns=6),
    )
    bars = alt.Chart(alt.InlineData(values=values)).mark_bar(height=BAR - 7).encode(
        y=alt.Y("cell:N", sort=order, title=None, axis=alt.Axis(**wrapped_labels(order))),
        x=alt.X("seconds:Q", title="seconds, mean over runs"),
        color=colour,
        order="order:Q",
    )  # fmt: skip
    title = titled("Where the time of a run goes", _of_many("assign comes from the scheduler; the other five are the run", len(cells)))
    return finished(bars.properties(width=WIDTH, height=alt.Step(_bar(order)), title=alt.TitleParams(**title)))


def step_time(analysis: Analysis) -> dict[str, Any]:
    """How even the steps are: per cell the fastest step, the median, p95 and p99, and each run's own median."""
    import altair as alt

    cells = _measured(analysis)[:MOST_BARS]
    if not cells:
        return nothing("Step time", NOTHING)
    order = [label for label, _ in cells]
    spread = [_spread(label, comparison.cell) for label, comparison in cells]
    labels = {(comparison.cell.source, comparison.cell.cell_id): label for label, comparison in cells}
    ok = analysis.frame.filter(MEASURED)
    medians = [
        {"cell": labels[source, cell_id], "run": 1000 * seconds}
        for source, cell_id, seconds in ok.select("source", "cell_id", "step_p50_s").iter_rows()
        if (source, cell_id) in labels
    ]
    medians_ms = [1000 * comparison.cell.step_s.value for _, comparison in cells if comparison.cell.step_s]
    ends = [*medians_ms, *(entry[name] for entry in spread for name in ("min", "p99") if entry[name])]
    wide = max(medians_ms) > 8 * min(medians_ms)
    x_axis = log_scale(ends) if wide else {"scale": alt.Scale(zero=True), "axis": _short_numbers()}
    base = alt.Chart(alt.InlineData(values=spread)).encode(
        y=alt.Y("cell:N", sort=order, title=None, axis=alt.Axis(**wrapped_labels(order)))
    )
    layers = [
        base.mark_rule(color=MUTED, strokeWidth=1.2).encode(x=alt.X("min:Q", title="step, ms", **x_axis), x2="p99:Q"),
        base.mark_bar(height=7, color=SERIES[0], opacity=0.55).encode(x=alt.X("p50:Q"), x2="p95:Q"),
        base.mark_tick(color=SERIES[0], thickness=3, size=15).encode(x=alt.X("p50:Q")),
        alt.Chart(alt.InlineData(values=medians))
        .mark_point(color=SERIES[1], size=26, strokeWidth=1.5)
        .encode(x=alt.X("run:Q"), y=alt.Y("cell:N", sort=order)),
    ]
    subtitle = [
        "slowest process of each step: tick median, bar to p95, line from fastest to p99;",
        "circles: the medians of the single runs",
    ]
    return finished(
        alt.layer(*layers).properties(width=WIDTH, height=alt.Step(_bar(order)), title=alt.TitleParams(**titled("Step time", subtitle)))
    )


def loss(analysis: Analysis) -> dict[str, Any]:
    """Training loss over samples, or tokens, seen, one run per cell; read from the records, where alone the curves are. Where cells count
    different things it is over steps."""
    import altair as alt

    trained = [(label, comparison) for label, comparison in _measured(analysis) if comparison.cell.keys["mode"] == "train"]
    cells = {(comparison.cell.source, comparison.cell.cell_id): label for label, comparison in _spread_out(trained)}
    roots = {source.label: Path(source.path, "runs") for source in analysis.sources}
    first = analysis.frame.filter(MEASURED).unique(["source", "cell_id"], keep="first", maintain_order=True)
    values = []
    for source, cell_id, record, each in first.select("source", "cell_id", "record", _of_a_step(analysis)).iter_rows():
        if (source, cell_id) in cells:
            values += [
                {"run": cells[source, cell_id], "seen": (step + 1) * each, "loss": value} for step, value in _losses(roots[source] / record)
            ]
    if not values:
        return nothing("Training loss", "no run recorded its loss")
    order = [label for label in cells.values() if any(value["run"] == label for value in values)]
    colour = alt.Color(
        "run:N",
        sort=order,
        scale=alt.Scale(domain=order),
        legend=alt.Legend(title=None, orient="bottom", columns=legend_columns(order), **wrapped_labels(order)),
    )
    seen = f"{analysis.units[0]} seen" if len(analysis.units) == 1 else "steps"
    x_axis = alt.X("seen:Q", title=seen, axis=_short_numbers())
    lowest, highest = (choose(value["loss"] for value in values) for choose in (min, max))
    wide = lowest > 0 and highest > 50 * lowest
    y_axis = alt.Y("loss:Q", title="loss", **(log_scale([lowest, highest]) if wide else {"scale": alt.Scale(zero=False)}))
    lines = alt.Chart(alt.InlineData(values=values)).mark_line(strokeWidth=1.8, opacity=0.9).encode(x=x_axis, y=y_axis, color=colour)
    total = len(trained)
    note = f"mean over processes; first run of {f'{len(order)} of the {total} cells' if total > len(order) else 'each cell'}"
    return finished(lines.properties(width=WIDTH, height=HEIGHT, title=alt.TitleParams(**titled("Training loss", note))))


PLOTS: Final[dict[str, Callable[[Analysis], dict[str, Any]]]] = {
    "overview": overview,
    "throughput": throughput,
    "efficiency": efficiency,
    "budget": budget,
    "step_time": step_time,
    "loss": loss,
}


def _of_a_step(analysis: Analysis) -> pl.Expr:
    """What a step of a row adds to the loss plot's axis: samples, tokens in the mean over the window, or itself."""
    if len(analysis.units) > 1:
        return pl.lit(1)
    return pl.col("global_batch_size") if analysis.units == ("samples",) else pl.col("tokens") / pl.col("num_measured_steps")


def _bar(labels: Sequence[str]) -> int:
    """Points from one row to the next, so that labels of several lines do not meet."""
    return BAR + LINE * (max(len(label_lines(label)) for label in labels) - 1)


def _short_numbers() -> Any:
    import altair as alt

    return alt.Axis(format="~s", tickCount=6, labelExpr="datum.value == 0 ? '0' : datum.label")


def _measured(analysis: Analysis) -> list[tuple[str, Comparison]]:
    """(label, comparison) of the cells with a number. `lenet · 32 each · 2×1` names nodes and processes per node."""
    found = []
    for comparison in analysis.primary:
        if comparison.cell.num_measured:
            keys = comparison.cell.keys
            found.append(
                (f"{line_label(analysis, comparison)}{SEPARATOR}{keys['nodes']}\N{MULTIPLICATION SIGN}{keys['gpus_per_node']}", comparison)
            )
    return found


def _spread_out(cells: list[tuple[str, Comparison]]) -> list[tuple[str, Comparison]]:
    """At most MOST_CURVES: of every line the smallest, then the largest cell, then the others."""
    lines: dict[Any, list[tuple[str, Comparison]]] = {}
    for label, comparison in cells:
        lines.setdefault(comparison.line, []).append((label, comparison))
    ranked = []
    for line in lines.values():
        line.sort(key=lambda entry: entry[1].cell.num_processes)
        ranked += [(rank, entry) for rank, entry in enumerate([line[0], *line[:0:-1]])]
    chosen = {label for _, (label, _) in sorted(ranked, key=lambda pair: pair[0])[:MOST_CURVES]}
    return [entry for entry in cells if entry[0] in chosen]


def _losses(path: Path) -> Sequence[tuple[int, float]]:
    """None where the record went, or was changed, since it was collected: one curve less."""
    try:
        training = read_record(read_content(path)).training
    except (RecordError, NotBelieved):
        return ()
    return (training.losses or ()) if training is not None else ()


def _spread(label: str, cell: CellResult) -> dict[str, Any]:
    """Milliseconds; what was not measured is null and not drawn."""
    p50, p95 = cell.step_s, cell.p95_s
    seconds = {"min": cell.means["step_min_s"], "p99": cell.means["step_p99_s"]}
    seconds |= {"p50": p50.value if p50 else None, "p95": p95.value if p95 else None}
    return {"cell": label, **{name: None if value is None else 1000 * value for name, value in seconds.items()}}


def _of_many(text: str, total: int) -> str:
    return f"{text}; the first {MOST_BARS} of {total} cells" if total > MOST_BARS else text
