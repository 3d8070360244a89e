"""Draw the plots of a study: how it scales, and what happened inside its runs."""

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import altair as alt
import polars as pl
import vl_convert
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from base.errors import RecordError
from base.humanize import counted, whole_duration
from base.jsonfile import read_content
from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED, CellResult, Estimate
from workflow.report.formats import EMPTY, GRID, IDEAL, INK, MUTED, SERIES, STEPS
from workflow.report.layers_table import STACKED, profiles, stacked, step_of
from workflow.report.profile.layers import merged
from workflow.report.shared_columns import SEPARATOR, cell_label, counted_shape, line_label
from workflow.report.speedup import Comparison
from workflow.report.step_parts import STEP_PARTS, mean_parts
from workflow.report.table_type import MILLI, percent, range_text, significant, time_unit
from workflow.report.time_to_accuracy import curves
from workflow.run.record.parquet_columns import SHOWN_STEPS, Point
from workflow.run.record.reading import read_record

# Rendering of charts as SVG and Vega-Lite JSON, without browser and network.


Spec = dict[str, Any]
"""A chart, or a part of one, in the language of Vega-Lite."""
FONT: Final = "Arial, Helvetica, 'Liberation Sans', sans-serif"
WIDTH: Final = 430
HEIGHT: Final = 300
LABEL_WIDTH: Final = 48
LINE: Final = 14
_ID: Final = re.compile(r'\bid="([^"]*)"')
_ID_USE: Final = re.compile(r'(\bid="|url\(#)([^")]*)')
_GEOMETRY: Final = re.compile(r'\b(?:d|transform|x|y|x1|x2|y1|y2|width|height)="[^"]*"')
_LONG: Final = re.compile(r"-?\d+\.\d{2,}(?![\de])")
"""A coordinate with more digits than a screen or a printer has: they were half of an SVG."""

_TITLE: Final = {"anchor": "start", "fontSize": 15, "color": INK, "offset": 12}
_SUBTITLE: Final = {"subtitleFontSize": 11.5, "subtitleColor": MUTED, "subtitlePadding": 5}
_AXIS_COLOURS: Final = {"labelColor": MUTED, "titleColor": INK, "gridColor": GRID, "domainColor": MUTED, "tickColor": MUTED}
_AXIS_TEXT: Final = {"labelFontSize": 11.5, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8, "labelPadding": 4}
_LEGEND_TEXT: Final = {"labelFontSize": 11.5, "titleFontSize": 11.5, "titleFontWeight": "normal", "labelLimit": 0}
_HEADER: Final = {"labelColor": INK, "labelFontSize": 12.5, "labelFontWeight": "bold", "labelAnchor": "start", "title": None}
CONFIG: Final[Spec] = {
    "font": FONT,
    "background": "white",
    "padding": {"left": 22, "right": 14, "top": 12, "bottom": 12},
    "view": {"stroke": None},
    "title": {**_TITLE, **_SUBTITLE},
    "axis": {**_AXIS_COLOURS, **_AXIS_TEXT, "domain": False, "ticks": False},
    # viewers without Arial draw wider letters than were measured: room between columns keeps them apart
    "legend": {"labelColor": INK, "titleColor": MUTED, **_LEGEND_TEXT, "symbolSize": 70, "columnPadding": 30},
    "header": _HEADER,
    "range": {"category": list(SERIES)},
}


def to_svg(spec: Spec, name: str) -> str:
    """Render the chart as an SVG of its own, on white. Nothing is loaded from anywhere: an address in the data is text.

    Ids are counted through the life of the process: here they get the chart's `name`, so that the same chart is the same bytes, and
    several charts can stand in one page.
    """
    svg = str(vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]))
    found = dict.fromkeys(_ID.findall(svg))
    names = {old: f"{name}-{index}" for index, old in enumerate(found)}
    named = _ID_USE.sub(lambda match: match[1] + names.get(match[2], match[2]), svg)
    return _GEOMETRY.sub(lambda match: _LONG.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), match[0]), named)


def to_json(spec: Spec) -> str:
    """Return the chart's Vega-Lite specification with its data."""
    return json.dumps(spec, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def wrapped_labels(labels: Sequence[str]) -> Spec:
    """Show labels in lines of at most LABEL_WIDTH characters, nothing cut off. A label is text in the expression, never code."""
    lines = {label: label_lines(label) for label in labels}
    if all(len(those) == 1 for those in lines.values()):
        return {"labelLimit": 0}
    known, shown = (json.dumps(list(values)) for values in (lines.keys(), lines.values()))
    return {"labelLimit": 0, "labelExpr": f"{shown}[indexof({known}, datum.label)]"}


def label_lines(label: str) -> list[str]:
    """Split a label between its parts, and inside a part that is longer than a line."""
    lines = [""]
    for part in label.split(SEPARATOR):
        joined = SEPARATOR.join(filter(None, (lines[-1], part)))
        if len(joined) <= LABEL_WIDTH:
            lines[-1] = joined
        else:
            lines += [part[start : start + LABEL_WIDTH] for start in range(0, len(part), LABEL_WIDTH)]
    return [line for line in lines if line] or [""]


def titled(text: str, subtitle: str | Sequence[str] = "") -> Spec:
    """Return title parameters; the subtitle says how to read the chart."""
    return {"text": text, **({"subtitle": subtitle} if subtitle else {})}


def finished(chart: Any) -> Spec:
    """Return the chart as a plain value, with the look of all charts."""
    spec: Spec = chart.properties(usermeta={"embedOptions": {"renderer": "svg"}}).to_dict(validate=False)
    return {**spec, "config": CONFIG}


def nothing(text: str, reason: str) -> Spec:
    """Make a chart that says why it shows nothing, so that its file exists."""
    note = alt.Chart(alt.InlineData(values=[{}])).mark_text(color=MUTED, fontSize=13)
    note = note.encode(text=alt.value(reason), description=alt.value(f"{EMPTY}{reason}"))
    return finished(note.properties(width=WIDTH, height=80, title=alt.TitleParams(text)))


MAX_IN_ONE: Final = 6
MAX_LINES: Final = 60
PANEL_COLUMNS: Final = 2
SHORT: Final = "datum.value < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"  # 0.5, 200, 1.5k
SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
NARROW: Final = 1.3
"""The largest ratio of two values between which no tick may lie."""
GOOD_EFFICIENCY: Final = 0.75
APART: Final = 0.06  # doublings: a little more than a point is wide
MAX_APART: Final = 0.45
MAX_ABOVE: Final = 1.2
"""How far an axis of efficiencies reaches above the largest of them. One whisker had stretched it to 550 %."""
MAX_WIDE: Final = 4.0
"""How many times a whisker may exceed the largest rate, or fall below the smallest, before it is clipped."""
PART: Final = ["line:N", "part:N"]
"""What one stroke joins: cells that are measured against the same baseline, on the same line."""
NOTHING: Final = "no run was measured"


def throughput(analysis: Analysis) -> Spec:
    """Draw the rate over processes, both logarithmic, with the ideal from the baseline on; samples and tokens have panels of their own."""
    points = _beside(_points(analysis, lambda comparison: comparison.cell.rate_per_s, significant, by_unit=True))
    if not points:
        return nothing("Throughput", NOTHING)
    ideal = _ideal(points)
    dashes = "; dashed: ideal, from the baseline on" if ideal else ""
    dashed = _layer("ideal").mark_line(aria=False, strokeDash=[4, 4], strokeWidth=1.2, color=IDEAL, clip=True).encode(detail=PART)
    values = [point.value for point in points]
    points, cut = clipped(points, min(values) / MAX_WIDE, max(values) * MAX_WIDE)
    text = _subtitle(analysis, f"whiskers: 95 % confidence interval over runs{dashes}")
    title = titled("Throughput", [text, *cut])
    shown: dict[str, list[float]] = {}
    for point in [*points, *ideal]:
        shown.setdefault(point.panel, []).extend(value for value in (point.value, point.low, point.high) if value)
    y_title = f"{analysis.units[0]} / s" if len(analysis.units) == 1 else "per second"
    y_axis = alt.Y("value:Q", title=y_title, **log_scale(*shown.values(), own_per_panel=points[0].panel != ""))
    dashed = dashed.encode(x=_x(analysis, points), y=y_axis)
    return _panels(alt.layer(dashed, *_measured(analysis, points, y_axis)), points, ideal, title)


def efficiency(analysis: Analysis) -> Spec:
    """Draw efficiency over processes, with the line below which more processes are seldom worth their price."""
    points = _beside(_points(analysis, lambda comparison: comparison.efficiency, percent))
    if not points:
        return nothing("Efficiency", "no comparison with a baseline")
    top = MAX_ABOVE * max(1.0, *(point.value for point in points))
    points, cut = clipped(points, 0.0, top)
    step = 0.25 if top < 2 else 0.5 if top < 4 else math.ceil(top / 8)
    ticks = [step * index for index in range(int(top / step) + 1)]
    scale, axis = alt.Scale(domain=[0, top], nice=False), alt.Axis(format=".0%", values=ticks)
    y_axis = alt.Y("value:Q", title="efficiency", scale=scale, axis=axis)
    limit = _layer("limit").mark_rule(aria=False, strokeDash=[4, 4], color=IDEAL, strokeWidth=1.2).encode(y=y_axis)
    limits = [{"kind": "limit", "panel": panel, "value": GOOD_EFFICIENCY} for panel in sorted(_panels_of(points))]
    text = _subtitle(analysis, "speed-up over growth in processes; whiskers: 95 % confidence interval; dashed: 75 %")
    layers = alt.layer(limit, *_measured(analysis, points, y_axis))
    return _panels(layers, points, limits, titled("Efficiency", [text, *cut]))


class PlotPoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A point over processes, as its chart has it: a measured cell, or an end of the ideal line."""

    kind: str
    panel: str
    label: str
    line: str
    part: str
    processes: int
    value: float
    low: float | None
    high: float | None
    baseline: bool
    says: str
    x: float


def clipped(points: Sequence[PlotPoint], least: float, most: float) -> tuple[list[PlotPoint], list[str]]:
    """Cut whiskers off at the ends of the axis; return the points, and a line that says so where one is."""
    found = [
        point if point.low is None or point.high is None else replace(point, low=max(point.low, least), high=min(point.high, most))
        for point in points
    ]
    return found, ["longer whiskers are cut off; the words of their points have the whole interval"] if found != list(points) else []


def _points(
    analysis: Analysis, quantity: Callable[[Comparison], Estimate | None], show: Callable[[float], str], *, by_unit: bool = False
) -> list[PlotPoint]:
    """Return a point for each measured cell, with what it says in words; `show` formats its value.

    Many lines of several models have one panel per model. `by_unit`: a panel for each unit.
    """
    lines = list(analysis.lines)[:MAX_LINES]
    several = len({cell.cell.model for cell in analysis.cells}) > 1
    paneled = several and len(analysis.lines) > MAX_IN_ONE
    apart = by_unit and len(analysis.units) > 1
    return [
        PlotPoint(
            kind="measured",
            panel=SEPARATOR.join(
                [*([printable(str(comparison.cell.cell.model))] if paneled else []), *([f"{comparison.cell.unit} / s"] if apart else [])]
            ),
            label=line_label(analysis, comparison, line, with_model=not paneled),
            line=" ".join(map(str, line)),
            part=comparison.partner.cell_id if comparison.partner else "",
            processes=comparison.cell.num_processes,
            x=comparison.cell.num_processes,
            value=estimate.value,
            low=estimate.low,
            high=estimate.high,
            baseline=comparison.is_baseline,
            says=f"{line_label(analysis, comparison, line)}, {counted_shape(analysis, comparison.cell)}: "
            f"{range_text(show, estimate)}{f' {comparison.cell.unit} / s' if by_unit else ''}",
        )
        for line in lines
        for comparison in analysis.lines[line]
        if (estimate := quantity(comparison))
    ]


def _beside(points: Sequence[PlotPoint]) -> list[PlotPoint]:
    """Move the points of several lines apart, so that no whisker covers another.

    All of a line are moved by one factor, together by less than half the way to the next number of processes.
    """
    counts = sorted({point.processes for point in points})
    gap = min((math.log2(high / low) for low, high in pairwise(counts)), default=1.0)
    lines = {panel: list(dict.fromkeys(point.line for point in points if point.panel == panel)) for panel in _panels_of(points)}
    placed = []
    for point in points:
        own = lines[point.panel]
        step = min(APART, MAX_APART * gap / len(own))
        shift = step * (own.index(point.line) - (len(own) - 1) / 2)
        placed.append(replace(point, x=point.processes * 2**shift))
    return placed


def _panels_of(points: Sequence[PlotPoint]) -> list[str]:
    return list(dict.fromkeys(point.panel for point in points))


def _subtitle(analysis: Analysis, text: str) -> str:
    total = len(analysis.lines)
    return f"{text}; the first {MAX_LINES} of {total} lines" if total > MAX_LINES else text


def _ideal(points: Sequence[PlotPoint]) -> list[PlotPoint]:
    found = []
    for part in dict.fromkeys((point.line, point.part) for point in points):
        own = [point for point in points if (point.line, point.part) == part]
        base = min((point for point in own if point.baseline), key=lambda point: point.processes, default=None)
        last = max(point.processes for point in own)
        if base and last > base.processes:
            for processes in (base.processes, last):
                x, value = base.x * processes / base.processes, base.value * processes / base.processes
                found.append(replace(base, kind="ideal", processes=processes, x=x, value=value, low=None, high=None))
    return found


def _layer(kind: str) -> Any:
    return alt.Chart().transform_filter(f"datum.kind == '{kind}'")


def _x(analysis: Analysis, points: Sequence[PlotPoint]) -> Any:
    counts = sorted({point.processes for point in points})
    places = [point.x for point in points]
    scale = alt.Scale(type="log", base=2, domain=[min(places) / 1.12, max(places) * 1.12], nice=False)
    return alt.X(
        "x:Q", title=analysis.processes, scale=scale, axis=alt.Axis(values=counts, format="d", grid=False, ticks=True, domain=True)
    )


def _measured(analysis: Analysis, points: Sequence[PlotPoint], y_axis: Any) -> list[Any]:
    labels = list(dict.fromkeys(point.label for point in points))
    x_axis = _x(analysis, points)
    scheme = {} if len(labels) <= len(SERIES) else {"scheme": "tableau20"}
    legend = alt.Legend(title=None, orient="bottom", columns=legend_columns(labels), **wrapped_labels(labels))
    colour = alt.Color("label:N", sort=labels, scale=alt.Scale(domain=labels, **scheme), legend=legend)
    shape = alt.Shape("label:N", sort=labels, scale=alt.Scale(domain=labels, range=list(SHAPES)), legend=legend)
    base = _layer("measured").encode(x=x_axis, color=colour)
    return [
        base.mark_line(aria=False, strokeWidth=2.2, clip=True).encode(y=y_axis, detail=PART),
        base.transform_filter("datum.low != null").mark_rule(aria=False, strokeWidth=1.6).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_point(filled=True, size=62, opacity=1).encode(y=y_axis, shape=shape, description="says:N"),
    ]


def log_scale(*panels: Sequence[float], own_per_panel: bool = False) -> Spec:
    """Return a logarithmic scale over the values of `panels`.

    Panels with scales of their own choose their domain, from one power of ten to another if one of them has a single value.
    """
    values, axis = [value for panel in panels for value in panel], alt.Axis(labelExpr=f"datum.label && ({SHORT})", tickCount=6)
    if not own_per_panel:
        return {"scale": alt.Scale(type="log", domain=[min(values) / 1.15, max(values) * 1.15], nice=False), "axis": axis}
    scale = {"nice": True} if min(max(panel) / min(panel) for panel in panels) < NARROW else {"nice": False, "padding": 12}
    return {"scale": alt.Scale(type="log", **scale), "axis": axis}


def legend_columns(labels: Sequence[str]) -> int:
    """Return how many columns of a legend fit below a chart."""
    longest = max(len(line) for label in labels for line in label_lines(label))
    return max(1, min(4, 66 // (longest + 6)))


def overview(analysis: Analysis) -> Spec:
    """Draw throughput beside efficiency: one picture of a study."""
    parts = [throughput(analysis), efficiency(analysis)]
    shared = {key: parts[0][key] for key in ("$schema", "config", "usermeta")}
    datasets = {name: values for part in parts for name, values in part.get("datasets", {}).items()}
    panels = [{key: value for key, value in part.items() if key not in {*shared, "datasets"}} for part in parts]
    return {**shared, "datasets": datasets, "hconcat": panels, "spacing": 36}


def _panels(layers: Any, points: Sequence[PlotPoint], more: Sequence[object], title: Spec) -> Spec:
    """Draw the layers over the points, and `more` data, in a panel for each that the points are in."""
    data, parameters = alt.InlineData(values=to_builtins([*points, *more])), alt.TitleParams(**title)
    panels = _panels_of(points)
    if len(panels) == 1:
        return finished(layers.properties(data=data, width=WIDTH, height=HEIGHT, title=parameters))
    small = layers.properties(width=WIDTH // 2, height=HEIGHT * 2 // 3)
    faceted = small.facet(facet=alt.Facet("panel:N", sort=panels, title=None), columns=PANEL_COLUMNS, data=data)
    return finished(faceted.resolve_scale(y="independent").resolve_axis(x="independent").properties(title=parameters))


# Plots of single runs: where their time goes, step times, losses.


MAX_BARS: Final = 40
TIMES: Final = {"min": "fastest step", "p50": "median", "p95": "p95", "p99": "p99"}
MAX_CURVES: Final = len(SERIES)
MAX_SAYINGS: Final = 12
"""Points of a curve that can be pointed at: each is an element of the page with a sentence of its own."""
BAR: Final = 21
PART_COLOURS: Final = dict(zip(STEP_PARTS.values(), [*(SERIES[place] for place in (4, 3, 0, 5, 1, 7, 2)), STEPS["assign"]], strict=True))
"""Computing in cold colours, what is waited for in warm ones."""
LAYER_COLOURS: Final = dict(zip(STACKED, [*(SERIES[place] for place in (4, 0, 5, 1, 2, 8, 3)), STEPS["assign"]], strict=True))


def budget(analysis: Analysis) -> Spec:
    """Draw the steps of a run, stacked, one bar per cell."""
    bars = [(label, {step: one.cell.means[f"{step}_s"] for step in SHOWN_STEPS}) for label, one in _labelled(analysis)]
    title = titled("Where the time of a run goes", _of_many("assign comes from the scheduler; the other five are the run", len(bars)))
    return _stacked(title, bars, {step: STEPS[step] for step in SHOWN_STEPS}, "mean over runs", NOTHING)


def step_parts(analysis: Analysis) -> Spec:
    """Draw the parts of a step, stacked, one bar per cell that tells them, framework beside framework."""
    told = mean_parts(analysis)
    bars = [
        (label, {title: row[name] for name, title in STEP_PARTS.items()})
        for label, one in _side_by_side(analysis)
        if (row := told.get((one.source, one.cell_id))) is not None
    ]
    title = titled("What happens in a step", _of_many("mean over processes, steps and runs; other: what no part tells of", len(bars)))
    return _stacked(title, bars, PART_COLOURS, "mean step", "no program told parts of its steps")


def layers(analysis: Analysis) -> Spec:
    """Draw what a traced step is made of, stacked, one bar per cell that has a profile, framework beside framework."""
    told = {(cell.source, cell.cell_id): found for cell, _, found in profiles(analysis) if not isinstance(found, str)}
    bars = [
        (label, {name: MILLI * spent_ms for name, spent_ms in stacked(found, step_of(cell, found)).items()})
        for label, cell in _side_by_side(analysis)
        if (found := told.get((cell.source, cell.cell_id)))
    ]
    title = titled("Where a step goes", _of_many("of the profile runs; what is done at the same time counts once", len(bars)))
    return _stacked(title, bars, LAYER_COLOURS, "traced step", "no cell has a profile")


def _side_by_side(analysis: Analysis) -> list[tuple[str, CellResult]]:
    """Return label and cell of the cells with a number; those that several frameworks have stand beside each other."""
    cells = [(label, one.cell) for label, one in _labelled(analysis)]
    if len({one.cell.framework for _, one in cells}) < 2:
        return cells
    models = list(dict.fromkeys(one.cell.model for _, one in cells))
    return sorted(cells, key=lambda pair: (models.index(pair[1].cell.model), pair[1].cell.batch_size, pair[1].shape))


def _stacked(
    title: Spec,
    bars: Sequence[tuple[str, Mapping[str, float | None]]],
    colours: Mapping[str, str],
    x_title: str,
    empty: str,
) -> Spec:
    """Draw the first bars, labels with their parts, stacked, in the unit that suits the longest. `empty`: why there may be none."""
    shown = [(label, {name: amount for name, amount in parts.items() if amount and amount > 0}) for label, parts in bars[:MAX_BARS]]
    if not any(parts for _, parts in shown):
        return nothing(title["text"], empty)
    order, lengths = [label for label, _ in shown], [math.fsum(parts.values()) for _, parts in shown]
    unit, size = time_unit(lengths, short=True)
    places = list(colours)
    values = [
        {
            **{"cell": label, "step": name, "order": places.index(name), "amount": amount / size},
            "says": f"{label}: {name} {significant(amount / size)} {unit} of {significant(length / size)} {unit}",
        }
        for (label, parts), length in zip(shown, lengths, strict=True)
        for name, amount in parts.items()
    ]
    colour = alt.Color(
        "step:N",
        scale=alt.Scale(domain=places, range=list(colours.values())),
        legend=alt.Legend(title=None, orient="bottom", columns=6 if len(colours) == len(SHOWN_STEPS) else 4),
    )
    chart = alt.Chart(alt.InlineData(values=values)).mark_bar(height=BAR - 7).encode(
        y=alt.Y("cell:N", sort=order, title=None, axis=alt.Axis(**wrapped_labels(order))),
        x=alt.X("amount:Q", title=f"{x_title}, {unit}", axis=_plain_numbers()),
        color=colour,
        order="order:Q",
        description="says:N",
    )  # fmt: skip
    return finished(chart.properties(width=WIDTH, height=alt.Step(_bar(order)), title=alt.TitleParams(**title)))


def step_time(analysis: Analysis) -> Spec:
    """Draw how even the steps are: per cell the fastest step, the median, p95 and p99, and each run's own median."""
    cells = _labelled(analysis)[:MAX_BARS]
    if not cells:
        return nothing("Step time", NOTHING)
    order = [label for label, _ in cells]
    spread = [(label, _spread(comparison.cell)) for label, comparison in cells]
    labels = {(comparison.cell.source, comparison.cell.cell_id): label for label, comparison in cells}
    ok = analysis.frame.filter(MEASURED)
    medians_s = [comparison.cell.step_s.value for _, comparison in cells if comparison.cell.step_s]
    of_runs = [
        (labels[source, cell_id], seconds)
        for source, cell_id, seconds in ok.select("source", "cell_id", "step_p50_s").iter_rows()
        if (source, cell_id) in labels
    ]
    ends_s = [seconds for _, seconds in of_runs]
    ends_s += [seconds for _, times in spread for name in ("min", "p50", "p99") if (seconds := times[name])]
    unit, size = time_unit(ends_s, short=True)
    rows = [_in_unit(label, times, unit, size) for label, times in spread]
    medians = [{"cell": label, "run": seconds / size} for label, seconds in of_runs]
    wide = max(medians_s) > 8 * min(medians_s)
    x_axis = log_scale([seconds / size for seconds in ends_s]) if wide else {"scale": alt.Scale(zero=True), "axis": _plain_numbers()}
    base = alt.Chart(alt.InlineData(values=rows)).encode(y=alt.Y("cell:N", sort=order, title=None, axis=alt.Axis(**wrapped_labels(order))))
    layers = [
        base.mark_rule(aria=False, color=MUTED, strokeWidth=1.2).encode(x=alt.X("min:Q", title=f"step, {unit}", **x_axis), x2="p99:Q"),
        base.mark_bar(height=7, color=SERIES[0], opacity=0.55).encode(x=alt.X("p50:Q"), x2="p95:Q", description="says:N"),
        base.mark_tick(aria=False, color=SERIES[0], thickness=3, size=15).encode(x=alt.X("p50:Q")),
        alt.Chart(alt.InlineData(values=medians))
        .mark_point(aria=False, color=SERIES[1], size=26, strokeWidth=1.5)
        .encode(x=alt.X("run:Q"), y=alt.Y("cell:N", sort=order)),
    ]
    subtitle = [
        "slowest process of each step: tick median, bar to p95, line from fastest to p99;",
        "circles: the medians of the single runs",
    ]
    return finished(
        alt.layer(*layers).properties(width=WIDTH, height=alt.Step(_bar(order)), title=alt.TitleParams(**titled("Step time", subtitle)))
    )


def loss(analysis: Analysis) -> Spec:
    """Draw the training loss of one run per cell over samples or tokens seen (over steps if cells count different things).

    It is read from the records: nothing else has the curves.
    """
    trained = [(label, comparison) for label, comparison in _labelled(analysis) if comparison.cell.cell.mode == "train"]
    cells = {(comparison.cell.source, comparison.cell.cell_id): label for label, comparison in trained[:MAX_CURVES]}
    roots = {source.label: source.directory / "runs" for source in analysis.sources}
    first = analysis.frame.filter(MEASURED).unique(["source", "cell_id"], keep="first", maintain_order=True)
    values: list[dict[str, Any]] = []
    for source, cell_id, record, each in first.select("source", "cell_id", "record", _of_a_step(analysis)).iter_rows():
        if (source, cell_id) in cells:
            values += _curve(cells[source, cell_id], [((step + 1) * each, value) for step, value in losses_of(roots[source] / record)])
    if not values:
        return nothing("Training loss", "no run recorded its loss")
    seen = f"{analysis.units[0]} seen" if len(analysis.units) == 1 else "steps"
    lowest, highest = (choose(value["smooth"] for value in values) for choose in (min, max))
    wide = lowest > 0 and highest > 50 * lowest
    scale = log_scale([lowest / NARROW, highest * NARROW]) if wide else {"scale": alt.Scale(zero=False)}
    y_axis = alt.Y("smooth:Q", title="loss", **scale)
    x_axis = alt.X("seen:Q", title=seen, axis=alt.Axis(format="~s", tickCount=6, labelExpr="datum.value == 0 ? '0' : datum.label"))
    note = "mean over processes; pale: as recorded, strong: moving average"
    return _curves(list(cells.values()), values, (x_axis, y_axis), "Training loss", len(trained), note, raw="loss")


def losses_of(path: Path) -> Sequence[tuple[int, float]]:
    """Read the losses of a record; none if it was removed or changed after it was collected."""
    try:
        training = read_record(read_content(path)).training
    except RecordError:
        return ()
    return (training.losses or ()) if training is not None else ()


def _curve(label: str, points: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """Return the rows of a curve with its moving average over a twenty-fifth of it, and every so often what it says in words."""
    half, told = len(points) // 50, max(1, len(points) // MAX_SAYINGS)
    rows = []
    for at, (seen, value) in enumerate(points):
        beside = [other for _, other in points[max(0, at - half) : at + half + 1]]
        smooth = sum(beside) / len(beside)
        says = {"says": f"{label}: {significant(smooth)} at {seen:,.0f}"} if at % told == 0 or at == len(points) - 1 else {}
        rows.append({"run": label, "seen": seen, "loss": value, "smooth": smooth, **says})
    return rows


def accuracy(analysis: Analysis) -> Spec:
    """Draw the accuracy of one run per cell over the seconds that it had trained, where it was evaluated more than once."""
    told: dict[tuple[str, str], list[Point]] = {}
    for run in curves(analysis):
        if len(run.points) > 1:
            told.setdefault((run.source, run.cell_id), run.points)
    evaluated = [(label, one) for label, one in _labelled(analysis) if (one.cell.source, one.cell.cell_id) in told]
    cells = {label: told[one.cell.source, one.cell.cell_id] for label, one in evaluated[:MAX_CURVES]}
    unit, size = time_unit((point.training_s for points in cells.values() for point in points), short=True)
    values = [
        {
            **{"run": label, "time": point.training_s / size, "accuracy": point.accuracy},
            "says": f"{label}: {percent(point.accuracy)} after {significant(point.training_s / size)} {unit}",
        }
        for label, points in cells.items()
        for point in points
        if point.training_s is not None
    ]
    if not values:
        return nothing("Accuracy over training time", "no run was evaluated in the midst of its training")
    x_axis = alt.X("time:Q", title=f"training without evaluations, {unit}", axis=_plain_numbers())
    y_axis = alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(zero=False), axis=alt.Axis(format="~%"))
    return _curves(list(cells), values, (x_axis, y_axis), "Accuracy over training time", len(evaluated))


def _curves(  # noqa: PLR0913 - what the curves say
    labels: Sequence[str],
    values: Sequence[dict[str, Any]],
    axes: tuple[Any, Any],
    title: str,
    total: int,
    note: str = "",
    *,
    raw: str = "",
) -> Spec:
    """Draw a line for each of `labels` that has `values`, of `total` cells. `raw`: the key of the values that were smoothed."""
    order = [label for label in labels if any(value["run"] == label for value in values)]
    colour = alt.Color(
        "run:N",
        sort=order,
        scale=alt.Scale(domain=order),
        legend=alt.Legend(
            **{"title": None, "orient": "bottom", "symbolOpacity": 1, "symbolType": "stroke", "symbolStrokeWidth": 3},
            **{"columns": legend_columns(order), **wrapped_labels(order)},
        ),
    )
    base = alt.Chart(alt.InlineData(values=values)).encode(x=axes[0], color=colour)
    line = base.mark_line(aria=False, strokeWidth=1.8, clip=True).encode(y=axes[1])
    told = base.transform_filter("datum.says").mark_circle(size=30, opacity=0 if raw else 1, clip=True)
    pale = [base.mark_line(aria=False, strokeWidth=0.8, opacity=0.22, clip=True).encode(y=f"{raw}:Q")] if raw else []
    layers = [*pale, line, told.encode(y=axes[1], description="says:N")]
    which = f"first run of {f'{len(order)} of the {total} cells' if total > len(order) else 'each cell'}"
    chart = alt.layer(*layers).properties(
        width=WIDTH, height=HEIGHT, title=alt.TitleParams(**titled(title, [*filter(None, [note]), which]))
    )
    return finished(chart)


MAX_ROWS: Final = 60
MAX_RUNS: Final = 300
MIN_WAIT_S: Final = 5.0
MIN_PAUSE_S: Final = 60.0
PAUSE_SHARE: Final = 0.05
"""A time in which nothing happened is cut out where it is longer than this share of the other times, and than MIN_PAUSE_S."""
CUT_SHARE: Final = 0.02


def timeline(analysis: Analysis) -> Spec:
    """Draw the steps of each run over time, and before them how long it waited for nodes. Of many runs a row is the first node of each."""
    labels = {(cell.source, cell.cell_id): cell_label(analysis, cell) for cell in analysis.cells}
    columns = ("source", "run_id", "cell_id", "repeat", "start", "hosts", *(f"{step}_s" for step in STEPS))
    begun = [
        {**row, "begin": at} for row in analysis.frame.select(columns).iter_rows(named=True) if (at := _moment(row["start"])) is not None
    ]
    begun.sort(key=lambda row: (row["begin"], row["run_id"]))
    runs = [(row, steps) for row in begun[:MAX_RUNS] if (steps := list(_steps_over_time(row)))]
    if not runs:
        return nothing("Runs over time", "no run has begun")
    scale, cuts = clock([(steps[0][1], steps[-1][2]) for _, steps in runs])
    unit, size = time_unit([scale(steps[-1][2]) for _, steps in runs], short=True)
    values: list[dict[str, Any]] = []
    for row, steps in runs:
        run = f"{labels[row['source'], row['cell_id']]}{SEPARATOR}r{row['repeat']}"
        hosts = (row["hosts"] or "no known node").split(",")
        values += [
            {
                **{"row": run if len(runs) <= MAX_ROWS else printable(hosts[0]), "step": step},
                **{"from": scale(begin) / size, "to": scale(end) / size},
                "says": printable(f"{row['run_id']} on {', '.join(hosts[:4])}, {row['start'][:19]}: {step} {significant(end - begin)} s"),
            }
            for step, begin, end in steps
        ]
    values.sort(key=lambda value: value["step"] != "assign")  # other runs of the node are drawn over the wait
    order = list(dict.fromkeys(value["row"] for value in sorted(values, key=lambda value: value["from"])))[:MAX_ROWS]
    waits = [wait for row in begun if (wait := row["assign_s"] or 0.0) >= MIN_WAIT_S]
    waited = f"{counted(len(waits), 'run')} waited for nodes, {whole_duration(sum(waits))} in all" if waits else "no run waited for nodes"
    rows = "" if len(runs) <= MAX_ROWS else "; a row: the first node of its runs"
    some = f"; the first {MAX_RUNS} of {len(begun)} runs" if len(begun) > MAX_RUNS else ""
    subtitle = [f"{waited}{rows}{some}", *(["dashed: a time in which nothing ran is cut out"] if cuts else [])]
    legend = alt.Legend(title=None, orient="bottom", columns=len(STEPS))
    base = alt.Chart(alt.InlineData(values=[value for value in values if value["row"] in order]))
    bars = base.mark_bar(height=BAR - 9).encode(
        y=alt.Y("row:N", sort=order, title=None, axis=alt.Axis(**wrapped_labels(order))),
        x=alt.X("from:Q", title=f"time since the first run waited or began, {unit}", axis=_plain_numbers()),
        x2="to:Q",
        color=alt.Color("step:N", scale=alt.Scale(domain=list(STEPS), range=list(STEPS.values())), legend=legend),
        description="says:N",
    )
    paused = alt.Chart(alt.InlineData(values=[{"at": at / size} for at in cuts])).mark_rule(aria=False, strokeDash=[4, 4], color=IDEAL)
    layers = alt.layer(bars, paused.encode(x="at:Q")) if cuts else bars
    title = alt.TitleParams(**titled("Runs over time", subtitle))
    return finished(layers.properties(width=WIDTH, height=alt.Step(_bar(order)), title=title))


def _moment(text: str | None) -> float | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _steps_over_time(row: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield the wait for nodes and the steps of a run that took time, with begin and end of each."""
    at = row["begin"] - (row["assign_s"] or 0.0)
    for step in STEPS:
        begin, at = at, at + (row[f"{step}_s"] or 0.0)
        if at > begin:
            yield step, begin, at


def clock(times: Iterable[tuple[float, float]]) -> tuple[Callable[[float], float], list[float]]:
    """Return the scale of moments without long times in which nothing happened, and where on it these are cut out."""
    busy = merged(times)
    total = sum(end - begin for begin, end in busy)
    starts, places = [busy[0][0]], [0.0]
    for (_, before), (begin, _) in pairwise(busy):
        if begin - before > max(MIN_PAUSE_S, PAUSE_SHARE * total):
            places.append(places[-1] + before - starts[-1] + CUT_SHARE * total)
            starts.append(begin)

    def scale(moment: float) -> float:
        at = bisect_right(starts, moment) - 1
        return places[at] + moment - starts[at]

    return scale, places[1:]


PLOTS: Final[dict[str, Callable[[Analysis], Spec]]] = {
    "overview": overview,
    "throughput": throughput,
    "efficiency": efficiency,
    "budget": budget,
    "step_parts": step_parts,
    "layers": layers,
    "step_time": step_time,
    "loss": loss,
    "accuracy": accuracy,
    "timeline": timeline,
}


def _of_a_step(analysis: Analysis) -> pl.Expr:
    """Return what a step adds to the axis of the loss plot: samples, the mean number of tokens, or 1."""
    if len(analysis.units) > 1:
        return pl.lit(1)
    return pl.col("global_batch_size") if analysis.units == ("samples",) else pl.col("tokens") / pl.col("num_measured_steps")


def _bar(labels: Sequence[str]) -> int:
    """Return the points from one row to the next, so that labels of several lines do not meet."""
    return BAR + LINE * (max(len(label_lines(label)) for label in labels) - 1)


def _plain_numbers() -> Any:
    return alt.Axis(format=",~f", tickCount=6)


def _labelled(analysis: Analysis) -> list[tuple[str, Comparison]]:
    """Return label and comparison of the cells with a number. `lenet · 32 each · 2×1` names nodes and processes per node."""
    found = []
    for comparison in analysis.primary:
        if comparison.cell.num_measured:
            cell = comparison.cell.cell
            found.append(
                (f"{line_label(analysis, comparison)}{SEPARATOR}{cell.nodes}\N{MULTIPLICATION SIGN}{cell.gpus_per_node}", comparison)
            )
    return found


def _spread(cell: CellResult) -> dict[str, float | None]:
    p50, p95 = cell.step_s, cell.p95_s
    ends = {"min": cell.means["step_min_s"], "p99": cell.means["step_p99_s"]}
    return {**ends, "p50": p50.value if p50 else None, "p95": p95.value if p95 else None}


def _in_unit(label: str, times: Mapping[str, float | None], unit: str, size: float) -> dict[str, str | float]:
    """Return the row of a cell's step times in a unit of `size` seconds, with what it says in words."""
    amounts = {name: value / size for name, value in times.items() if value is not None}
    texts = [f"{TIMES[name]} {significant(amounts[name])} {unit}" for name in TIMES if name in amounts]
    return {"cell": label, **amounts, "says": f"{label}: {', '.join(texts)}"}


def _of_many(text: str, total: int) -> str:
    return f"{text}; the first {MAX_BARS} of {total} cells" if total > MAX_BARS else text
