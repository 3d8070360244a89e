"""Make the one page that a computing centre asks for with an application: how far a study scales, what it costs, how it was measured."""

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from base.humanize import some
from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.bounds import advice, is_anchor
from workflow.report.cells import MARKS, MEASURED
from workflow.report.files import EVIDENCE
from workflow.report.formats import CSP, STYLE, coded, html_table
from workflow.report.page import MAX_KINDS, describe_sample_sizes, describe_study, hardware, inline
from workflow.report.plots import GOOD_EFFICIENCY, overview, to_svg
from workflow.report.prediction import crossing
from workflow.report.prediction_table import HOUR_S, MILLION, line_models, prediction_words
from workflow.report.shared_columns import counted_shape, line_label, shape_words
from workflow.report.speedup import Comparison
from workflow.report.study_tables import baseline_text, hours, interval_text
from workflow.report.table_type import Table, estimates, numbers, percent, range_text, significant, value_of, words

MAX_LINES: Final = 3
MAX_ROWS: Final = 16
Section = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The contents of the page."""

    title: str
    leads: tuple[str, ...]
    table: Table
    plot: str
    """The plot, an SVG."""
    sections: tuple[Section, ...]


def knee(line: Sequence[Comparison]) -> list[float | None]:
    """Return where the efficiency falls below 75 %, and where the low and the high end of its interval do. None: not in this line."""
    curve = [(one.cell.num_processes, one.efficiency) for one in line if one.efficiency and one.partner is line[-1].partner]
    values = [[one.value, one.value if one.low is None else one.low, one.value if one.high is None else one.high] for _, one in curve]
    return [crossing([(n, three[place]) for (n, _), three in zip(curve, values, strict=True)], GOOD_EFFICIENCY) for place in range(3)]


def evidence(analysis: Analysis, samples: float = MILLION) -> Evidence:
    """Make the contents, of the first lines of the study. Hours are of a production run of so many samples or tokens."""
    lines = [found for line in analysis.lines.values() if (found := _measured(line)) and not is_anchor(found[0].cell)]
    shown_lines = lines[:MAX_LINES]
    kept = {id(one) for line in shown_lines for one in line}
    few = replace(analysis, comparisons=tuple(one for one in analysis.comparisons if id(one) in kept))
    named = [(line_label(analysis, line[-1]), line) for line in shown_lines]
    more = (f"The first {MAX_LINES} of {len(lines)} lines of the study are shown.",) if len(lines) > MAX_LINES else ()
    sections = {
        "How far it scales": (*[_knee_words(analysis, label, line) for label, line in named], *more),
        "What bounds it": tuple(advice(few)),
        "What more nodes would bring": (
            *prediction_words(few),
            *[
                f"{line_label(analysis, model.comparison, model.line)}: nothing is predicted: {model.why}."
                for model in line_models(few)
                if model.why
            ],
        ),
        "What it costs": tuple(_costs(analysis, named, samples)),
        "How it was measured": tuple(_method(analysis, shown_lines)),
    }
    return Evidence(
        title=printable(f"{analysis.study}: scaling evidence"),
        leads=tuple(filter(None, (describe_study(analysis), hardware(analysis)))),
        table=_table(analysis, [(label, one) for label, line in named for one in line]),
        plot=to_svg(overview(few), EVIDENCE),
        sections=tuple((title, tuple(map(printable, said))) for title, said in sections.items() if said),
    )


def _measured(line: Sequence[Comparison]) -> list[Comparison]:
    return sorted((one for one in line if one.cell.num_measured), key=lambda one: one.cell.shape)


def _table(analysis: Analysis, every: Sequence[tuple[str, Comparison]]) -> Table:
    found = every[:MAX_ROWS]
    more = f" The first {MAX_ROWS} of {len(every)} rows: table `scaling` has all." if len(every) > MAX_ROWS else ""
    comparisons = [one for _, one in found]
    cells = [one.cell for one in comparisons]
    columns = [
        words("line", "Series", [label for label, _ in found]),
        numbers("processes", analysis.processes[0].upper() + analysis.processes[1:], str, [cell.num_processes for cell in cells]),
        numbers("nodes", "Nodes", str, [cell.cell.nodes for cell in cells]),
        estimates("rate_per_s", analysis.rate_words.capitalize(), [cell.rate_per_s for cell in cells], [cell.measuring for cell in cells]),
        estimates("speedup", "Speed-up", [one.speedup for one in comparisons], [one.marks for one in comparisons]),
        numbers("efficiency", "Efficiency", partial(range_text, percent), [one.efficiency for one in comparisons], raw=value_of),
        words("runs", "Runs", [f"{cell.num_measured}/{cell.num_runs}" for cell in cells], number=True),
    ]
    return Table(
        name=EVIDENCE,
        title="Speed-up and efficiency",
        caption=f"Relative to {baseline_text(analysis)}. {interval_text(analysis)}.{more}",
        columns=tuple(columns),
        empty="No run was measured.",
    )


def _best(line: Sequence[Comparison]) -> Comparison:
    """Return the largest size whose efficiency is not below 75 %, or the smallest one."""
    good = [one for one in line if one.efficiency and one.efficiency.value >= GOOD_EFFICIENCY]
    return good[-1] if good else line[0]


def _knee_words(analysis: Analysis, label: str, line: Sequence[Comparison]) -> str:
    last, (about, low, high), level = line[-1], knee(line), percent(GOOD_EFFICIENCY, 0)
    if last.efficiency is None:
        return f"{label}: no efficiency at {shape_words(analysis, last.cell)}: {last.reason}."
    if about is None:
        doubt = f", but the lower end of its interval does, at {low:.3g}" if low is not None else ""
        return (
            f"{label}: the efficiency does not fall below {level} up to {last.cell.num_processes} {analysis.processes} "
            f"({range_text(percent, last.efficiency)}){doubt}."
        )
    first, until = f"{low or about:.3g}", f"not up to {last.cell.num_processes}" if high is None else f"{high:.3g}"
    ends = "" if first == until else f" [{first}, {until}]"
    return (
        f"{label}: the efficiency falls below {level} at about {about:.3g}{ends} {analysis.processes}. The largest measured size "
        f"that is not below is {shape_words(analysis, _best(line).cell)} ({range_text(percent, _best(line).efficiency)})."
    )


def _costs(analysis: Analysis, named: Sequence[tuple[str, list[Comparison]]], samples: float) -> Iterator[str]:
    key, hour_words = ("gpu_h", "GPU hours") if analysis.process_name == "GPU" else ("process_h", "process hours")
    used = next(column.values for column in hours(analysis).columns if column.key == key)
    yield f"The runs of this study took {significant(math.fsum(used))} {hour_words}."
    for label, line in named:
        cell = _best(line).cell
        if cell.rate_per_s is not None:
            took = samples / cell.rate_per_s.value / HOUR_S
            yield (
                f"{label}: {samples:,.15g} {cell.unit} take {significant(took)} h on {counted_shape(analysis, cell)}, "
                f"{significant(took * cell.num_processes)} {hour_words}. Evaluation, checkpoints and staging come on top."
            )


def _method(analysis: Analysis, lines: Sequence[Sequence[Comparison]]) -> Iterator[str]:
    cells = [one.cell for line in lines for one in line]
    if not cells:
        return
    software = sorted(set().union(*(cell.distinct["software"] for cell in cells)))
    yield f"Software: {some(software, MAX_KINDS, '; ')}. {analysis.shared}"
    rows = analysis.frame.filter(MEASURED)
    steps, windows = rows["num_measured_steps"], rows["window_s"]
    warmup = sorted({int((cell.cell.to_json()["steps"] or {}).get("warmup", 0)) for cell in cells})
    yield (
        f"A rate is what was done in the measured window over its wall time: {_span(steps.min(), steps.max())} steps, "
        f"{_span(windows.min(), windows.max())} s, after {_span(warmup[0], warmup[-1])} steps of warm-up, of the slowest process. "
        f"{describe_sample_sizes(analysis)}"
    )
    met = set().union(*(one.marks for line in lines for one in line))
    if met:
        yield f"Marks, which every table of the study explains: {', '.join(mark for mark in MARKS if mark in met)}."


def _span(low: Any, high: Any) -> str:
    first, last = (f"{value:,}" if isinstance(value, int) else significant(value) for value in (low, high))
    return first if first == last else f"{first} to {last}"


def to_html(found: Evidence) -> str:
    """Return the page as HTML, which fetches nothing and runs no script."""
    escape = html.escape
    parts = [
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{CSP}">',
        f"<title>{escape(found.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body><main class=sheet>\n<h1>{escape(found.title)}</h1>",
        *(f'<p class="lead">{escape(text)}</p>' for text in found.leads),
        html_table(found.table),
        f'<div class="plot">{inline(found.plot, "Throughput and efficiency over processes")}</div>',
    ]
    for title, said in found.sections:
        parts += [f"<h2>{escape(title)}</h2>\n<ul>", *(f"<li>{coded(text)}</li>" for text in said), "</ul>"]
    return "\n".join([*parts, "</main></body>\n</html>\n"])
