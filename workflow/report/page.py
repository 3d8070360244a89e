"""Write report.html, one page with everything in it. It runs no script but ours and fetches nothing."""

import base64
import hashlib
import html
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from base.humanize import and_more, counted, some
from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.bounds import advice
from workflow.report.cells import END, MARKS, MEASURED, RUN_MARKS, Estimate, marks_as_columns, series_words
from workflow.report.cost_table import has_cost
from workflow.report.formats import CSP, EMPTY, STYLE, Explained, coded, footnotes, html_table, unbroken
from workflow.report.framework_tables import FACTS, PRECISION, in_parts
from workflow.report.layers_table import profiles, step_of
from workflow.report.prediction_table import line_models, prediction_words, rows_of
from workflow.report.profile.profile import advice_on, described
from workflow.report.provenance import Block, provenance, reproduction
from workflow.report.shared_columns import cell_anchor, counted_shape, file_links, line_label, not_compared, sentence, shared_machine_note
from workflow.report.speedup import Comparison
from workflow.report.study_tables import RUN_AGAIN, TABLES, baseline_text, last_lines, reason_of, short
from workflow.report.table_type import (
    LETTERS,
    NONE,
    Column,
    Table,
    estimate_text,
    numbers,
    percent,
    raised,
    significant,
    with_error,
    words,
)
from workflow.report.time_to_accuracy import TIME_TO_ACCURACY, has_curves
from workflow.run.record.parquet_columns import MISSING, UNREADABLE

# Failures and warnings that many runs have in common, each printed once.


MAX_NAMES: Final = 6
MAX_WARNINGS: Final = 100
RunKey = tuple[str, str]
"""Label of the source, run."""
_PROGRAMS: Final = re.compile(r" \([^()]*\)$")
"""The programs of others at the end of what a run says of a busy machine."""
_VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|\d+")


Places = dict[RunKey, list[str]]
"""The names of the places in the page that lead to each run."""


def failures(analysis: Analysis) -> tuple[Table, Places]:
    """Group the runs without a measurement: those that failed alike, but for numbers and the names of run and host, share a row."""
    rows = analysis.frame.filter(~MEASURED).with_columns(END.alias("end_word")).sort(pl.col("status") == MISSING, maintain_order=True)
    alike: dict[tuple[str, Any, str, str], list[Any]] = {}
    for row in rows.iter_rows(named=True):
        end = row["failed_signal"] or row["failed_exit_code"]
        names = [row["run_id"], row["cell_id"], row["failed_host"]]
        texts = (_without(names, reason_of(row) or ""), _without(names, last_lines(row["failed_last_lines"])))
        alike.setdefault((row["end_word"], end, *texts), []).append(row)
    groups = list(alike.values())
    runs = [[(row["source"], row["run_id"]) for row in group] for group in groups]

    def each(name: str) -> list[str]:
        return [_some(row[name] for row in group) for group in groups]

    columns = (
        words("end", "End", [key[0] for key in alike]),
        words("reason", "Reason", [short(reason_of(group[0])) for group in groups], wrap=True),
        words("last_lines", "Last lines", [short(last_lines(group[0]["failed_last_lines"])) for group in groups], wrap=True),
        words("ranks", "Rank", each("failed_rank")),
        words("hosts", "Host", map(short, each("failed_host")), wrap=True),
        words("exit", "Exit", [key[1] for key in alike]),
        _which(runs),
    )
    return _groups(
        "failure",
        runs,
        Table(
            name="failures",
            title="Runs without a measurement",
            caption="Runs that failed in the same way, except for numbers and the names of runs and hosts, share one row, which has the "
            f"words of the first. {RUN_AGAIN}",
            columns=columns,
            empty="Every run of the study was measured.",
        ),
    )


def warnings(analysis: Analysis) -> tuple[Table, Places]:
    """Group the warnings of the runs, each kind once: they may differ in numbers, and in the names of nodes and of others' programs."""
    kinds: dict[str, tuple[str, dict[RunKey, None]]] = {}
    noted = analysis.frame.select("source", "run_id", "warnings", "hosts").filter(pl.col("warnings").is_not_null())
    for source, run_id, texts, hosts in noted.iter_rows():
        for text in texts:
            kinds.setdefault(_kind(text, set((hosts or "").split(","))), (text, {}))[1][source, run_id] = None
    shown = list(kinds.values())[:MAX_WARNINGS]
    groups = [list(runs) for _, runs in shown]
    more = f"; the first {MAX_WARNINGS} of {len(kinds)}" if len(kinds) > MAX_WARNINGS else ""
    return _groups(
        "warning",
        groups,
        Table(
            name="warnings",
            title="What the runs themselves noted",
            caption="Each kind of thing once, in the words of the first of the runs that said so: others may have had other numbers, nodes "
            f"and programs{more}.",
            columns=(_which(groups), words("warning", "What they noted", [text for text, _ in shown], wrap=True)),
            empty="No run noted anything.",
        ),
    )


def _kind(text: str, hosts: Collection[str]) -> str:
    """Return a warning without the nodes that it begins with, the programs that it ends with, and its numbers."""
    names, _, rest = text.partition(": ")
    words = rest if rest and set(names.split(", ")) <= set(hosts) else text
    return _VARYING.sub("0", _PROGRAMS.sub("", words))


def _groups(kind: str, groups: Sequence[Sequence[RunKey]], table: Table) -> tuple[Table, Places]:
    places: Places = {}
    for index, runs in enumerate(groups, 1):
        for run in runs:
            places.setdefault(run, []).append(f"{kind}-{index}")
    sizes = numbers("runs", "Runs", str, [*map(len, groups)], links=[f"{kind}-{index}" for index in range(1, len(groups) + 1)])
    return replace(table, columns=(sizes, *table.columns)), places


def _which(groups: Sequence[Sequence[RunKey]]) -> Column:
    return words("which", "Which", [some([run_id for _, run_id in runs], MAX_NAMES, "\n") for runs in groups], wrap=True)


def _some(values: Iterable[Any]) -> str:
    return some(list(dict.fromkeys(str(value) for value in values if value is not None)), MAX_NAMES)


def _without(names: Iterable[str | None], words: str) -> str:
    for name in names:
        words = words.replace(name, "") if name else words
    return _VARYING.sub("0", words)


# The head of the page: what was measured, on what, how much of it, and the result.


MAX_KINDS: Final = 3


def describe_study(analysis: Analysis) -> str:
    """Describe cells, runs, sites, days and baseline."""
    starts = [start for start in analysis.frame["start"].drop_nulls().to_list() if start]
    ends = [end for end in analysis.frame["end"].drop_nulls().to_list() if end]
    days = sorted({moment[:10] for moment in (min(starts), max(ends))}) if starts and ends else []
    sites = list(dict.fromkeys(source.site or source.label for source in analysis.sources))
    when = f", {' to '.join(days)}" if days else ""
    return printable(
        f"{counted(len(analysis.cells), 'cell')}, {counted(analysis.summary.num_runs, 'run')}, "
        f"site{'s' * (len(sites) > 1)} {' and '.join(sites)}{when}. Baseline: {baseline_text(analysis)}."
    )


def hardware(analysis: Analysis) -> str:
    """Describe the machines of the study, by its records."""
    hosts = {host for hosts in analysis.frame["hosts"].drop_nulls().unique().to_list() for host in hosts.split(",")}
    kinds = sorted({kind for text in analysis.frame["machine"].drop_nulls().unique().to_list() for kind in text.split(" + ")})
    if not hosts or not kinds:
        return ""
    shown = f"{'; '.join(kinds[:MAX_KINDS])} {and_more(len(kinds), MAX_KINDS, 'kinds')}".rstrip()
    each = "each " if len(hosts) > 1 and len(kinds) == 1 else ""
    return printable(sentence(f"Measured on {counted(len(hosts), 'host')}: {each}{shown}", shared_machine_note(analysis)))


class Tile(NamedTuple):
    """A number at the head of the page. `to`: the place that it leads to; `interval`: what is known of it beside the number."""

    value: str
    text: str
    to: str
    kind: str = ""
    interval: str = ""


def tiles(analysis: Analysis) -> list[Tile]:
    """Select the best speed-up, and count the runs that were measured, failed or are missing."""
    summary = analysis.summary
    best = _best(analysis)
    found = []
    if best and best.speedup and best.efficiency:
        count = len(_measured(analysis))
        speedup, efficiency = best.speedup.among(count), best.efficiency.among(count)
        kind = "unsure" if speedup.low is None or speedup.high is None or speedup.low <= 1 <= speedup.high else ""
        what = f"{_speedup_phrase(analysis)}: {_compared_shapes(analysis, best)}"
        to = cell_anchor(analysis, best.cell.source, best.cell.cell_id)
        found += [
            Tile(f"{speedup.value:.2f}\N{MULTIPLICATION SIGN}", what, to, kind, _interval(speedup, significant)),
            Tile(percent(efficiency.value, 0), "its efficiency", to, kind, _interval(efficiency, partial(percent, decimals=0))),
        ]
    failed_place = "failures" if summary.failed_rows or summary.missing else "runs"
    found += [
        Tile(f"{summary.ok} / {summary.num_runs}", "runs measured", "runs", "good" if summary.ok == summary.num_runs else ""),
        Tile(str(summary.failed_rows), "failed rows", failed_place, "bad" if summary.failed_rows else ""),
    ]
    if summary.missing:
        found.append(Tile(str(summary.missing), f"{'run' if summary.missing == 1 else 'runs'} not run yet", "failures"))
    return found


def _interval(estimate: Estimate, show: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return f"no interval: {counted(estimate.n, 'run')} of a cell"
    unsure = ": includes 1" if show is significant and estimate.low <= 1 <= estimate.high else ""
    return f"95 % interval {show(estimate.low)} to {show(estimate.high)}{unsure}"


def findings(analysis: Analysis, letters: Mapping[str, str]) -> list[str]:
    """Describe the best speed-up with all that speaks against it, and how many runs stand behind a cell."""
    best = _best(analysis)
    if best is None or best.speedup is None or best.efficiency is None or best.partner is None:
        return ["There is no comparison with a baseline yet: a speed-up needs a measured run of the baseline and of another cell."]
    count = len(_measured(analysis))
    chosen = best.speedup.among(count)
    value, error = with_error(chosen)
    shown, unsure = (value, f"; {error}" if error else "") if chosen.low is None else (estimate_text(chosen), "")
    words = [
        f"{line_label(analysis, best)} on {counted_shape(analysis, best.cell)}: {shown} times the throughput of "
        f"{counted_shape(analysis, best.partner)} (efficiency {percent(best.efficiency.value)}, {best.scaling} scaling{unsure})."
    ]
    if count > 1:
        wider = "; its 95 % confidence interval allows for that choice, and is wider than in the tables" if chosen.low is not None else ""
        words.append(f"This is the largest of {count} measured speed-ups{wider}.")
    words += _significance_note(chosen)
    if best.marks:
        words.append(f"It has the marks {_named(best.marks, letters)}: see the footnotes of the table.")
    of_cell = (pl.col("source") == best.cell.source) & (pl.col("cell_id") == best.cell.cell_id)
    words.append(sentence(not_compared(analysis.frame.filter(of_cell))))
    return [" ".join(filter(None, words)), describe_sample_sizes(analysis)]


def _named(marks: Collection[str], letters: Mapping[str, str]) -> str:
    """Name marks as their footnotes do, each with its letter."""
    return ", ".join(f"{mark}{raised(letters.get(mark, ''))}" for mark in MARKS if mark in marks)


def _significance_note(speedup: Estimate) -> list[str]:
    if speedup.low is None or speedup.high is None or speedup.low > 1:
        return []
    if speedup.high < 1:
        return ["The whole interval is below 1, so this is slower than the baseline."]
    return ["The interval includes 1, so this is no proof of a speed-up."]


def describe_sample_sizes(analysis: Analysis) -> str:
    """Describe how many runs, jobs and sets of nodes a number comes from: what all runs had in common is in no interval."""
    cells = [cell for cell in analysis.cells if cell.num_measured]
    runs, jobs, nodes = (
        _span(numbers) for numbers in zip(*((cell.num_measured, cell.num_allocations, cell.num_node_sets) for cell in cells), strict=True)
    )
    several = [cell for cell in cells if cell.num_measured > 1]
    same = [cell for cell in several if cell.num_node_sets == 1]
    where = f"{len(same):,} of the {counted(len(several), 'cell')} with several measured runs"
    doubt = f" In {where} all runs were on the same nodes: these intervals say nothing about other nodes." if same else ""
    stand = ", ".join((_counted(runs, "measured run"), f"from {_counted(jobs, 'allocation')}", f"on {_counted(nodes, 'set')} of nodes"))
    return f"Behind a cell {'stands' if runs == '1' else 'stand'} {stand}.{doubt}"


def _counted(span: str, noun: str) -> str:
    return f"{span} {noun}" if span == "1" else f"{span} {noun}s"


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _compared_shapes(analysis: Analysis, comparison: Comparison) -> str:
    partner = counted_shape(analysis, comparison.partner) if comparison.partner else "nothing"
    return f"{counted_shape(analysis, comparison.cell)} against {partner}"


def _speedup_phrase(analysis: Analysis) -> str:
    count = len(_measured(analysis))
    return f"best of {count:,} speed-ups" if count > 1 else "speed-up"


def _measured(analysis: Analysis) -> list[Comparison]:
    """Return all measured speed-ups; a cell with the same partner on a weak and a strong line is one of them."""
    shown = [one for line in analysis.lines.values() for one in line if one.speedup and not one.is_baseline]
    return list({(id(one.cell), id(one.partner)): one for one in reversed(shown)}.values())[::-1]


def _best(analysis: Analysis) -> Comparison | None:
    """Return the largest measured speed-up. Its own interval is too narrow: it was chosen by its value."""
    return max(_measured(analysis), key=lambda comparison: comparison.speedup.value if comparison.speedup else 0.0, default=None)


# The table of all runs: cell, nodes, marks, and links to record, events and logs.
#
# It can be read as it is; page.js sorts and filters it. A number elsewhere leads to the name of a place (`cell-...`, `failure-1`), which a
# row lists in `data-in`, and the first such row carries as an id: so the same link goes to the first of the rows without the script.


MAX_DRAWN: Final = 500
MAX_HOSTS: Final = 64
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
_RUN_COLUMNS: Final = (
    *("source", "run_id", "cell_id", "record", "attempt", "status", "unit", "rate_per_s", "step_p50_s", "run_s", "start", "hosts"),
    "framework_version",
)


def places_of(analysis: Analysis, *groups: Places) -> list[list[str]]:
    """Return for each run the names of the places that lead to it: of its cell, its marks, and of `groups`."""
    rows = analysis.frame.select("source", "run_id", "cell_id", *marks_as_columns()).iter_rows(named=True)
    return [
        [
            cell_anchor(analysis, row["source"], row["cell_id"]),
            *[place for group in groups for place in group.get((row["source"], row["run_id"]), ())],
            *[f"mark-{mark}" for mark in RUN_MARKS if row[mark]],
        ]
        for row in rows
    ]


def runs_table(analysis: Analysis, places: Sequence[Sequence[str]], letters: Mapping[str, str], page_dir: Path | None) -> str:
    """Build the table of every run. `places`: those that lead to each; `page_dir`: where the page will lie."""
    several = len(analysis.sources) > 1
    rates = [f"{unit.capitalize()}/s" for unit in analysis.units]
    heads = {name: kind for title, kind in HEADS.items() for name in (rates if title == RATE else [title])} | (
        {"Source": ""} if several else {}
    )
    link = file_links(analysis, page_dir)
    cells = {(cell.source, cell.cell_id): (_in_words(analysis, cell), cell.num_processes) for cell in analysis.cells}
    met: set[str] = set()
    rows = []
    every = analysis.frame.select(*_RUN_COLUMNS, END.alias("end_word"), MEASURED.alias("measured"))
    for row, own in zip(every.iter_rows(named=True), places, strict=True):
        marks = [place.removeprefix("mark-") for place in own if place.startswith("mark-")]
        words, processes = cells.get((row["source"], row["cell_id"]), ("", None))
        values = (
            _text(row["run_id"]),
            _files(row, link),
            html.escape(words),
            NONE if processes is None else str(processes),
            html.escape(row["end_word"]),
            *[significant(row["rate_per_s"] if row["measured"] and row["unit"] == unit else None) for unit in analysis.units],
            significant(1000 * row["step_p50_s"] if row["measured"] and row["step_p50_s"] is not None else None),
            significant(row["run_s"]),
            ", ".join(f"{mark}<sup>{letters[mark]}</sup>" for mark in marks),
            _hosts(row["hosts"]),
            _text((row["start"] or "")[:19].replace("T", " ")),
            *([_text(row["source"])] if several else []),
        )
        anchors = "".join(f'<span id="{html.escape(place)}"></span>' for place in own if place not in met)
        met.update(own)
        tags = [f'<th scope="row">{anchors}{values[0]}</th>', *(f"<td>{value}</td>" for value in values[1:])]
        rows.append(f'<tr data-in="{html.escape(" ".join(own))}">{"".join(tags)}</tr>')
    titles = "".join(f'<th scope="col"{f" data-sort={kind}" if kind else ""}>{html.escape(title)}</th>' for title, kind in heads.items())
    return (
        f'{TOOLS}<div class="scroll tall" role="region" tabindex="0" aria-label="All runs">'
        '<table id="all-runs">\n<caption>All runs</caption>\n'
        f"<thead><tr>{titles}</tr></thead>\n<tbody>\n" + "\n".join(rows[:MAX_DRAWN]) + f"\n</tbody></table></div>\n{_folded(rows)}"
        '<p><button type="button" id="runs-more" hidden></button></p>\n'
    )


def _in_words(analysis: Analysis, cell: Any) -> str:
    nodes, per_node = cell.cell.nodes, cell.cell.gpus_per_node
    shape = f"{nodes} {'node' if nodes == 1 else 'nodes'} \N{MULTIPLICATION SIGN} {per_node}"
    return printable(", ".join([*series_words(cell, analysis.cell_names), f"batch {cell.cell.batch_size}", shape]))


def _files(row: Mapping[str, Any], link: Callable[[str, Sequence[str]], str]) -> str:
    """Link record, events and logs of the attempt that counts. A rank that never started wrote no event."""
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
    return _text(f"{', '.join(names[:MAX_HOSTS])} {and_more(len(names), MAX_HOSTS)}".rstrip())


def _text(value: str) -> str:
    return html.escape(printable(value))


def _folded(rows: Sequence[str]) -> str:
    """Fold the rows that are not drawn before they are asked for: a browser needs a minute to lay out 20,000, a second to read them."""
    if len(rows) <= MAX_DRAWN:
        return ""
    note = f"{MAX_DRAWN} of {len(rows):,} runs are shown; where scripts run, the others are folded here, and else in records.parquet."
    rest = "\n".join(rows[MAX_DRAWN:])
    return f'<p class="note">{note}</p><template id="runs-folded"><table><tbody>\n{rest}\n</tbody></table></template>\n'


_BACKGROUND: Final = re.compile(r'<rect width="[\d.]+" height="[\d.]+" fill="white"\s*/>')
_DEFAULTS: Final = re.compile(r' font-family="[^"]*"| opacity="1"| stroke-miterlimit="10"|<path class="foreground"[^>]* display="none"/>')
"""What an SVG of its own needs, or what has no effect: a fifth of it. The page's style sheet names the font."""
_MARK: Final = re.compile(r'<path aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="\w+" ([^>]*)/>')
TEMPLATE: Final = Path(__file__).with_name("page.html")
SCRIPT: Final = Path(__file__).with_name("page.js").read_text("utf-8")
SCRIPT_SHA256: Final = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
MAX_ROWS: Final = 200
MAX_ITEMS: Final = 6
"""Sentences of a list before the others are folded."""
PLOT_TITLES: Final = {
    "throughput": "Throughput over processes",
    "efficiency": "Efficiency over processes",
    "budget": "Seconds of the steps of a run, per cell",
    "step_parts": "Parts of a step, per cell",
    "layers": "What a traced step is made of, per cell",
    "step_time": "Distribution of step times, per cell",
    "loss": "Training loss",
    "accuracy": "Accuracy over training time",
    "timeline": "Runs over time",
}


RUNS_TEXT: Final = (
    "Every run of the study. A number in a table above leads to the runs that it is made of. From a run, links lead to its record, events "
    "and logs, also in a copy of the results directory."
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page. `plots` are our own markup; everything else is text and will be escaped."""

    id: str
    title: str
    text: str = ""
    items: Sequence[str] = ()
    """Sentences of a list."""
    plots: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: bool = False
    """Each table opens when it is asked for."""
    blocks: tuple[Block, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return True for a section that shows nothing."""
        return not (self.text or self.items or self.plots or self.blocks or any(table.num_rows for table in self.tables))


def page(analysis: Analysis, svgs: Mapping[str, str], page_dir: Path | None = None) -> str:
    """Render the page; `svgs` by plot name, `page_dir` as in `file_links`. The same records give the same bytes: it holds no clock."""
    from jinja2 import Environment, StrictUndefined

    (failed, of_failures), (noted, of_warnings) = failures(analysis), warnings(analysis)
    places = places_of(analysis, of_failures, of_warnings)
    anchors = frozenset(chain(*places))
    sections = [section for section in _sections(analysis, svgs, failed, noted) if not section.is_empty]
    used = set().union(*(table.letters for section in sections for table in section.tables))
    marks = [mark for mark in MARKS if mark in used or f"mark-{mark}" in anchors]
    known = Explained(dict(zip(marks, LETTERS, strict=False)))
    leads = [text for text in map(known.new, (describe_study(analysis), hardware(analysis))) if text]
    if analysis.shared:
        leads.append(known.new(f"{analysis.shared}.").replace("All rows:", "The same in all cells:"))
    drawn = [(section, _markup(section, anchors, known)) for section in sections]
    notes = [(mark, known.new(MARKS[mark])) for mark in marks if f"mark-{mark}" in anchors]
    of_runs = runs_table(analysis, places, known.letters, page_dir) + footnotes(notes, known.letters, anchors)
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters |= {"unbroken": unbroken, "coded": coded}
    return environment.from_string(TEMPLATE.read_text("utf-8")).render(
        title=f"{analysis.study}: scaling report",
        leads=leads,
        csp=f"{CSP}; script-src 'sha256-{SCRIPT_SHA256}'",
        script=SCRIPT,
        style=STYLE,
        tiles=tiles(analysis),
        findings=findings(analysis, known.letters),
        most_items=MAX_ITEMS,
        sections=drawn,
        runs=of_runs,
        footer=f"Made by Slipway from the records of {counted(analysis.summary.num_runs, 'run')}: see the rows of records.parquet.",
    )


def inline(svg: str, title: str) -> str:
    """Make the SVG a part of a page: without background, so that the page's colours apply; named for screen readers, and with the words of
    each mark under the pointer."""
    body = _MARK.sub(r'<path role="graphics-symbol" \2><title>\1</title></path>', _BACKGROUND.sub("", _DEFAULTS.sub("", svg), count=1))
    return body.replace("<svg ", f'<svg role="group" aria-label="{html.escape(title)}" ', 1)


def _markup(section: Section, anchors: Collection[str], known: Explained) -> str:
    drawn = [html_table(table, MAX_ROWS, anchors, known) for table in section.tables]
    if section.folded:
        heads = [f"{html.escape(table.title)}, {counted(table.num_rows, 'row')}" for table in section.tables]
        drawn = [f"<details><summary>{head}</summary>{one}</details>" for head, one in zip(heads, drawn, strict=True)]
    return "\n".join(drawn)


def _sections(analysis: Analysis, svgs: Mapping[str, str], failed: Table, noted: Table) -> Iterator[Section]:
    """Yield the chapters of the page, without empty ones and without those that another chapter repeats."""

    def plots(*names: str) -> tuple[str, ...]:
        return tuple(inline(svgs[name], PLOT_TITLES[name]) for name in names if name in svgs and f'aria-label="{EMPTY}' not in svgs[name])

    def tables(*names: str) -> tuple[Table, ...]:
        return tuple(_without_one_reason(table) for name in names if (table := TABLES[name](analysis)).num_rows)

    several_frameworks = len({cell.cell.framework for cell in analysis.cells}) > 1
    yield Section(id="speedup", title="Speed-up", tables=(TABLES["speedup"](analysis),), plots=plots("throughput", "efficiency"))
    if bounded := tables("bounds"):
        yield Section(id="bounds", title="What bounds it", items=advice(analysis), tables=bounded)
    if parted := tables("parts"):
        yield Section(id="parts", title="What happens in a step", tables=parted, plots=plots("step_parts"))
    yield from _layers(analysis, tables("layers", "convolutions"), plots("layers"))
    yield from _prediction(analysis)
    if has_curves(analysis):
        yield Section(id="accuracy", title="Time to accuracy", tables=tables(TIME_TO_ACCURACY), plots=plots("accuracy"))
    if has_cost(analysis):
        yield Section(id="cost", title="Energy and cost", tables=tables("cost"))
    if failed.num_rows:
        yield Section(id="failures", title="Failures", text=printable(f"{analysis.summary.closing_line()}."), tables=(failed,))
    yield Section(id="warnings", title="Warnings", tables=(noted,))
    yield Section(id="times", title="Times", tables=tables("times"), plots=plots("step_time", "loss"))
    if len(analysis.sources) > 1:
        yield Section(id="survey", title="Survey", tables=tables("survey"))
    spent = tables("budget", "hours", "utilisation", "storage")
    yield Section(id="budget", title="The steps of a run", plots=plots("budget"), tables=spent)
    if several_frameworks:
        yield Section(id="dlbench", title="dlbench view", tables=tables("dlbench", "frameworks"))
        facts = [table for table in in_parts(TABLES[FACTS](analysis)) if table.num_rows]
        numbered = (replace(table, name=f"{FACTS}-{number}" if number else FACTS) for number, table in enumerate(facts))
        yield Section(id="frameworks", title="Frameworks", tables=tuple(numbered))
    yield Section(id="networks", title="Networks", tables=tuple(map(_counted_facts, tables("model-facts"))))
    yield Section(id="precision", title="Precision and layout", tables=tables(PRECISION))
    yield Section(id="timeline", title="Runs over time", plots=plots("timeline"))
    yield Section(id="runs", title="Runs", text=RUNS_TEXT)
    yield Section(id="provenance", title="Provenance", blocks=provenance(analysis))
    yield Section(id="reproduce", title="How to reproduce", blocks=reproduction(analysis))


def _counted_facts(table: Table) -> Table:
    """Leave out what is published of the networks: the table would be twice as wide as a screen."""
    kept = tuple(column for column in table.columns if not column.key.startswith("published_") and column.key != "source")
    return replace(table, columns=kept, caption=f"{table.caption} What is published of them is in tables/{table.name}.html.")


def _without_one_reason(table: Table) -> Table:
    """Move a note that all rows have in common to the caption: the same sentence in each row hides what differs."""
    notes = [column for column in table.columns if column.key == "note" and len(set(column.values)) == 1 and column.values[0]]
    if not notes or table.num_rows == 1:
        return table
    kept = tuple(column for column in table.columns if column not in notes)
    note = notes[0].values[0]
    return replace(table, columns=kept, caption=table.caption if note in table.caption else f"{table.caption} In all rows: {note}.")


def _layers(analysis: Analysis, tables: Sequence[Table], plots: tuple[str, ...]) -> Iterator[Section]:
    """Yield where a step goes, with what to do about copies; its tables open when they are asked for, since networks have many layers."""
    traced = [(cell, step_of(cell, found), found.copies) for cell, _, found in profiles(analysis) if not isinstance(found, str)]
    copies = [
        f"{_in_words(analysis, cell)}: {described(one, step_ms)}: {found}"
        for cell, step_ms, told in traced
        for one in told
        if (found := advice_on(one, step_ms))
    ]
    measured = tuple(table for table in tables if {"forward_ms", "forward_s"} & {column.key for column in table.columns})
    if measured:
        yield Section(id="layers", title="Where a step goes", items=copies, tables=measured, plots=plots, folded=True)


def _prediction(analysis: Analysis) -> Iterator[Section]:
    """Yield what more nodes would bring, where that can be predicted of a line at least."""
    several = any(len({one.cell.shape for one in line if one.cell.num_measured}) > 1 for line in analysis.lines.values())
    if several and any(row.prediction for row in rows_of(line_models(analysis))):
        yield Section(id="prediction", title="Prediction", items=prediction_words(analysis), tables=(TABLES["prediction"](analysis),))
