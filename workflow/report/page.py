"""report.html: one page with everything in it. No script runs, no style but its own applies, nothing is fetched from anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.derive import Comparison
from workflow.report.digits import joined, percent, with_error
from workflow.report.formats import CSP, html_table
from workflow.report.plots import line_label
from workflow.report.provenance import Block, provenance, reproduction, warnings
from workflow.report.rendering import inline
from workflow.report.statistics import Estimate
from workflow.report.style import STYLE
from workflow.report.table import Table
from workflow.report.tables import TABLES, baseline_text

TEMPLATE: Final = Path(__file__).with_name("page.html")
MOST_ROWS: Final = 200
PLOT_TITLES: Final = {
    "throughput": "Throughput over processes",
    "efficiency": "Efficiency over processes",
    "budget": "Seconds of the seven steps, per cell",
    "step_time": "Distribution of step times, per cell",
    "loss": "Training loss over samples seen",
}


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page. `plots` and `tables` are markup that we made; everything else is text and will be escaped."""

    id: str
    title: str
    text: str = ""
    plots: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()


def page(analysis: Analysis, svgs: Mapping[str, str]) -> str:
    """The page. `svgs`: name of a plot -> SVG. The same records give the same bytes: there is no clock in it."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    template = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True).from_string(TEMPLATE.read_text("utf-8"))
    return template.render(
        title=f"{analysis.study}: scaling report",
        lead=_lead(analysis),
        csp=CSP,
        style=Markup(STYLE),
        tiles=_tiles(analysis),
        findings=_findings(analysis),
        sections=[_marked(section) for section in _sections(analysis, svgs)],
        data=Markup(json_in_script(_data(TABLES["scaling"](analysis)))),
        footer=f"Made by Slipway from the records of {_many(analysis.summary.num_runs, 'run')}: see the rows of records.parquet.",
    )


def json_in_script(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sections(analysis: Analysis, svgs: Mapping[str, str]) -> list[Section]:
    def plots(*names: str) -> tuple[str, ...]:
        return tuple(inline(svgs[name], PLOT_TITLES[name]) for name in names if name in svgs)

    def tables(*names: str) -> tuple[str, ...]:
        return tuple(html_table(TABLES[name](analysis), MOST_ROWS) for name in names)

    found = warnings(analysis)
    sections = [
        Section(id="speedup", title="Speed-up", tables=tables("speedup"), plots=plots("throughput", "efficiency")),
        Section(id="failures", title="Failures", text=f"{analysis.summary.closing_line()}.", tables=tables("failures")),
        Section(id="times", title="Times", tables=tables("times"), plots=plots("step_time", "loss")),
        Section(id="budget", title="The seven steps", plots=plots("budget"), tables=tables("budget", "hours")),
        Section(id="dlbench", title="dlbench view", tables=tables("dlbench")),
        Section(id="provenance", title="Provenance", blocks=provenance(analysis)),
        Section(id="reproduce", title="How to reproduce", blocks=reproduction(analysis)),
    ]
    return [*sections[:2], Section(id="warnings", title="Warnings", blocks=found), *sections[2:]] if found else sections


def _marked(section: Section) -> dict[str, Any]:
    from markupsafe import Markup

    ours = {"plots": [Markup(plot) for plot in section.plots], "tables": [Markup(table) for table in section.tables]}
    return {"id": section.id, "title": section.title, "text": printable(section.text), "blocks": section.blocks, **ours}


def _lead(analysis: Analysis) -> str:
    starts = [start for start in analysis.frame["start"].drop_nulls().to_list() if start]
    ends = [end for end in analysis.frame["end"].drop_nulls().to_list() if end]
    days = sorted({moment[:10] for moment in (min(starts), max(ends))}) if starts and ends else []
    where = " and ".join(dict.fromkeys(source.site or source.label for source in analysis.sources))
    when = f", {' to '.join(days)}" if days else ""
    return printable(
        f"{_many(len(analysis.cells), 'cell')}, {_many(analysis.summary.num_runs, 'run')} on {where}{when}. "
        f"Baseline: {baseline_text(analysis)}."
    )


def _tiles(analysis: Analysis) -> list[dict[str, str]]:
    summary = analysis.summary
    best = _best(analysis)
    tiles = [
        {"value": f"{summary.ok} / {summary.num_runs}", "text": "runs measured", "kind": "good" if summary.ok == summary.num_runs else ""},
        {"value": str(summary.failed_rows), "text": "failed rows", "kind": "bad" if summary.failed_rows else ""},
    ]
    if summary.missing:
        tiles.append({"value": str(summary.missing), "text": f"{'run' if summary.missing == 1 else 'runs'} not run yet", "kind": ""})
    if best and best.speedup and best.efficiency:
        what = f"{_choice(analysis)}, on {_processes(analysis, best)}"
        tiles.append({"value": f"{best.speedup.value:.2f}\N{MULTIPLICATION SIGN}", "text": what, "kind": ""})
        tiles.append({"value": percent(best.efficiency.value, 0), "text": "its efficiency", "kind": ""})
    return tiles


def _findings(analysis: Analysis) -> list[str]:
    best = _best(analysis)
    if best is None or best.speedup is None or best.efficiency is None or best.partner is None:
        return ["There is no comparison with a baseline yet: a speed-up needs a measured run of the baseline and of another cell."]
    count = len(_measured(analysis))
    chosen = best.speedup.among(count)
    many = _processes(analysis, best)
    words = [
        f"{line_label(analysis, best)} on {many}: {joined(with_error(chosen))} times the throughput of {best.partner.num_processes} "
        f"(efficiency {percent(best.efficiency.value)}, {best.scaling} scaling)."
    ]
    if count > 1:
        wider = "; its 95 % confidence interval allows for that choice, and is wider than in the tables" if chosen.low is not None else ""
        words.append(f"This is the largest of {count} measured speed-ups{wider}.")
    words += _doubt(chosen)
    if best.marks:
        words.append("It carries marks: see the footnotes of the table.")
    return [" ".join(words), _behind(analysis)]


def _doubt(speedup: Estimate) -> list[str]:
    """What the interval says against a speed-up, if it does and there is one."""
    if speedup.low is None or speedup.high is None or speedup.low > 1:
        return []
    if speedup.high < 1:
        return ["The whole interval is below 1, so this is slower than the baseline."]
    return ["The interval includes 1, so this is no proof of a speed-up."]


def _behind(analysis: Analysis) -> str:
    """How many runs, jobs and sets of nodes stand behind a number: what all runs had in common is in no interval."""
    cells = [cell for cell in analysis.cells if cell.num_measured]
    runs, jobs, nodes = (
        _span(numbers) for numbers in zip(*((cell.num_measured, cell.num_allocations, cell.num_node_sets) for cell in cells), strict=True)
    )
    same = [cell for cell in cells if cell.num_measured > 1 and cell.num_node_sets == 1]
    where = "In every cell" if len(same) == len(cells) else f"In {len(same):,} of {len(cells):,} cells"
    doubt = f" {where} all runs were on the same nodes: these intervals say nothing about other nodes." if same else ""
    stand = ", ".join((_counted(runs, "measured run"), f"from {_counted(jobs, 'allocation')}", f"on {_counted(nodes, 'set')} of nodes"))
    return f"Behind a cell stand {stand}.{doubt}"


def _counted(span: str, noun: str) -> str:
    return f"{span} {noun}" if span == "1" else f"{span} {noun}s"


def _many(number: int, noun: str) -> str:
    return _counted(str(number), noun)


def _span(numbers: Sequence[int]) -> str:
    """`3`, or `1 to 3`."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _processes(analysis: Analysis, comparison: Comparison) -> str:
    """`1 process`, `8 GPUs`."""
    number = comparison.cell.num_processes
    return f"{number} {analysis.process_name if number == 1 else analysis.processes}"


def _choice(analysis: Analysis) -> str:
    count = len(_measured(analysis))
    return f"best of {count:,} speed-ups" if count > 1 else "speed-up"


def _measured(analysis: Analysis) -> list[Comparison]:
    """All measured speed-ups that the table and the plots show. A cell with the same partner on a weak and a strong line is one of them."""
    shown = [one for line in analysis.lines.values() for one in line if one.speedup and not one.is_baseline]
    return list({(id(one.cell), id(one.partner)): one for one in reversed(shown)}.values())[::-1]


def _best(analysis: Analysis) -> Comparison | None:
    """The largest measured speed-up; its marks are shown beside it. Its own interval says too much: it was chosen by its value."""
    return max(_measured(analysis), key=lambda comparison: comparison.speedup.value if comparison.speedup else 0.0, default=None)


def _data(table: Table) -> list[dict[str, Any]]:
    """Every comparison with its numbers, so that the page alone is enough to compute on."""
    keys = [column.key for column in table.columns]
    return [{key: value.raw for key, value in zip(keys, row, strict=True) if value.raw not in (None, "")} for row in table.rows[:2000]]
