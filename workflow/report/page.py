"""report.html: one page with everything in it. No script but ours runs, no style but its own applies, nothing is fetched from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base.logs import printable
from base.units import counted
from workflow.report.analysis import Analysis
from workflow.report.formats import CSP, html_table
from workflow.report.groups import failures, warnings
from workflow.report.head import findings, hardware, lead, tiles
from workflow.report.provenance import Block, provenance
from workflow.report.rendering import inline
from workflow.report.reproduce import reproduction
from workflow.report.runs import runs_table
from workflow.report.style import STYLE
from workflow.report.table import Table
from workflow.report.tables import TABLES

TEMPLATE: Final = Path(__file__).with_name("page.html")
SCRIPT: Final = Path(__file__).with_name("page.js").read_text("utf-8")
SCRIPT_SHA256: Final = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
MOST_ROWS: Final = 200
PLOT_TITLES: Final = {
    "throughput": "Throughput over processes",
    "efficiency": "Efficiency over processes",
    "budget": "Seconds of the steps of a run, per cell",
    "step_time": "Distribution of step times, per cell",
    "loss": "Training loss",
}


RUNS_TEXT: Final = (
    "Every run of the study. A number in a table above leads to the runs that it is made of; from there record, events and logs lie beside "
    "this page, in a copy of the results directory too."
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page. `plots` and `tables` are markup that we made; everything else is text and will be escaped."""

    id: str
    title: str
    text: str = ""
    plots: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()


PLACED: Final = ("speedup", "failures", "times", "budget", "hours", "utilisation", "dlbench", "frameworks", "framework-facts", "scaling")
"""Tables that have their place in a section, or are the page's data; the others stand in a section of their own."""


def page(analysis: Analysis, svgs: Mapping[str, str], page_dir: Path | None = None) -> str:
    """The page. `svgs`: name of a plot -> SVG; `page_dir`: where it will lie, for its links to files (None: in the first results
    directory). The same records give the same bytes: there is no clock in it."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    template = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True).from_string(TEMPLATE.read_text("utf-8"))
    return template.render(
        title=f"{analysis.study}: scaling report",
        lead=lead(analysis),
        hardware=hardware(analysis),
        csp=f"{CSP}; script-src 'sha256-{SCRIPT_SHA256}'",
        script=Markup(SCRIPT),
        style=Markup(STYLE),
        tiles=tiles(analysis),
        findings=findings(analysis),
        sections=[_marked(section) for section in _sections(analysis, svgs, page_dir)],
        data=Markup(json_in_script(_data(TABLES["scaling"](analysis)))),
        footer=f"Made by Slipway from the records of {counted(analysis.summary.num_runs, 'run')}: see the rows of records.parquet.",
    )


def json_in_script(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sections(analysis: Analysis, svgs: Mapping[str, str], page_dir: Path | None) -> list[Section]:
    failed, noted = failures(analysis), warnings(analysis)
    runs = runs_table(analysis, (failed.places, noted.places), page_dir)

    further = [name for name in TABLES if name not in PLACED]

    def plots(*names: str) -> tuple[str, ...]:
        return tuple(inline(svgs[name], PLOT_TITLES[name]) for name in names if name in svgs)

    def drawn(*tables: Table) -> tuple[str, ...]:
        return tuple(html_table(table, MOST_ROWS, runs.places) for table in tables)

    def tables(*names: str) -> tuple[str, ...]:
        return drawn(*(TABLES[name](analysis) for name in names))

    return [
        Section(id="speedup", title="Speed-up", tables=tables("speedup"), plots=plots("throughput", "efficiency")),
        Section(id="failures", title="Failures", text=f"{analysis.summary.closing_line()}.", tables=drawn(failed.table)),
        *([Section(id="warnings", title="Warnings", tables=drawn(noted.table))] if noted.table.rows else []),
        Section(id="times", title="Times", tables=tables("times"), plots=plots("step_time", "loss")),
        Section(id="budget", title="The steps of a run", plots=plots("budget"), tables=tables("budget", "hours", "utilisation")),
        Section(id="dlbench", title="dlbench view", tables=tables("dlbench", "frameworks")),
        Section(id="frameworks", title="Frameworks", tables=tables("framework-facts")),
        *([Section(id="further", title="Further tables", tables=tables(*further))] if further else []),
        Section(id="runs", title="Runs", text=RUNS_TEXT, tables=(runs.markup,)),
        Section(id="provenance", title="Provenance", blocks=provenance(analysis)),
        Section(id="reproduce", title="How to reproduce", blocks=reproduction(analysis)),
    ]


def _marked(section: Section) -> dict[str, Any]:
    from markupsafe import Markup

    ours = {"plots": [Markup(plot) for plot in section.plots], "tables": [Markup(table) for table in section.tables]}
    return {"id": section.id, "title": section.title, "text": printable(section.text), "blocks": section.blocks, **ours}


def _data(table: Table) -> list[dict[str, Any]]:
    """Every comparison with its numbers, so that the page alone is enough to compute on."""
    keys = [column.key for column in table.columns]
    return [{key: value.raw for key, value in zip(keys, row, strict=True) if value.raw not in (None, "")} for row in table.rows[:2000]]
