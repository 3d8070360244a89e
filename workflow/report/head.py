"""The head of the page: what was measured, on what, how much of it, and what came out, each as the tables have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import polars as pl

from base.logs import printable
from base.units import and_more, counted
from workflow.report.analysis import Analysis
from workflow.report.derive import Comparison
from workflow.report.digits import joined, percent, with_error
from workflow.report.keys import counted_shape, not_compared, sentence, shares
from workflow.report.leads import cell_place
from workflow.report.lint import MARKS
from workflow.report.plots import line_label
from workflow.report.statistics import Estimate
from workflow.report.tables import SLOWED, baseline_text

MOST_KINDS: Final = 3
NOT_WHOLE: Final = (
    "this page shows the runs whose records are left, and nobody knows which others there were, what was asked for, or what the "
    "baseline is."
)


def lead(analysis: Analysis) -> str:
    """Cells, runs, sites, days and baseline."""
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
    """On how many machines of which kind, as the records tell."""
    hosts = {host for hosts in analysis.frame["hosts"].drop_nulls().unique().to_list() for host in hosts.split(",")}
    kinds = sorted({kind for text in analysis.frame["machine"].drop_nulls().unique().to_list() for kind in text.split(" + ")})
    if not hosts or not kinds:
        return ""
    shown = f"{'; '.join(kinds[:MOST_KINDS])} {and_more(len(kinds), MOST_KINDS, 'kinds')}".rstrip()
    each = "each " if len(hosts) > 1 and len(kinds) == 1 else ""
    return printable(sentence(f"Measured on {counted(len(hosts), 'host')}: {each}{shown}", shares(analysis)))


class Tile(NamedTuple):
    """A number at the head of the page. `to`: the place in the page that it leads to."""

    value: str
    text: str
    to: str
    kind: str = ""


def tiles(analysis: Analysis) -> list[Tile]:
    """How many runs were measured, failed, are missing; the best speed-up."""
    summary = analysis.summary
    best = _best(analysis)
    whole = summary.ok == summary.num_runs and not summary.without_study
    found = [
        Tile(f"{summary.ok} / {summary.num_runs}", "runs measured", "runs", "good" if whole else ""),
        Tile(str(summary.failed_rows), "failed rows", "failures", "bad" if summary.failed_rows else ""),
    ]
    if summary.missing:
        found.append(Tile(str(summary.missing), f"{'run' if summary.missing == 1 else 'runs'} not run yet", "failures"))
    if best and best.speedup and best.efficiency:
        what = f"{_choice(analysis)}: {_against(analysis, best)}"
        to = cell_place(analysis, best.cell.source, best.cell.cell_id)
        found.append(Tile(f"{best.speedup.value:.2f}\N{MULTIPLICATION SIGN}", what, to))
        found.append(Tile(percent(best.efficiency.value, 0), "its efficiency", to))
    return found


def findings(analysis: Analysis) -> list[str]:
    """What is not known, the best speed-up with all that speaks against it, and how many runs stand behind a cell."""
    places = ", ".join(source.path for source in analysis.sources if not source.has_study)
    unknown = [printable(f"study.json is missing in {places}: {NOT_WHOLE}")] if places else []
    return [*unknown, *_found(analysis)]


def _found(analysis: Analysis) -> list[str]:
    best = _best(analysis)
    if best is None or best.speedup is None or best.efficiency is None or best.partner is None:
        return ["There is no comparison with a baseline yet: a speed-up needs a measured run of the baseline and of another cell."]
    count = len(_measured(analysis))
    chosen = best.speedup.among(count)
    value, error = with_error(chosen)
    shown, unsure = (value, f"; {error}" if error else "") if chosen.low is None else (joined((value, error)), "")
    words = [
        f"{line_label(analysis, best)} on {counted_shape(analysis, best.cell)}: {shown} times the throughput of "
        f"{counted_shape(analysis, best.partner)} (efficiency {percent(best.efficiency.value)}, {best.scaling} scaling{unsure})."
    ]
    if count > 1:
        wider = "; its 95 % confidence interval allows for that choice, and is wider than in the tables" if chosen.low is not None else ""
        words.append(f"This is the largest of {count} measured speed-ups{wider}.")
    words += _doubt(chosen)
    if best.marks:
        words.append(f"It carries the marks {', '.join(mark for mark in MARKS if mark in best.marks)}: see the footnotes of the table.")
    of_cell = (pl.col("source") == best.cell.source) & (pl.col("cell_id") == best.cell.cell_id)
    words.append(sentence(not_compared(analysis.frame.filter(of_cell))))
    return [" ".join(filter(None, words)), *_slowed(analysis), _behind(analysis)]


def _slowed(analysis: Analysis) -> list[str]:
    """What the baseline carries of the best speed-up, and of those above the growth in processes: a slow one makes them too large."""
    best = _best(analysis)
    found, other = [], "The largest speed-up, that" if len(_measured(analysis)) > 1 else "The speed-up"
    for one in _measured(analysis):
        superlinear = one.efficiency is not None and one.efficiency.value > 1
        if one.partner is None or not (one is best or superlinear):
            continue
        marks = _of_baseline(analysis, one)
        if marks:
            what = f"{percent(one.efficiency.value)} efficiency" if superlinear and one.efficiency else other
            found.append(
                f"{what} of {line_label(analysis, one)} on {counted_shape(analysis, one.cell)}: "
                f"the baseline, {counted_shape(analysis, one.partner)}, is marked {', '.join(marks)}"
            )
    if not found:
        return []
    shown = "; ".join(found[:MOST_KINDS])
    more = and_more(len(found), MOST_KINDS)
    return [f"A baseline that was slowed down makes a speed-up too large. {f'{shown} {more}'.rstrip()}."]


def _of_baseline(analysis: Analysis, comparison: Comparison) -> list[str]:
    """The marks of its baseline that can have made it slow, in the order of the footnotes."""
    marks = analysis.base_marks.get(id(comparison.partner), frozenset[str]())
    return [mark for mark in MARKS if mark in SLOWED & marks]


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
    several = [cell for cell in cells if cell.num_measured > 1]
    same = [cell for cell in several if cell.num_node_sets == 1]
    where = "every cell" if len(same) == len(several) else f"{len(same):,} of the {len(several):,} cells"
    of = (
        ""
        if len(several) == len(cells)
        else " that has several measured runs"
        if len(same) == len(several)
        else " that have several measured runs"
    )
    doubt = f" In {where}{of} all runs were on the same nodes: these intervals say nothing about other nodes." if same else ""
    stand = ", ".join((_counted(runs, "measured run"), f"from {_counted(jobs, 'allocation')}", f"on {_counted(nodes, 'set')} of nodes"))
    return f"Behind a cell {'stands' if runs == '1' else 'stand'} {stand}.{doubt}"


def _counted(span: str, noun: str) -> str:
    return f"{span} {noun}" if span == "1" else f"{span} {noun}s"


def _span(numbers: Sequence[int]) -> str:
    """`3`, or `1 to 3`."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _against(analysis: Analysis, comparison: Comparison) -> str:
    """`8 GPUs against 1 GPU`."""
    partner = counted_shape(analysis, comparison.partner) if comparison.partner else "nothing"
    return f"{counted_shape(analysis, comparison.cell)} against {partner}"


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
