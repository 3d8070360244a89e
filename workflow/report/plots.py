"""The plots of a study: how it scales. Those of single runs are in run_plots.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.derive import Comparison, Line
from workflow.report.labels import batch_text, series_words
from workflow.report.rendering import HEIGHT, SEPARATOR, WIDTH, finished, label_lines, nothing, titled, wrapped_labels
from workflow.report.statistics import Estimate
from workflow.report.style import IDEAL, SERIES

MOST_IN_ONE: Final = 6
MOST_LINES: Final = 60
PANEL_COLUMNS: Final = 2
SHORT: Final = "datum.value < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"  # 0.5, 200, 1.5k
SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
NARROW: Final = 1.3
"""Between the largest and the smallest value: no tick may lie between them."""
GOOD_EFFICIENCY: Final = 0.75
APART: Final = 0.06  # doublings: a little more than a point is wide
MOST_APART: Final = 0.45
PART: Final = ["line:N", "part:N"]
"""What one stroke joins: cells that are measured against the same baseline, on the same line."""
NOTHING: Final = "no run was measured"


def throughput(analysis: Analysis) -> dict[str, Any]:
    """Samples, or tokens, per second over processes, both logarithmic, with what would be ideal from the baseline on. Those of a study
    with both units stand in panels of their own."""
    import altair as alt

    points = _beside(_points(analysis, lambda comparison: comparison.cell.rate_per_s, by_unit=True))
    if not points:
        return nothing("Throughput", NOTHING)
    ideal = _ideal(points)
    dashes = "; dashed: ideal, from the baseline on" if ideal else ""
    title = titled("Throughput", _subtitle(analysis, f"whiskers: 95 % confidence interval over runs{dashes}"))
    dashed = _layer("ideal").mark_line(strokeDash=[4, 4], strokeWidth=1.2, color=IDEAL, clip=True).encode(detail=PART)
    shown: dict[str, list[float]] = {}
    for point in [*points, *ideal]:
        shown.setdefault(point["panel"], []).extend(value for value in (point["value"], point["low"], point["high"]) if value)
    y_title = f"{analysis.units[0]} / s" if len(analysis.units) == 1 else "per second"
    y_axis = alt.Y("value:Q", title=y_title, **log_scale(*shown.values(), own_per_panel=points[0]["panel"] != ""))
    return _panels(
        alt.layer(dashed.encode(x=_x(analysis, points), y=y_axis), *_measured(analysis, points, y_axis)), [*points, *ideal], title
    )


def efficiency(analysis: Analysis) -> dict[str, Any]:
    """Efficiency over processes, with the line below which more processes are seldom worth their price."""
    import altair as alt

    points = _beside(_points(analysis, lambda comparison: comparison.efficiency))
    if not points:
        return nothing("Efficiency", "no comparison with a baseline")
    top = max(1.05, *(point["high"] or point["value"] for point in points)) * 1.02
    step = 0.25 if top < 2 else 0.5 if top < 4 else math.ceil(top / 8)
    ticks = [step * index for index in range(int(top / step) + 1)]
    scale, axis = alt.Scale(domain=[0, top], nice=False), alt.Axis(format=".0%", values=ticks)
    y_axis = alt.Y("value:Q", title="efficiency", scale=scale, axis=axis)
    limit = _layer("limit").mark_rule(strokeDash=[4, 4], color=IDEAL, strokeWidth=1.2).encode(y=y_axis)
    labels = sorted({point["panel"] for point in points})
    limits = [{"kind": "limit", "panel": panel, "value": GOOD_EFFICIENCY} for panel in labels]
    subtitle = _subtitle(analysis, "speed-up over growth in processes; whiskers: 95 % confidence interval; dashed: 75 %")
    return _panels(alt.layer(limit, *_measured(analysis, points, y_axis)), [*points, *limits], titled("Efficiency", subtitle))


def line_label(analysis: Analysis, comparison: Comparison, line: Line | None = None, *, with_model: bool = True) -> str:
    """`resnet18 · 32 each`; `line`: where the comparison stands on another than its own."""
    names = analysis.label_names if with_model else analysis.label_names[1:]
    words = [*series_words(comparison.cell, names), batch_text(*(line or comparison.line)[2:])]
    return printable(SEPARATOR.join([*words, comparison.cell.source] if len(analysis.sources) > 1 else words))


def _points(analysis: Analysis, quantity: Callable[[Comparison], Estimate | None], *, by_unit: bool = False) -> list[dict[str, Any]]:
    """One per measured cell. Many lines of several models: one panel per model, and the legend names the rest. `by_unit`: no panel has
    samples/s beside tokens/s."""
    lines = list(analysis.lines)[:MOST_LINES]
    several = len({cell.keys["model"] for cell in analysis.cells}) > 1
    paneled = several and len(analysis.lines) > MOST_IN_ONE
    apart = by_unit and len(analysis.units) > 1
    return [
        {
            "kind": "measured",
            "panel": SEPARATOR.join(
                [*([printable(str(comparison.cell.keys["model"]))] if paneled else []), *([f"{comparison.cell.unit} / s"] if apart else [])]
            ),
            "label": line_label(analysis, comparison, line, with_model=not paneled),
            "line": " ".join(map(str, line)),
            "part": comparison.partner.cell_id if comparison.partner else "",
            "processes": comparison.cell.num_processes,
            "value": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "baseline": comparison.is_baseline,
        }
        for line in lines
        for comparison in analysis.lines[line]
        if (estimate := quantity(comparison))
    ]


def _beside(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points, each with its place `x` beside its number of processes: those of several lines stand beside one another, so that no
    whisker covers another. All of a line are moved by one factor, and together they take less than half the way to the next number."""
    counts = sorted({point["processes"] for point in points})
    gap = min((math.log2(high / low) for low, high in pairwise(counts)), default=1.0)
    lines = {panel: list(dict.fromkeys(point["line"] for point in points if point["panel"] == panel)) for panel in _panels_of(points)}
    placed = []
    for point in points:
        own = lines[point["panel"]]
        step = min(APART, MOST_APART * gap / len(own))
        shift = step * (own.index(point["line"]) - (len(own) - 1) / 2)
        placed.append({**point, "x": point["processes"] * 2**shift})
    return placed


def _panels_of(points: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(point["panel"] for point in points))


def _subtitle(analysis: Analysis, text: str) -> str:
    total = len(analysis.lines)
    return f"{text}; the first {MOST_LINES} of {total} lines" if total > MOST_LINES else text


def _ideal(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every baseline, from there to the largest number of processes that is measured against it: throughput in proportion."""
    found = []
    for part in dict.fromkeys((point["line"], point["part"]) for point in points):
        own = [point for point in points if (point["line"], point["part"]) == part]
        base = min((point for point in own if point["baseline"]), key=lambda point: point["processes"], default=None)
        last = max(point["processes"] for point in own)
        if base and last > base["processes"]:
            for processes in (base["processes"], last):
                found.append(
                    {
                        **base,
                        "kind": "ideal",
                        "processes": processes,
                        "x": base["x"] * processes / base["processes"],
                        "value": base["value"] * processes / base["processes"],
                        "low": None,
                        "high": None,
                    }
                )
    return found


def _layer(kind: str) -> Any:
    import altair as alt

    return alt.Chart().transform_filter(f"datum.kind == '{kind}'")


def _x(analysis: Analysis, points: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    counts = sorted({point["processes"] for point in points})
    places = [point["x"] for point in points]
    scale = alt.Scale(type="log", base=2, domain=[min(places) / 1.12, max(places) * 1.12], nice=False)
    return alt.X(
        "x:Q", title=analysis.processes, scale=scale, axis=alt.Axis(values=counts, format="d", grid=False, ticks=True, domain=True)
    )


def _measured(analysis: Analysis, points: Sequence[dict[str, Any]], y_axis: Any) -> list[Any]:
    """Line, whiskers and points, in the colours of the lines."""
    import altair as alt

    labels = list(dict.fromkeys(point["label"] for point in points))
    x_axis = _x(analysis, points)
    scheme = {} if len(labels) <= len(SERIES) else {"scheme": "tableau20"}
    legend = alt.Legend(title=None, orient="bottom", columns=legend_columns(labels), **wrapped_labels(labels))
    colour = alt.Color("label:N", sort=labels, scale=alt.Scale(domain=labels, **scheme), legend=legend)
    shape = alt.Shape("label:N", sort=labels, scale=alt.Scale(domain=labels, range=list(SHAPES)), legend=legend)
    base = _layer("measured").encode(x=x_axis, color=colour)
    return [
        base.mark_line(strokeWidth=2.2, clip=True).encode(y=y_axis, detail=PART),
        base.transform_filter("datum.low != null").mark_rule(strokeWidth=1.6).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_point(filled=True, size=62, opacity=1).encode(y=y_axis, shape=shape),
    ]


def log_scale(*panels: Sequence[float], own_per_panel: bool = False) -> dict[str, Any]:
    """Scale and axis of a logarithmic channel over the values of `panels`, ticks at 1, 2 and 5; panels with scales of their own choose
    their domain, from one power of ten to another where one of them would have next to none: of a single value."""
    import altair as alt

    values = [value for panel in panels for value in panel]
    low, high = min(values) / 1.15, max(values) * 1.15
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    coarse, fine = (
        [digit * 10.0**power for power in powers for digit in digits] for digits in ((1, 2, 5), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8))
    )
    if own_per_panel:
        scale = {"nice": True} if min(max(panel) / min(panel) for panel in panels) < NARROW else {"nice": False, "padding": 12}
        return {"scale": alt.Scale(type="log", **scale), "axis": alt.Axis(labelExpr=SHORT, values=coarse)}
    inside = [tick for tick in coarse if low <= tick <= high]
    if len(inside) < 4:
        inside = [tick for tick in fine if low <= tick <= high]
    if len(inside) < 3:
        inside = _even_ticks(low, high)
    return {"scale": alt.Scale(type="log", domain=[low, high], nice=False), "axis": alt.Axis(labelExpr=SHORT, values=inside)}


def _even_ticks(low: float, high: float) -> list[float]:
    """At least three, evenly apart: all values are nearly the same, or there is one, and between two round numbers of an axis."""
    power = 10.0 ** math.floor(math.log10(high - low))
    steps = (power / part for part in (1, 2, 5))
    return next(ticks for step in steps if len(ticks := [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]) >= 3)


def legend_columns(labels: Sequence[str]) -> int:
    """As many as fit below a chart."""
    longest = max(len(line) for label in labels for line in label_lines(label))
    return max(1, min(4, 66 // (longest + 6)))


def overview(analysis: Analysis) -> dict[str, Any]:
    """Throughput beside efficiency: one picture of a study."""
    parts = [throughput(analysis), efficiency(analysis)]
    shared = {key: parts[0][key] for key in ("$schema", "config", "usermeta")}
    datasets = {name: values for part in parts for name, values in part.get("datasets", {}).items()}
    panels = [{key: value for key, value in part.items() if key not in {*shared, "datasets"}} for part in parts]
    return {**shared, "datasets": datasets, "hconcat": panels, "spacing": 36}


def _panels(layers: Any, values: list[dict[str, Any]], title: dict[str, Any]) -> dict[str, Any]:
    import altair as alt

    data, parameters = alt.InlineData(values=values), alt.TitleParams(**title)
    panels = _panels_of([value for value in values if value["kind"] == "measured"])
    if len(panels) == 1:
        return finished(layers.properties(data=data, width=WIDTH, height=HEIGHT, title=parameters))
    small = layers.properties(width=WIDTH // 2, height=HEIGHT * 2 // 3)
    faceted = small.facet(facet=alt.Facet("panel:N", sort=panels, title=None), columns=PANEL_COLUMNS, data=data)
    return finished(faceted.resolve_scale(y="independent").resolve_axis(x="independent").properties(title=parameters))
