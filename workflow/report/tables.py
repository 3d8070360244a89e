"""The tables of a study. Letters as in the design notes: a speed-up, b time, c the dlbench view, l time budget, o failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from base.logs import printable
from workflow.report import framework_facts
from workflow.report.analysis import Analysis
from workflow.report.cells import CellResult
from workflow.report.derive import Comparison, has_several_baselines
from workflow.report.digits import NONE, joined, percent, significant, time_unit, with_error
from workflow.report.frameworks_table import NOT_ASKED, frameworks
from workflow.report.hours import hours
from workflow.report.keys import (
    SIZE_COLUMNS,
    key_columns,
    key_values,
    not_compared,
    sentence,
    several_shapes,
    shape_key,
    shape_title,
    shape_words,
    shares,
    size_values,
)
from workflow.report.leads import cell_place, to_cells
from workflow.report.lint import MARKS, MEASURING
from workflow.report.long_tables import failures, scaling
from workflow.report.table import MOST_ROWS, Column, Table, Value, number, text
from workflow.report.utilisation import utilisation
from workflow.run.record.columns import BESIDE, SHOWN_STEPS
from workflow.study.baseline_keys import in_words, is_named
from workflow.study.cell import UNITS

SLOWED: Final = frozenset({"oversubscribed", "shared", "busy", "drift", "network", "stalls", "input", "stragglers", "gaps", "threads"})
"""Marks that say why a baseline can be slower than it should: then a speed-up against it is too large."""
STATED: Final = ("gpus_per_node", "allocations", "node_sets", "input_wait_ratio")
"""Columns of `times` that the caption states where all rows have one value: with them the table is wider than the page."""
MOST_LOSS: Final = 700.0
"""Of a greater one the perplexity is no number."""


def all_tables(analysis: Analysis) -> Iterator[Table]:
    """Every table, in the order of the report, one after the other: those of 10^5 runs do not lie in memory together."""
    return (build(analysis) for build in TABLES.values())


def speedup(analysis: Analysis) -> Table:
    """Table a: one row per line (series and batch), one column per number of processes, `S (E) ±CI`."""
    lines = {line: {one.cell.shape: one for one in those} for line, those in analysis.lines.items()}
    shapes = sorted({shape for line in lines.values() for shape in line})
    keys = key_columns(analysis)
    columns = [*keys, Column(key="scaling", title="Scaling", number=False), Column(key="batch", title="Batch", number=False)]
    several_of = several_shapes(shapes)
    columns += [Column(key=shape_key(shape, several_of), title=shape_title(shape, several_of, analysis)) for shape in shapes]
    rows: list[tuple[Value, ...]] = []
    leads: list[tuple[str, ...]] = []
    for (_, _, kind, size), line in lines.items():
        first = next(iter(line.values())).cell
        row = [*key_values(analysis, first), text(kind), text(f"{size} {'in all' if kind == 'strong' else 'each'}")]
        several = has_several_baselines(line.values())
        rows.append((*row, *[_speedup_value(line[shape], several) if shape in line else text("") for shape in shapes]))
        if len(leads) < MOST_ROWS:
            cells = {shape: cell_place(analysis, one.cell.source, one.cell.cell_id) for shape, one in line.items()}
            leads.append((*[""] * len(row), *[cells.get(shape, "") for shape in shapes]))
    return Table(
        name="speedup",
        title="Speed-up and efficiency",
        caption=sentence(
            f"S (E): {analysis.rate_words} over the baseline's ({baseline_text(analysis)}), and S over the growth in processes",
            against_text(analysis),
            interval_text(analysis),
            not_compared(analysis.frame),
            shares(analysis),
            analysis.shared,
        ),
        columns=tuple(columns),
        rows=tuple(rows),
        leads=tuple(leads),
        reasons=analysis.reasons,
        folds=len(keys) + 2,
    )


def times(analysis: Analysis) -> Table:
    """Table b: nodes x batch x model -> time, step, rate, speed-up, efficiency."""
    heads = {"runs": "Runs ok", "allocations": "Jobs", "node_sets": "Node sets"}
    unit, seconds = time_unit(cell.means["run_s"] for cell in analysis.cells)
    heads |= {"run_s": f"Run [{unit}]", "training_s": f"Training [{unit}]", "step_p50_s": "Step p50 [ms]", "step_p95_s": "p95 [ms]"}
    heads |= {
        "window_s": "Window [s]",
        "input_wait_ratio": "Input wait",
        "samples_per_s": "Samples/s",
        "tokens_per_s": "Tokens/s",
        "speedup": "Speed-up",
        "efficiency": "Efficiency",
    }
    heads |= {"scaling": "Scaling", "against": "Against", "accuracy": "Accuracy", "perplexity": "Perplexity", "note": "Note"}
    columns = [
        *key_columns(analysis),
        *SIZE_COLUMNS,
        *[
            Column(key=key, title=title, number=key not in ("scaling", "against", "note"), wrap=key == "note")
            for key, title in heads.items()
        ],
    ]
    rows = tuple((*key_values(analysis, comparison.cell), *_time_values(analysis, comparison, seconds)) for comparison in analysis.primary)
    columns, stated = _stated(columns, rows)
    return Table(
        name="times",
        title="Time, step and rate",
        caption=sentence(
            "Batch: of each process. Run: supervisor start to published record, stage to release. Training: the program's steps alone. "
            "Step: the slowest process's, median and 95th percentile of a run. "
            f"{analysis.rate_words.capitalize()}: {' or '.join(analysis.units)} of the measured window over its wall time "
            "(mode infer: the sum of the processes' own). Both: geometric mean over runs. Window: of the slowest process, mean. "
            "Jobs, node sets: how many jobs (on this machine: starts) and different sets of hosts the measured runs came from",
            stated,
            against_text(analysis),
            interval_text(analysis),
            not_compared(analysis.frame),
            shares(analysis),
            analysis.shared,
        ),
        columns=tuple(columns),
        rows=rows,
        leads=to_cells(analysis, columns, [comparison.cell for comparison in analysis.primary]),
        reasons=analysis.reasons,
    )


def _stated(columns: Sequence[Column], rows: Sequence[Sequence[Value]]) -> tuple[list[Column], str]:
    """Return the columns of `times`, those of STATED that have one value in all rows marked, and the sentence that has these values."""
    found, words = list(columns), []
    for index in [index for index, column in enumerate(columns) if column.key in STATED and len(rows) > 1]:
        texts = {row[index].text for row in rows if row[index].raw}
        if len(texts) == 1:
            found[index] = replace(columns[index], stated=True)
            words.append(f"{columns[index].title.lower()} {texts.pop()}")
    return found, f"In all rows: {', '.join(words)}" if words else ""


def dlbench(analysis: Analysis) -> Table:
    """Table c: `batchTime(totalTime)` in the words of dlbench, one column per batch size."""
    batches = sorted({cell.keys["batch_size"] for cell in analysis.cells})
    lines: dict[tuple[str, str, int, int], dict[int, CellResult]] = {}
    for cell in analysis.cells:
        lines.setdefault((cell.source, cell.series, cell.keys["nodes"], cell.keys["gpus_per_node"]), {})[cell.keys["batch_size"]] = cell
    columns = [*key_columns(analysis), *SIZE_COLUMNS[1:]]
    rows: list[tuple[Value, ...]] = []
    leads: list[tuple[str, ...]] = []
    for (_, _, nodes, per_node), line in lines.items():
        keys = key_values(analysis, next(iter(line.values())))
        rows.append((*keys, text(nodes), text(per_node), *[_dlbench_value(line.get(size)) for size in batches]))
        if len(leads) < MOST_ROWS:
            cells = {size: cell_place(analysis, cell.source, cell.cell_id) for size, cell in line.items()}
            leads.append((*[""] * len(columns), *[cells.get(size, "") for size in batches]))
    return Table(
        name="dlbench",
        title="Batch time and total time",
        caption=sentence(
            "batchTime(totalTime) in seconds: median step, and the program from start to end (step 4 of the run); batch per process",
            analysis.shared,
        ),
        columns=(*columns, *[Column(key=f"batch_{size}", title=f"batch {size}") for size in batches]),
        rows=tuple(rows),
        leads=tuple(leads),
        reasons=analysis.reasons,
    )


def budget(analysis: Analysis) -> Table:
    """Table l: the steps of a run, means over the measured runs of a cell."""
    columns = [*key_columns(analysis), *SIZE_COLUMNS]
    columns += [Column(key=f"{step}_s", title=step.capitalize()) for step in SHOWN_STEPS]
    columns += [Column(key="run_s", title="Run"), Column(key="goodput_ratio", title="Training")]
    rows = []
    cells = [cell for cell in analysis.cells if cell.num_measured]
    for cell in cells:
        row = [*key_values(analysis, cell), *size_values(cell)]
        row += [number(significant, cell.means[f"{step}_s"]) for step in SHOWN_STEPS]
        run_s, training_s = cell.means["run_s"], cell.means["training_s"]
        share = training_s / run_s if run_s and training_s is not None else None
        rows.append((*row, number(significant, run_s, cell.marks & {"budget", "resumed"}), number(percent, share)))
    return Table(
        name="budget",
        title="Where the time of a run goes",
        caption=sentence(
            "Seconds, mean over the measured runs. Run is the sum of stage to release; "
            f"{BESIDE} comes from the scheduler and stands beside it. Training: share of the run in which the program trained",
            analysis.shared,
        ),
        columns=tuple(columns),
        rows=tuple(rows),
        leads=to_cells(analysis, columns, cells),
    )


TABLES: Final[dict[str, Callable[[Analysis], Table]]] = {
    "speedup": speedup,
    "times": times,
    "failures": failures,
    "budget": budget,
    "hours": hours,
    "utilisation": utilisation,
    "dlbench": dlbench,
    "frameworks": frameworks,
    framework_facts.NAME: framework_facts.of_study,
    "scaling": scaling,
}


def interval_text(analysis: Analysis) -> str:
    """Return how the intervals of the rates were made, and those of the ratios that have one."""
    ratios = [one.speedup for one in analysis.primary if one.speedup and one.speedup.low is not None]
    counts = {
        "paired by repeat": sum(one.paired for one in ratios),
        "by Welch, which can be much too wide, since cell and baseline were not measured in the same repeats "
        "(slipway run --retry failed completes them)": sum(not one.paired for one in ratios),
    }
    made = [f"; {'' if count == len(ratios) else f'{count} of {len(ratios)} '}ratios {how}" for how, count in counts.items() if count]
    return (
        "\N{PLUS-MINUS SIGN} or [from, to] is the 95 % confidence interval over runs "
        f"(Student's t on logarithms of the runs' numbers{''.join(made)})"
    )


def baseline_text(analysis: Analysis) -> str:
    """`nodes: 1`, as the study file has it; and where all cells of a series have that, which of them are taken."""
    baseline = analysis.sources[0].baseline
    narrowed = any(is_named(one.cell.keys, baseline) and not one.is_baseline for one in analysis.primary)
    taken = f"; where all cells of a series have that, those with the fewest {analysis.processes} are the baseline" if narrowed else ""
    return printable(in_words(baseline) + taken) or "none is named"


def against_text(analysis: Analysis) -> str:
    """What a number is measured against, where there are several baselines; and which of these carry marks of what slows one down."""
    if not analysis.crossed:
        return ""
    doubted: dict[str, set[str]] = {}
    for one in analysis.primary:
        if one.is_baseline and one.cell.num_measured:
            doubted.setdefault(shape_words(analysis, one.cell), set()).update(SLOWED & one.marks)
    bases = "; ".join(f"{words}: {', '.join(sorted(marks, key=list(MARKS).index))}" for words, marks in doubted.items() if marks)
    return "Against: the baseline of a number, as nodes \N{MULTIPLICATION SIGN} processes of each" + (
        f". Baselines carry marks themselves, {bases}" if bases else ""
    )


def _speedup_value(comparison: Comparison, several: bool) -> Value:
    if not comparison.speedup or not comparison.efficiency:
        cell = comparison.cell
        return text(short_reason(comparison), muted=True, marks=cell.marks & {"untimed"} if cell.reason else cell.marks)
    if comparison.is_baseline:
        return text("1 (baseline)", marks=comparison.marks)
    value, error = with_error(comparison.speedup)
    shown = f"{value} ({percent(comparison.efficiency.value)}) {error}".rstrip()
    if several and comparison.partner is not None:
        _, nodes, per_node = comparison.partner.shape
        shown += f" against {nodes}\N{MULTIPLICATION SIGN}{per_node}"
    return text(shown, marks=comparison.marks)


def short_reason(comparison: Comparison) -> str:
    """A word or two for a table of numbers; the failures table has the sentence."""
    if comparison.cell.reason:
        return comparison.cell.reason
    return f"baseline {comparison.partner.reason}" if comparison.partner else "no baseline"


def _time_values(analysis: Analysis, comparison: Comparison, unit_s: float) -> list[Value]:
    cell = comparison.cell
    runs = text(f"{cell.num_ended_well}/{cell.num_runs}", marks=cell.marks & {"partial"})
    speedup, efficiency = comparison.speedup, comparison.efficiency
    step, p95 = cell.step_s, cell.p95_s
    measured = cell.marks.intersection(MEASURING) - {"partial"}
    run_times = [cell.means["run_s"], cell.means["training_s"]]
    shown = [number(partial(_in_unit, unit_s), value, cell.marks & {"untimed"}) for value in run_times]
    return [
        *size_values(cell),
        runs,
        text(cell.num_allocations),
        text(cell.num_node_sets),
        *shown,
        number(_milliseconds, step.value if step else None, measured),
        number(_milliseconds, p95.value if p95 else None),
        number(significant, cell.means["window_s"]),
        number(percent, cell.input_wait_ratio),
        *[_rate(cell, unit, measured) for unit in UNITS],
        number(
            lambda _: "1" if comparison.is_baseline and speedup else joined(with_error(speedup)),
            speedup.value if speedup else None,
            comparison.marks - cell.marks,
        ),
        number(percent, efficiency.value if efficiency else None),
        text("baseline" if comparison.is_baseline else comparison.scaling if comparison.partner else NONE),
        text(_against(analysis, comparison)),
        number(percent, cell.means["eval_accuracy"]),
        number(significant, _perplexity(cell)),
        text(comparison.reason, muted=True),
    ]


def _perplexity(cell: CellResult) -> float | None:
    """Of tokens: e to the mean loss of the last evaluation; None where that is no number that can be shown."""
    loss = cell.means["eval_loss"] if cell.unit == "tokens" else None
    return None if loss is None or loss > MOST_LOSS else math.exp(loss)


def _rate(cell: CellResult, unit: str, marks: frozenset[str]) -> Value:
    """In the column of one unit; nothing where the cell counts another."""
    rate = cell.rate_per_s if cell.unit == unit else None
    return number(lambda _: joined(with_error(rate)), rate.value if rate else None, marks)


def _against(analysis: Analysis, comparison: Comparison) -> str:
    """The baseline of a number in words, where its study has several of one series."""
    if not analysis.crossed or comparison.is_baseline or comparison.partner is None or comparison.speedup is None:
        return ""
    return shape_words(analysis, comparison.partner)


def _milliseconds(seconds: float | None) -> str:
    return significant(None if seconds is None else seconds * 1000)


def _in_unit(unit_s: float, seconds: float | None) -> str:
    return significant(None if seconds is None else seconds / unit_s)


def _dlbench_value(cell: CellResult | None) -> Value:
    if cell is None:
        return text(NOT_ASKED, muted=True)
    step = cell.step_s
    if not step:
        return text(cell.reason, muted=True)
    wall = cell.means["train_s"]
    shown = f"{significant(step.value)}({significant(wall)})"
    return text(shown, marks=cell.marks.intersection(MEASURING))
