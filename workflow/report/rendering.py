"""Charts -> SVG and Vega-Lite JSON, one look for all, without a browser and without the network."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from workflow.report.style import GRID, INK, MUTED, SERIES

FONT: Final = "Arial, Helvetica, 'Liberation Sans', sans-serif"
WIDTH: Final = 430
HEIGHT: Final = 300
SEPARATOR: Final = " \N{MIDDLE DOT} "
"""Between the parts of a label."""
LABEL_WIDTH: Final = 48
_ID: Final = re.compile(r'\bid="([^"]*)"')
_ID_USE: Final = re.compile(r'(\bid="|url\(#)([^")]*)')
_BACKGROUND: Final = re.compile(r'<rect width="[\d.]+" height="[\d.]+" fill="white"\s*/>')

_TITLE: Final = {"anchor": "start", "fontSize": 15, "color": INK, "offset": 12}
_SUBTITLE: Final = {"subtitleFontSize": 11.5, "subtitleColor": MUTED, "subtitlePadding": 5}
_AXIS_COLOURS: Final = {"labelColor": MUTED, "titleColor": INK, "gridColor": GRID, "domainColor": MUTED, "tickColor": MUTED}
_AXIS_TEXT: Final = {"labelFontSize": 11.5, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8, "labelPadding": 4}
_LEGEND_TEXT: Final = {"labelFontSize": 11.5, "titleFontSize": 11.5, "titleFontWeight": "normal", "labelLimit": 0}
_HEADER: Final = {"labelColor": INK, "labelFontSize": 12.5, "labelFontWeight": "bold", "labelAnchor": "start", "title": None}
CONFIG: Final[dict[str, Any]] = {
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


def to_svg(spec: dict[str, Any], name: str) -> str:
    """The chart as an SVG of its own, on white. Nothing is loaded from anywhere: an address in the data is text.

    Ids are counted through the life of the process: here they get the chart's `name`, so that the same chart is the same bytes, and
    several charts can stand in one page.
    """
    import vl_convert

    svg = str(vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]))
    found = dict.fromkeys(_ID.findall(svg))
    names = {old: f"{name}-{index}" for index, old in enumerate(found)}
    return _ID_USE.sub(lambda match: match[1] + names.get(match[2], match[2]), svg)


def to_json(spec: dict[str, Any]) -> str:
    """The chart's Vega-Lite specification with its data."""
    return json.dumps(spec, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def inline(svg: str, title: str) -> str:
    """The SVG as part of a page: no background of its own, so that the page's colours apply; named for people who do not see it."""
    escaped = title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    body = _BACKGROUND.sub("", svg, count=1)
    return body.replace("<svg ", f'<svg role="img" aria-label="{escaped}" ', 1)


def wrapped_labels(labels: Sequence[str]) -> dict[str, Any]:
    """What makes an axis or a legend show its labels in lines of at most LABEL_WIDTH characters: nothing of them is cut off. Labels are
    text in the expression, whatever a study calls itself."""
    lines = {label: label_lines(label) for label in labels}
    if all(len(those) == 1 for those in lines.values()):
        return {"labelLimit": 0}
    known, shown = (json.dumps(list(values)) for values in (lines.keys(), lines.values()))
    return {"labelLimit": 0, "labelExpr": f"{shown}[indexof({known}, datum.label)]"}


def label_lines(label: str) -> list[str]:
    """A label as lines: broken between its parts, and a part that is longer than a line inside of it."""
    lines = [""]
    for part in label.split(SEPARATOR):
        joined = SEPARATOR.join(filter(None, (lines[-1], part)))
        if len(joined) <= LABEL_WIDTH:
            lines[-1] = joined
        else:
            lines += [part[start : start + LABEL_WIDTH] for start in range(0, len(part), LABEL_WIDTH)]
    return [line for line in lines if line] or [""]


def titled(text: str, subtitle: str | Sequence[str] = "") -> dict[str, Any]:
    """Title parameters; the subtitle says how to read the chart."""
    return {"text": text, **({"subtitle": subtitle} if subtitle else {})}


def finished(chart: Any) -> dict[str, Any]:
    """The chart as a plain value, with the look of all charts."""
    spec: dict[str, Any] = chart.properties(usermeta={"embedOptions": {"renderer": "svg"}}).to_dict(validate=False)
    return {**spec, "config": CONFIG}


def nothing(text: str, reason: str) -> dict[str, Any]:
    """A chart that says why it shows nothing: its file exists all the same."""
    import altair as alt

    note = alt.Chart(alt.InlineData(values=[{}])).mark_text(color=MUTED, fontSize=13).encode(text=alt.value(reason))
    return finished(note.properties(width=WIDTH, height=80, title=alt.TitleParams(text)))
