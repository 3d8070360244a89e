"""Make the one page that a computing centre asks for with an application: how a study scales, to where, what it costs, how it was measured.

The same content is an HTML page, and an SVG of one sheet of A4, which vl-convert makes a PDF of: it needs no browser. Other ways were
looked at (2026-11-27): Chromium prints such a page, but login nodes have none; WeasyPrint needs Pango, fpdf2 draws no SVG with text.
"""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from base.humanize import some
from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.bounds import advice, is_anchor
from workflow.report.cells import MARKS, MEASURED, MEASURING, CellResult
from workflow.report.derive import Comparison
from workflow.report.files import EVIDENCE
from workflow.report.formats import CSP, GRID, INK, MUTED, STYLE, html_table, shown
from workflow.report.keys import counted_shape, line_label, shape_words
from workflow.report.page import MOST_KINDS, behind, hardware, inline, lead
from workflow.report.plots import FONT, GOOD_EFFICIENCY, overview, to_svg
from workflow.report.prediction_table import HOUR_S, MILLION, LineModel, line_models, prediction_words, rows_of
from workflow.report.table import NONE, Table, estimate_text, numbers, percent, raised, significant, value_of, words
from workflow.report.tables import baseline_text, hours, interval_text

MOST_LINES: Final = 3
MOST_ROWS: Final = 16
MOST_SENTENCE_LINES: Final = 4
Section = tuple[str, tuple[str, ...]]


class Knee(NamedTuple):
    """The number of processes at which the efficiency falls below 75 %; None: it does not. `low`, `high`: the same of the ends of its
    interval."""

    processes: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The contents of the page."""

    title: str
    leads: tuple[str, ...]
    table: Table
    plot: str
    """The plot, an SVG."""
    sections: tuple[Section, ...]


def crossing(points: Sequence[tuple[int, float]], level: float = GOOD_EFFICIENCY) -> float | None:
    """Return where a curve of (processes, value), in the order of the processes, first falls below `level`: linear in log2 of them."""
    if points and points[0][1] < level:
        return float(points[0][0])
    for (before, above), (after, below) in pairwise(points):
        if below < level <= above:
            share = (above - level) / (above - below)
            return float(2 ** (math.log2(before) + share * math.log2(after / before)))
    return None


def knee(line: Sequence[Comparison]) -> Knee:
    """Return the knee of the comparisons with the baseline of the largest."""
    curve = [(one.cell.num_processes, one.efficiency) for one in line if one.efficiency and one.partner is line[-1].partner]
    ends = [
        crossing([(processes, value.value if end is None else end) for processes, value, end in points])
        for points in ([(n, e, getattr(e, name)) for n, e in curve] for name in ("value", "low", "high"))
    ]
    return Knee(*ends)


def evidence(analysis: Analysis, samples: float = MILLION) -> Evidence:
    """Make the contents, of the first lines of the study. Hours are of a production run of so many samples or tokens."""
    lines = [found for line in analysis.lines.values() if (found := _measured(line)) and not is_anchor(found[0].cell)]
    shown_lines = lines[:MOST_LINES]
    kept = {id(one) for line in shown_lines for one in line}
    few = replace(analysis, comparisons=tuple(one for one in analysis.comparisons if id(one) in kept))
    models = {id(model.comparison): model for model in line_models(few)}
    named = [(line_label(analysis, line[-1]), line, models.get(id(line[-1]))) for line in shown_lines]
    more = (f"The first {MOST_LINES} of {len(lines)} lines of the study are shown.",) if len(lines) > MOST_LINES else ()
    sections = {
        "How far it scales": (*[_knee_words(analysis, label, line) for label, line, _ in named], *more),
        "What bounds it": tuple(advice(few)),
        "What more nodes would bring": (
            *prediction_words(few),
            *[f"{label}: nothing is predicted: {model.why}." for label, _, model in named if model and model.why],
        ),
        "What it costs": tuple(_costs(analysis, named, samples)),
        "How it was measured": tuple(_method(analysis, shown_lines)),
    }
    return Evidence(
        title=printable(f"{analysis.study}: scaling evidence"),
        leads=tuple(filter(None, (lead(analysis), hardware(analysis)))),
        table=_table(analysis, [(label, one) for label, line, _ in named for one in line]),
        plot=to_svg(overview(few), EVIDENCE),
        sections=tuple((title, tuple(map(printable, said))) for title, said in sections.items() if said),
    )


def _measured(line: Sequence[Comparison]) -> list[Comparison]:
    return sorted((one for one in line if one.cell.num_measured), key=lambda one: one.cell.shape)


def _table(analysis: Analysis, every: Sequence[tuple[str, Comparison]]) -> Table:
    found = every[:MOST_ROWS]
    more = f" The first {MOST_ROWS} of {len(every)} rows: table `scaling` has all." if len(every) > MOST_ROWS else ""
    comparisons = [one for _, one in found]
    cells = [one.cell for one in comparisons]
    columns = [
        words("line", "Series", [label for label, _ in found]),
        numbers("processes", analysis.processes[0].upper() + analysis.processes[1:], str, [cell.num_processes for cell in cells]),
        numbers("nodes", "Nodes", str, [cell.cell.nodes for cell in cells]),
        numbers(
            "rate_per_s", analysis.rate_words.capitalize(), estimate_text, [cell.rate_per_s for cell in cells], _marks(cells), raw=value_of
        ),
        numbers(
            "speedup", "Speed-up", estimate_text, [one.speedup for one in comparisons], [one.marks for one in comparisons], raw=value_of
        ),
        numbers("efficiency", "Efficiency", _efficiency, comparisons, raw=lambda one: one.efficiency and one.efficiency.value),
        words("runs", "Runs", [f"{cell.num_measured}/{cell.num_runs}" for cell in cells], number=True),
    ]
    return Table(
        name=EVIDENCE,
        title="Speed-up and efficiency",
        caption=f"Relative to {baseline_text(analysis)}. {interval_text(analysis)}.{more}",
        columns=tuple(columns),
        empty="No run was measured.",
        reasons=analysis.reasons,
    )


def _marks(cells: Sequence[CellResult]) -> list[frozenset[str]]:
    return [cell.marks.intersection(MEASURING) for cell in cells]


def _efficiency(comparison: Comparison | None) -> str:
    one = comparison.efficiency if comparison else None
    if one is None:
        return NONE
    return percent(one.value) + ("" if one.low is None else f" [{percent(one.low)}, {percent(one.high)}]")


def _best(line: Sequence[Comparison]) -> Comparison:
    """Return the largest size whose efficiency is not below 75 %, or the smallest one."""
    good = [one for one in line if one.efficiency and one.efficiency.value >= GOOD_EFFICIENCY]
    return good[-1] if good else line[0]


def _knee_words(analysis: Analysis, label: str, line: Sequence[Comparison]) -> str:
    last, found, level = line[-1], knee(line), percent(GOOD_EFFICIENCY, 0)
    if last.efficiency is None:
        return f"{label}: no efficiency at {shape_words(analysis, last.cell)}: {last.reason}."
    if found.processes is None:
        doubt = f", but the lower end of its interval does, at {found.low:.3g}" if found.low is not None else ""
        return (
            f"{label}: the efficiency does not fall below {level} up to {last.cell.num_processes} {analysis.processes} "
            f"({_efficiency(last)}){doubt}."
        )
    about, low = f"{found.processes:.3g}", f"{found.low or found.processes:.3g}"
    high = f"not up to {last.cell.num_processes}" if found.high is None else f"{found.high:.3g}"
    ends = "" if low == high else f" [{low}, {high}]"
    return (
        f"{label}: the efficiency falls below {level} at about {about}{ends} {analysis.processes}. The largest measured size "
        f"that is not below is {shape_words(analysis, _best(line).cell)} ({_efficiency(_best(line))})."
    )


def _costs(analysis: Analysis, named: Sequence[tuple[str, list[Comparison], LineModel | None]], samples: float) -> Iterator[str]:
    used = {column.key: math.fsum(value or 0 for value in column.values) for column in hours(analysis).columns if column.key in COSTS}
    unit = analysis.process_name == "GPU"
    hour_words = "GPU hours" if unit else "process hours"
    yield f"The runs of this study took {significant(used['gpu_h' if unit else 'process_h'])} {hour_words}."
    for label, line, model in named:
        one = _best(line)
        rate = one.cell.rate_per_s
        if rate is None:
            continue
        took = samples / rate.value / HOUR_S
        ahead = next((row for row in rows_of([model]) if row.prediction), None) if model else None
        more = ""
        if ahead and ahead.prediction and ahead.processes:
            ends = [
                samples / each / HOUR_S * ahead.processes for each in (ahead.prediction.rate, ahead.prediction.high, ahead.prediction.low)
            ]
            more = (
                f"; on {ahead.processes}, predicted, {significant(ends[0] / ahead.processes)} h, {significant(ends[0])} "
                f"[{significant(ends[1])}, {significant(ends[2])}] {hour_words}"
            )
        yield (
            f"{label}: {samples:,.15g} {one.cell.unit} take {significant(took)} h on {counted_shape(analysis, one.cell)}, "
            f"{significant(took * one.cell.num_processes)} {hour_words}{more}. Evaluation, checkpoints and staging come on top."
        )


COSTS: Final = ("gpu_h", "process_h")


def _method(analysis: Analysis, lines: Sequence[Sequence[Comparison]]) -> Iterator[str]:
    cells = [one.cell for line in lines for one in line]
    if not cells:
        return
    software = sorted(set().union(*(cell.distinct["software"] for cell in cells)))
    yield f"Software: {some(software, MOST_KINDS, '; ')}. {analysis.shared}"
    rows = analysis.frame.filter(MEASURED)
    steps, windows = rows["num_measured_steps"], rows["window_s"]
    warmup = sorted({int((cell.cell.to_json()["steps"] or {}).get("warmup", 0)) for cell in cells})
    yield (
        f"A rate is what was done in the measured window over its wall time: {_span(steps.min(), steps.max())} steps, "
        f"{_span(windows.min(), windows.max())} s, after {_span(warmup[0], warmup[-1])} steps of warm-up, of the slowest process. "
        f"{behind(analysis)}"
    )
    met = set().union(*(one.marks for line in lines for one in line))
    if met:
        yield f"Marks, which every table of the study explains: {', '.join(mark for mark in MARKS if mark in met)}."


def _span(low: Any, high: Any) -> str:
    first, last = (f"{value:,}" if isinstance(value, int) else significant(value) for value in (low, high))
    return first if first == last else f"{first} to {last}"


# The two forms of the page.


WIDTH: Final = 595.0
HEIGHT: Final = 842.0
MARGIN: Final = 34.0
TEXT: Final = 7.2
WIDE: Final = 0.48
"""Mean width of a letter in sizes of it, rounded up."""
LEAST_PLOT: Final = 90.0
MOST_PLOT: Final = 230.0
BOLD: Final = ' font-weight="bold"'
FAINT: Final = f' fill="{MUTED}"'
_ROOT: Final = re.compile(r"<svg [^>]*?>")
_SIZES: Final = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


def to_html(found: Evidence) -> str:
    """Return the page as HTML, which fetches nothing and runs no script."""
    escape = html.escape
    parts = [
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{CSP}">',
        f"<title>{escape(found.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body><main>\n<h1>{escape(found.title)}</h1>",
        *(f'<p class="lead">{escape(text)}</p>' for text in found.leads),
        html_table(found.table),
        f'<div class="plot">{inline(found.plot, "Throughput and efficiency over processes")}</div>',
    ]
    for title, said in found.sections:
        parts += [f"<h2>{escape(title)}</h2>\n<ul>", *(f"<li>{escape(text)}</li>" for text in said), "</ul>"]
    return "\n".join([*parts, "</main></body>\n</html>\n"])


def to_sheet(found: Evidence) -> str:
    """Return one sheet of A4 as SVG. The plot takes what room is left; where there is too little, everything gets smaller."""
    before, y = _head(found)
    sections, length = _sections(found.sections)
    sizes = _SIZES.search(found.plot)
    width, height = (float(size) for size in sizes.groups()) if sizes else (1.0, 1.0)
    room = max(LEAST_PLOT, min(MOST_PLOT, HEIGHT - MARGIN - y - length))
    factor = min((WIDTH - 2 * MARGIN) / width, room / height)
    size = f'x="{MARGIN}" y="{y:.1f}" width="{width * factor:.1f}" height="{height * factor:.1f}" viewBox="0 0 {width} {height}"'
    plot = _ROOT.sub(f"<svg {size}>", found.plot, count=1)
    y += height * factor
    smaller = max(1.0, (y + length + MARGIN) / HEIGHT)
    view = f"{WIDTH * (1 - smaller) / 2:.1f} 0 {WIDTH * smaller:.1f} {HEIGHT * smaller:.1f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="{view}" font-family="{FONT}" fill="{INK}">'
        f'<rect x="{-WIDTH}" width="{3 * WIDTH}" height="{3 * HEIGHT}" fill="white"/>'
        f'{"".join(before)}{plot}<g transform="translate(0 {y:.1f})">{"".join(sections)}</g></svg>'
    )


def _head(found: Evidence) -> tuple[list[str], float]:
    """Draw title, leads and table; return them, and where they end."""
    drawn = [_text(found.title, MARGIN, MARGIN, BOLD, 15)]
    y = MARGIN + 3
    for lead_text in found.leads:
        lines, y = _paragraph(lead_text, y, FAINT)
        drawn += lines
    columns, rows, _ = shown(found.table)
    if not rows:
        lines, y = _paragraph(found.table.empty, y)
        return [*drawn, *lines], y + 8
    letters = found.table.letters
    texts = [[value.text + raised(sorted(letters[mark] for mark in value.marks)) for value in row] for row in rows]
    cells = [[column.title for column in columns], *texts]
    widths = [max(len(row[index]) for row in cells) + 2 for index in range(len(columns))]
    ends = [MARGIN + (WIDTH - 2 * MARGIN) * sum(widths[:index]) / sum(widths) for index in range(len(columns) + 1)]
    y += TEXT * 0.8
    for number, row in enumerate(cells):
        y += TEXT * 1.55
        for index, text in enumerate(row):
            right = columns[index].number
            drawn.append(_text(text, ends[index + right], y, BOLD * (number == 0) + ' text-anchor="end"' * right))
        drawn.append(f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y + 2.6:.1f}" y2="{y + 2.6:.1f}" stroke="{GRID}" stroke-width=".6"/>')
    lines, y = _paragraph(found.table.caption, y + 4, FAINT)
    return [*drawn, *lines], y + 8


def _sections(sections: Sequence[Section]) -> tuple[list[str], float]:
    """Draw the sections from 0 on; return them, and their height."""
    drawn, y = [], 0.0
    for title, said in sections:
        y += TEXT * 2.3
        drawn.append(_text(title, MARGIN, y, BOLD, 9.5))
        y += 1
        for text in said:
            lines, y = _paragraph(f"\N{BULLET} {text}", y)
            drawn += lines
    return drawn, y


def _paragraph(text: str, y: float, style: str = "") -> tuple[list[str], float]:
    lines = textwrap.wrap(text, int((WIDTH - 2 * MARGIN) / (TEXT * WIDE)))
    if len(lines) > MOST_SENTENCE_LINES:
        lines = [*lines[: MOST_SENTENCE_LINES - 1], f"{lines[MOST_SENTENCE_LINES - 1]} ..."]
    step = TEXT * 1.3
    return [_text(line, MARGIN, y + step * number, style) for number, line in enumerate(lines, 1)], y + step * len(lines)


def _text(text: str, x: float, y: float, style: str = "", size: float = TEXT) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{style}>{html.escape(text)}</text>'


def to_pdf(found: Evidence) -> bytes:
    """Return the sheet as PDF, of one page."""
    import vl_convert

    return bytes(vl_convert.svg_to_pdf(to_sheet(found)))
