"""The table of all runs in the page: each with its cell in words, its nodes, its marks, and its record, events and logs.

It can be read as it is; page.js sorts and filters it. A number elsewhere leads to the name of a place (`cell-...`, `failure-1`), which a
row lists in `data-in`, and the first such row carries as an id: so the same link goes to the first of the rows without the script.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from base.logs import printable
from base.units import and_more
from workflow.report.analysis import Analysis
from workflow.report.cells import END, MEASURED
from workflow.report.digits import NONE, significant
from workflow.report.groups import RunKey
from workflow.report.labels import series_words
from workflow.report.leads import cell_place, links
from workflow.report.lint import MARKS, RUN_MARKS, marks_as_columns
from workflow.report.table import explained
from workflow.run.record.columns import UNREADABLE

MOST_DRAWN: Final = 500
MOST_HOSTS: Final = 64
RATE: Final = "Rate"
"""Stands for a column of each unit that the study's programs count."""
HEADS: Final = {
    "Run": "",
    "Files": "plain",
    "Cell": "",
    "Processes": "number",
    "End": "",
    RATE: "number",
    "Step p50 [ms]": "number",
    "Run [s]": "number",
    "Marks": "",
    "Nodes": "",
    "Began": "",
}
"""Title of a column -> how it is sorted; `plain`: it is not."""
TOOLS: Final = (
    '<div class="tools" id="runs-tools" role="search" aria-label="Runs" hidden><label>Filter '
    '<input type="search" id="runs-filter" placeholder="words: lenet, batch 8, 1 node, oom" autocomplete="off" spellcheck="false"></label> '
    "<output></output> <button type=button hidden>Show all</button></div>\n"
)
"""Shown by the script, since nothing else makes it work."""
_WANTED: Final = (
    *(
        "source",
        "run_id",
        "cell_id",
        "record",
        "attempt",
        "unit",
        "rate_per_s",
        "step_p50_s",
        "run_s",
        "start",
        "hosts",
        "framework_version",
    ),
)


@dataclass(frozen=True, kw_only=True)
class RunsTable:
    """Markup, and the names of the places in it."""

    markup: str
    places: frozenset[str]


def runs_table(analysis: Analysis, groups: Sequence[Mapping[RunKey, tuple[str, ...]]], page_dir: Path | None) -> RunsTable:
    """Every run of the study. `groups`: other places that lead to runs; `page_dir`: where the page will lie."""
    several = len(analysis.sources) > 1
    rates = [f"{unit.capitalize()}/s" for unit in analysis.units]
    heads = {name: kind for title, kind in HEADS.items() for name in (rates if title == RATE else [title])} | (
        {"Source": ""} if several else {}
    )
    link = links(analysis, page_dir)
    cells = {(cell.source, cell.cell_id): (_in_words(analysis, cell), cell.num_processes) for cell in analysis.cells}
    met: set[str] = set()
    rows = []
    for row in _rows(analysis):
        marks = [mark for mark in RUN_MARKS if row[mark]]
        places = _places(analysis, row, marks, groups)
        words, processes = cells.get((row["source"], row["cell_id"]), ("", None))
        values = (
            _name(row, link),
            _files(row, link),
            html.escape(words),
            NONE if processes is None else str(processes),
            html.escape(row["end_word"]),
            *[significant(row["rate_per_s"] if row["measured"] and row["unit"] == unit else None) for unit in analysis.units],
            significant(1000 * row["step_p50_s"] if row["measured"] and row["step_p50_s"] is not None else None),
            significant(row["run_s"]),
            ", ".join(marks),
            _hosts(row["hosts"]),
            _text((row["start"] or "")[:19].replace("T", " ")),
            *([_text(row["source"])] if several else []),
        )
        anchors = "".join(f'<span id="{html.escape(place)}"></span>' for place in places if place not in met)
        met.update(places)
        tags = [f'<th scope="row">{anchors}{values[0]}</th>', *(f"<td>{value}</td>" for value in values[1:])]
        rows.append(f'<tr data-in="{html.escape(" ".join(places))}">{"".join(tags)}</tr>')
    titles = "".join(f'<th scope="col"{f" data-sort={kind}" if kind else ""}>{html.escape(title)}</th>' for title, kind in heads.items())
    markup = (
        f'{TOOLS}<div class="scroll tall" role="region" tabindex="0" aria-label="All runs">'
        '<table id="all-runs">\n<caption>All runs</caption>\n'
        f"<thead><tr>{titles}</tr></thead>\n<tbody>\n" + "\n".join(rows[:MOST_DRAWN]) + f"\n</tbody></table></div>\n{_folded(rows)}"
        f'<p><button type="button" id="runs-more" hidden></button></p>\n{_legend(met, analysis.reasons)}'
    )
    return RunsTable(markup=markup, places=frozenset(met))


def _rows(analysis: Analysis) -> Iterator[dict[str, Any]]:
    frame = analysis.frame
    wanted = [pl.col(name) for name in _WANTED if name in frame.columns]
    return frame.select(*wanted, END.alias("end_word"), pl.col("status"), MEASURED.alias("measured"), *marks_as_columns()).iter_rows(
        named=True
    )


def _in_words(analysis: Analysis, cell: Any) -> str:
    """`lenet, batch 32, 2 nodes x 1`."""
    nodes, per_node = cell.keys["nodes"], cell.keys["gpus_per_node"]
    shape = f"{nodes} {'node' if nodes == 1 else 'nodes'} \N{MULTIPLICATION SIGN} {per_node}"
    return printable(", ".join([*series_words(cell, analysis.cell_names), f"batch {cell.keys['batch_size']}", shape]))


def _places(
    analysis: Analysis, row: Mapping[str, Any], marks: Sequence[str], groups: Sequence[Mapping[RunKey, tuple[str, ...]]]
) -> list[str]:
    own = [] if row["cell_id"] is None else [cell_place(analysis, row["source"], row["cell_id"])]
    other = [place for group in groups for place in group.get((row["source"], row["run_id"]), ())]
    return [*own, *other, *(f"mark-{mark}" for mark in marks)]


def _name(row: Mapping[str, Any], link: Callable[[str, Sequence[str]], str]) -> str:
    """The run, which leads to its record where there is one."""
    if row["record"] is None:
        return _text(row["run_id"])
    return f'<a href="{link(row["source"], ("runs", row["record"]))}">{_text(row["run_id"])}</a>'


def _files(row: Mapping[str, Any], link: Callable[[str, Sequence[str]], str]) -> str:
    """Record, events and logs of the attempt that counts. A rank that never started told no event."""
    if row["record"] is None:
        return ""
    found: dict[str, tuple[str, ...]] = {"record": ("runs", row["record"])}
    if row["status"] != UNREADABLE and row["attempt"]:
        attempt = ("runs", row["run_id"], "attempts", str(row["attempt"]))
        if row["framework_version"] is not None:
            found["events"] = (*attempt, "events-0.jsonl")
        found["logs"] = (*attempt, "logs", "")
        found["all"] = (*attempt, "")
    return " ".join(f'<a href="{link(row["source"], names)}">{word}</a>' for word, names in found.items())


def _hosts(hosts: str | None) -> str:
    names = [name for name in (hosts or "").split(",") if name]
    return _text(f"{', '.join(names[:MOST_HOSTS])} {and_more(len(names), MOST_HOSTS)}".rstrip())


def _text(value: str) -> str:
    return html.escape(printable(value))


def _folded(rows: Sequence[str]) -> str:
    """The rows that are not drawn before they are asked for: a browser takes a minute to lay out 20,000, and a second to read them."""
    if len(rows) <= MOST_DRAWN:
        return ""
    note = f"{MOST_DRAWN} of {len(rows):,} runs are shown; where scripts run, the others are folded here, and else in records.parquet."
    rest = "\n".join(rows[MOST_DRAWN:])
    return f'<p class="note">{note}</p><template id="runs-folded"><table><tbody>\n{rest}\n</tbody></table></template>\n'


def _legend(met: set[str], reasons: Mapping[str, str]) -> str:
    notes = [
        f'<li><a href="#mark-{mark}">{mark}</a>: {html.escape(explained(mark, reasons))}</li>' for mark in MARKS if f"mark-{mark}" in met
    ]
    return f'<ul class="notes">{"".join(notes)}</ul>' if notes else ""
