"""Make the tables of a study, a function each: speed-up, time, dlbench, hours, time budget, utilisation, failures.

A new column goes into the list of its function here, and its meaning into meanings.py. TABLES has those of other modules too.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Final

import polars as pl

from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.bounds import bounds
from workflow.report.cells import ENDED_WELL, MEASURED, CellResult, Estimate
from workflow.report.cost_table import cost
from workflow.report.framework_tables import FACTS, NOT_IN_STUDY, PRECISION, facts_of_study, frameworks, marked_words, precision, survey
from workflow.report.layers_table import layers
from workflow.report.meanings import describe_columns
from workflow.report.model_tables import CONVOLUTIONS, MODEL_FACTS, convolutions_of_study, facts_of_models
from workflow.report.prediction_table import prediction
from workflow.report.shared_columns import (
    cell_links,
    cell_table,
    key_columns,
    not_compared,
    rows_of,
    sentence,
    several_shapes,
    shape_key,
    shape_title,
    shape_words,
    shared_machine_note,
    size_columns,
)
from workflow.report.speedup import Comparison, has_several_baselines
from workflow.report.step_parts import parts
from workflow.report.storage_table import storage
from workflow.report.table_type import (
    GIB,
    GIGA,
    MILLI,
    NO_MARKS,
    NONE,
    TERA,
    Column,
    Marks,
    Reason,
    Table,
    estimate_text,
    estimates,
    numbers,
    percent,
    scaled,
    significant,
    time_unit,
    whole,
    with_error,
    words,
)
from workflow.report.time_to_accuracy import TIME_TO_ACCURACY, time_to_accuracy
from workflow.run.record.parquet_columns import BESIDE, MISSING, PREVENTED, SHOWN_STEPS, UNREADABLE
from workflow.study.cell import ARGS, SIZES, UNITS, WORDS, Cell, plain_text
from workflow.study.series import is_named, keys_text

# Table h, hours: process hours and GPU hours of the runs. Prevented attempts have columns of their own.


HOUR_PARTS: Final = {"measured": "Measured", "failed": "Failed", "prevented": "Prevented", "repeated": "Repeated", "aside": "Set aside"}
HOUR_S: Final = 3600.0


def hours(analysis: Analysis) -> Table:
    """Build table h: one row per cell that took any time, run_s of its attempts x its processes, and x its GPUs."""
    took = _seconds(analysis.frame).filter(pl.any_horizontal(pl.col(*HOUR_PARTS) > 0))
    cells, rows = rows_of(analysis, took.iter_rows(named=True))
    parts = {part: [row[part] * cell.num_processes / HOUR_S for cell, row in zip(cells, rows, strict=True)] for part in HOUR_PARTS}
    process_h = [sum(parts) for parts in zip(*parts.values(), strict=True)]
    gpu_h = [row["gpu_s"] / HOUR_S for row in rows]
    columns = [
        *[numbers(f"{part}_process_h", title, significant, parts[part]) for part, title in HOUR_PARTS.items()],
        numbers("process_h", "Process hours", significant, process_h),
        numbers("gpu_h", "GPU hours", significant, gpu_h),
    ]
    return cell_table(
        analysis,
        cells,
        columns,
        name="hours",
        title="What the runs took",
        caption=[
            "Hours of a run from stage to release, times its processes",
            *describe_columns("hours", columns, [*(f"{part}_process_h" for part in HOUR_PARTS), "gpu_h"]),
            "Attempts without a readable record are in none",
            f"In all {significant(sum(process_h))} process hours, {significant(sum(parts['prevented']))} of them prevented; "
            f"{significant(sum(gpu_h))} GPU hours",
        ],
        empty="No run has taken any time yet.",
    )


def _seconds(frame: pl.DataFrame) -> pl.DataFrame:
    """Sum the seconds of each cell by how its attempts ended, and of all of them times their GPUs."""
    run_s = pl.col("run_s").fill_null(0.0)
    cut = pl.col("status").is_in(PREVENTED)
    return frame.group_by("source", "cell_id", maintain_order=True).agg(
        run_s.filter(ENDED_WELL).sum().alias("measured"),
        (run_s.filter(~ENDED_WELL & ~cut).sum() + pl.col("unmeasured_s").sum()).alias("failed"),
        (run_s.filter(cut).sum() + pl.col("prevented_s").sum()).alias("prevented"),
        pl.col("repeated_s").sum().alias("repeated"),
        pl.col("aside_s").sum().alias("aside"),
        ((run_s * pl.col("num_gpus").fill_null(0)).sum() + pl.col("beside_gpu_s").sum()).alias("gpu_s"),
    )


# Long tables: one row for every comparison, and for every run without a number.


LONGEST: Final = 400
LAST_LINES: Final = 3
RUN_AGAIN: Final = (
    "Results that failed run again with `slipway run STUDY --retry failed`, prevented and missing runs with the same command as before. "
    "A run that ended ok does not run again."
)
KEYS: Final = (*(field.name for field in fields(Cell) if field.name in WORDS and field.name != "device"), *SIZES)


def failures(analysis: Analysis) -> Table:
    """Build table o: every run of the study without a measurement, with the reason. Runs not yet begun stand at the end."""
    failed = analysis.frame.filter(~MEASURED).sort(pl.col("status") == MISSING, maintain_order=True)
    rows = list(failed.iter_rows(named=True))

    def each(name: str) -> list[Any]:
        return [row[name] for row in rows]

    columns = [
        words("run", "Run", each("run_id")),
        numbers("attempt", "Attempt", whole, each("attempt")),
        words("end", "End", each("status")),
        words("reason", "Reason", [short(reason_of(row)) for row in rows], wrap=True),
        numbers("rank", "Rank", whole, each("failed_rank")),
        words("host", "Host", map(short, each("failed_host"))),
        words("exit", "Exit", [row["failed_signal"] or row["failed_exit_code"] for row in rows]),
        words("last_lines", "Last lines", [short(last_lines(row["failed_last_lines"])) for row in rows], wrap=True),
        words("files", "Files", map(_files, rows), wrap=True),
    ]
    return Table(
        name="failures",
        title="Runs without a measurement",
        caption=RUN_AGAIN,
        columns=(*([words("source", "Source", each("source"))] if len(analysis.sources) > 1 else []), *columns),
        empty="Every run of the study was measured.",
    )


def reason_of(row: Mapping[str, Any]) -> str | None:
    """Explain in words why a row is no measurement."""
    if row["status"] == "ok" and row["steps_source"] == "none":
        return "ended ok; its program reports no steps (events: none), so only wall times are known"
    untold = ": its program reported no tokens" if row["unit"] == "tokens" and row["tokens"] is None else ""
    return row["status_reason"] or {MISSING: "not run yet", "ok": f"ended ok, but no rate could be measured{untold}"}.get(row["status"])


def _files(row: Mapping[str, Any]) -> str | None:
    if row["attempt"]:
        return f"runs/{row['run_id']}/attempts/{row['attempt']}/"
    return f"runs/{row['record']}" if row["status"] == UNREADABLE else None


def last_lines(text: str | None) -> str:
    """Return the last lines of what the failed rank wrote."""
    return "\n".join((text or "").splitlines()[-LAST_LINES:])


def short(value: str | None) -> str | None:
    """Shorten what programs wrote; its beginning stays."""
    return value if value is None or len(value) <= LONGEST else value[:LONGEST] + "\N{HORIZONTAL ELLIPSIS}"


def scaling(analysis: Analysis) -> Table:
    """Build the table of every comparison, weak and strong, with its partner: programs read it."""
    comparisons = analysis.comparisons
    cells = [one.cell for one in comparisons]
    own = [cell.marks - {"partial"} if cell.marks else NO_MARKS for cell in cells]
    both = [one.marks for one in comparisons]
    arguments = sorted({name for cell in cells for name in cell.cell.args or ()})
    columns = [
        words("source", "source", [cell.source for cell in cells]),
        words("cell", "cell", [cell.cell_id for cell in cells]),
        *[words(key, _title(key), [getattr(cell.cell, key) for cell in cells], number=key not in WORDS) for key in KEYS],
        numbers("processes", "processes", str, [cell.num_processes for cell in cells]),
        words("hardware", "hardware", [" / ".join(sorted(cell.distinct["hardware"])) for cell in cells]),
        words("scaling", "scaling", map(_scaling_word, comparisons)),
        numbers("primary", "primary", str, [int(one.primary) for one in comparisons]),
        numbers("runs", "runs", str, [cell.num_measured for cell in cells], [cell.marks & {"partial"} for cell in cells]),
        numbers("allocations", "allocations", str, [cell.num_allocations for cell in cells]),
        numbers("node_sets", "node sets", str, [cell.num_node_sets for cell in cells]),
        *_three(("step_s", "step_low_s", "step_high_s"), [cell.step_s for cell in cells], own),
        *[
            column
            for unit in UNITS
            for column in _three(
                (f"{unit}_per_s", f"{unit}_per_s_low", f"{unit}_per_s_high"),
                [cell.rate_per_s if cell.unit == unit else None for cell in cells],
                own,
            )
        ],
        numbers("window_s", "window s", significant, [cell.means.get("window_s") for cell in cells]),
        words("partner", "partner", [one.partner.cell_id if one.partner else None for one in comparisons]),
        *_three(("speedup", "speedup_low", "speedup_high"), [one.speedup for one in comparisons], both),
        *_three(("efficiency", "efficiency_low", "efficiency_high"), [one.efficiency for one in comparisons], both, percent),
        words("interval", "interval", [_interval_method(one.speedup) for one in comparisons]),
        words("reason", "reason", [one.reason for one in comparisons]),
        *[words(f"{ARGS}{name}", f"{ARGS}{name}", [_argument(cell, name) for cell in cells], number=True) for name in arguments],
    ]
    return Table(
        name="scaling",
        title="Every comparison",
        caption="Weak: the baseline has the same batch per process. Strong: the same global batch. low, high: 95 % confidence interval; "
        "interval: how that of the ratio was made, from differences within each repeat (paired) or by Welch.",
        columns=tuple(columns),
    )


def _title(key: str) -> str:
    return key.replace("_", " ")


def _argument(cell: CellResult, name: str) -> str | None:
    args = cell.cell.args or {}
    return plain_text(args[name]) if name in args else None


def _scaling_word(comparison: Comparison) -> str | None:
    return "baseline" if comparison.is_baseline else comparison.scaling if comparison.partner else None


def _interval_method(ratio: Estimate | None) -> str | None:
    return None if ratio is None or ratio.low is None else "paired" if ratio.paired else "welch"


def _three(
    keys: tuple[str, str, str],
    estimates: Sequence[Estimate | None],
    marks: Sequence[Marks],
    show: Callable[[float | None], str] = lambda value: significant(value, 4),
) -> Iterator[Column]:
    yield numbers(keys[0], _title(keys[0]), show, [one and one.value for one in estimates], marks)
    yield numbers(keys[1], _title(keys[1]), show, [one and one.low for one in estimates])
    yield numbers(keys[2], _title(keys[2]), show, [one and one.high for one in estimates])


# Table m, utilisation: how much of its GPUs a model uses, and the memory that it takes.


OLDER: Final = " (of records of earlier versions with it)"
EXPLAINED_OF_USE: Final = ("flop_per_s", "peak_flop_per_s", "peak_memory_bytes", "memory_left_bytes", "gpu_busy_ratio")
OF_A_CELL: Final = ("device", "flop_per_unit", "flop_source", "arithmetic", "gpu_models", "peak_flop_per_s", "peak_source")
"""What all runs of a cell have in common, or there is no number."""


def utilisation(analysis: Analysis) -> Table:
    """Build the table of utilisation, FLOP/s against the peak of the GPUs: one row per measured cell."""
    cells, rows = rows_of(analysis, _cells(analysis.frame).iter_rows(named=True))
    whys = list(map(_why_none, cells, rows))
    flop_per_s = [
        flop * cell.rate_per_s.value / cell.num_processes if (flop := row["flop_per_unit"]) and cell.rate_per_s else None
        for cell, row in zip(cells, rows, strict=True)
    ]

    def each(name: str) -> list[Any]:
        return [row[name] for row in rows]

    columns = [
        words("arithmetic", "Precision", each("arithmetic")),
        numbers(
            "flop_per_unit",
            f"GFLOP per {' or '.join(unit.removesuffix('s') for unit in analysis.units)}",
            partial(scaled, GIGA),
            each("flop_per_unit"),
        ),
        words("flop_source", "FLOP from", each("flop_source")),
        numbers("flop_per_s", "TFLOP/s", partial(scaled, TERA), flop_per_s),
        numbers("peak_flop_per_s", "Peak TFLOP/s", partial(scaled, TERA, digits=4), each("peak_flop_per_s")),
        numbers(
            "mfu",
            "MFU",
            percent,
            [None if why else row["mfu"] for row, why in zip(rows, whys, strict=True)],
            [cell.marks & {"impossible"} for cell in cells],
        ),
        numbers("gpu_busy_ratio", "GPU busy", percent, each("gpu_busy_ratio")),
        numbers("peak_memory_bytes", "Memory [GiB]", partial(scaled, GIB), each("peak_memory_bytes")),
        numbers("memory_left_bytes", "Left [GiB]", partial(scaled, GIB), each("memory_left_bytes")),
        words("note", "Note", map(_reason, whys), wrap=True),
    ]
    sources = dict.fromkeys(f"{row['gpu_models']}: {row['peak_source']}" for row in rows if row["peak_source"])
    counts = analysis.frame.filter(MEASURED & (pl.col("flop_source") == "model") & (pl.col("mode") != "infer"))
    older = counts["model_first_macs"].null_count() > 0
    why = dict.fromkeys(filter(None, whys))
    return cell_table(
        analysis,
        cells,
        columns,
        name="utilisation",
        title="Model FLOP utilisation and memory",
        caption=[
            "MFU: FLOP that the model needs for one sample or token, forward and backward, without what is computed again (PaLM, appendix "
            "B) and, of networks of Slipway, without the gradient of what the first layer reads"
            f"{OLDER if older else ''}, times the rate, over the peak of the {analysis.processes}; geometric mean over runs",
            *describe_columns("utilisation", columns, EXPLAINED_OF_USE),
            f"Peaks: {'; '.join(sources)}" if sources else "",
            f"No MFU where {'; '.join(why)}" if why else "",
        ],
    )


def _reason(text: str | None) -> str | None:
    return None if text is None else Reason(text)


def _cells(frame: pl.DataFrame) -> pl.DataFrame:
    """Return for each measured cell what its runs have in common, null where they differ."""
    return (
        frame.filter(MEASURED)
        .group_by("source", "cell_id", maintain_order=True)
        .agg(
            *[pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()).alias(name) for name in OF_A_CELL],
            pl.col("mfu").log().mean().exp().alias("mfu"),
            pl.col("gpu_busy_ratio").mean(),
            pl.col("peak_memory_bytes").max(),
            pl.when(pl.col("device") == "cuda")
            .then(pl.col("gpu_memory_bytes") - pl.col("peak_memory_bytes"))
            .min()
            .alias("memory_left_bytes"),
            pl.any_horizontal(pl.col(name).n_unique() > 1 for name in OF_A_CELL).alias("differ"),
        )
    )


def _why_none(cell: CellResult, row: Mapping[str, object]) -> str | None:
    if row["device"] == "cpu":
        return "it ran on CPUs, which have no peak here"
    if row["differ"]:
        return "the runs of a cell differ in their GPUs, or in what their program reports"
    if row["flop_per_unit"] is None:
        return f"the FLOP of a {cell.unit.removesuffix('s')} are not known: a program reports them by start(flop_per_unit=...)"
    if row["arithmetic"] is None:
        return "the precision of its matrices is not known: a program reports it by start(precision=...)"
    if row["peak_flop_per_s"] is None:
        return f"the peak of {row['gpu_models'] or 'its GPUs'} in {row['arithmetic']} is not known here"
    return None


EXPLAINED: Final = (
    *("run_s", "training_s", "step_p50_s", "step_p95_s", "window_s", "allocations", "node_sets", "samples_per_s", "tokens_per_s"),
)
"""Columns of `times` that the caption explains."""
MAX_LOSS: Final = 700.0
"""The greatest loss with a perplexity that is a number."""


def all_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield every table in the order of the report. One at a time, since those of 10^5 runs need much memory."""
    return (build(analysis) for build in TABLES.values())


def speedup(analysis: Analysis) -> Table:
    """Build table a: one row per line (series and batch), one column per number of processes, `S (E) ±CI`."""
    lines = [{one.cell.shape: one for one in line} for line in analysis.lines.values()]
    kinds = [(kind, f"{size} {'in all' if kind == 'strong' else 'each'}") for _, _, kind, size in analysis.lines]
    shapes = sorted({shape for line in lines for shape in line})
    columns = [
        *key_columns(analysis, [next(iter(line.values())).cell for line in lines]),
        words("scaling", "Scaling", [kind for kind, _ in kinds], folds=True),
        words("batch", "Batch", [size for _, size in kinds], folds=True),
    ]
    several_of, several = several_shapes(shapes), [has_several_baselines(line.values()) for line in lines]
    for shape in shapes:
        comparisons = [line.get(shape) for line in lines]
        found = [_speedup(*pair) for pair in zip(comparisons, several, strict=True)]
        links = cell_links(analysis, [None if one is None else one.cell for one in comparisons])
        columns.append(marked_words(shape_key(shape, several_of), shape_title(shape, several_of, analysis), found, links))
    return Table(
        name="speedup",
        title="Speed-up and efficiency",
        caption=sentence(
            f"S (E): {analysis.rate_words} over the baseline's ({baseline_text(analysis)}), and S over the growth in processes",
            against_text(analysis),
            interval_text(analysis),
            not_compared(analysis.frame),
            shared_machine_note(analysis),
            analysis.shared,
        ),
        columns=tuple(columns),
    )


def times(analysis: Analysis) -> Table:
    """Build table b: nodes x batch x model -> time, step, rate, speed-up, efficiency."""
    comparisons = analysis.primary
    cells = [one.cell for one in comparisons]
    unit, unit_s = time_unit(cell.means["run_s"] for cell in analysis.cells)
    untimed = [cell.marks & {"untimed"} for cell in cells]
    measured = [cell.measuring - {"partial"} for cell in cells]
    in_unit, milliseconds = partial(scaled, unit_s), partial(scaled, MILLI)

    def means(name: str) -> list[float | None]:
        return [cell.means[name] for cell in cells]

    ended = [f"{cell.num_ended_well}/{cell.num_runs}" for cell in cells]
    columns = [
        words("runs", "Runs ok", ended, number=True, marks=[cell.marks & {"partial"} for cell in cells]),
        numbers("allocations", "Jobs", str, [cell.num_allocations for cell in cells]),
        numbers("node_sets", "Node sets", str, [cell.num_node_sets for cell in cells]),
        numbers("run_s", f"Run [{unit}]", in_unit, means("run_s"), untimed),
        numbers("training_s", f"Training [{unit}]", in_unit, means("training_s"), untimed),
        numbers("step_p50_s", "Step p50 [ms]", milliseconds, [cell.step_s and cell.step_s.value for cell in cells], measured),
        numbers("step_p95_s", "p95 [ms]", milliseconds, [cell.p95_s and cell.p95_s.value for cell in cells]),
        numbers("window_s", "Window [s]", significant, means("window_s")),
        numbers("input_wait_ratio", "Input wait", percent, [cell.input_wait_ratio for cell in cells]),
        *[
            estimates(
                f"{name}_per_s", f"{name.capitalize()}/s", [cell.rate_per_s if cell.unit == name else None for cell in cells], measured
            )
            for name in UNITS
        ],
        numbers(
            "speedup",
            "Speed-up",
            _speedup_text,
            [one if one.speedup else None for one in comparisons],
            [one.marks - one.cell.marks for one in comparisons],
            raw=lambda one: one.speedup.value,
        ),
        numbers("efficiency", "Efficiency", percent, [one.efficiency and one.efficiency.value for one in comparisons]),
        words("scaling", "Scaling", [_scaling_word(one) or NONE for one in comparisons]),
        words("against", "Against", [_against(analysis, one) for one in comparisons]),
        numbers("accuracy", "Accuracy", percent, means("eval_accuracy")),
        numbers("perplexity", "Perplexity", significant, [_perplexity(cell) for cell in cells]),
        words("note", "Note", [_reason(one.reason) for one in comparisons], wrap=True),
    ]
    return cell_table(
        analysis,
        cells,
        columns,
        name="times",
        title="Time, step and rate",
        caption=[
            "Batch: of each process",
            *describe_columns("times", columns, EXPLAINED),
            against_text(analysis),
            interval_text(analysis),
            not_compared(analysis.frame),
            shared_machine_note(analysis),
        ],
        empty="No rows.",
    )


def dlbench(analysis: Analysis) -> Table:
    """Build table c: `batchTime(totalTime)` in the words of dlbench, one column per batch size."""
    rows: dict[tuple[str, str, int, int], dict[int, CellResult]] = {}
    for cell in analysis.cells:
        rows.setdefault((cell.source, cell.series, cell.cell.nodes, cell.cell.gpus_per_node), {})[cell.cell.batch_size] = cell
    first = [next(iter(row.values())) for row in rows.values()]
    columns = [*key_columns(analysis, first), *size_columns(first, ("nodes", "gpus_per_node"))]
    for size in sorted({cell.cell.batch_size for cell in analysis.cells}):
        cells = [row.get(size) for row in rows.values()]
        columns.append(marked_words(f"batch_{size}", f"batch {size}", [*map(_batch_and_total_time, cells)], cell_links(analysis, cells)))
    return Table(
        name="dlbench",
        title="Batch time and total time",
        caption=sentence(
            "batchTime(totalTime) in seconds: median step, and the program from start to end (step 4 of the run); batch per process",
            analysis.shared,
        ),
        columns=tuple(columns),
    )


def budget(analysis: Analysis) -> Table:
    """Build table l: the steps of a run, as means over the measured runs of a cell."""
    cells = [cell for cell in analysis.cells if cell.num_measured]
    times = [(cell.means["run_s"], cell.means["training_s"]) for cell in cells]
    columns = [
        *[numbers(f"{step}_s", step.capitalize(), significant, [cell.means[f"{step}_s"] for cell in cells]) for step in SHOWN_STEPS],
        numbers("run_s", "Run", significant, [run_s for run_s, _ in times], [cell.marks & {"budget", "resumed"} for cell in cells]),
        numbers(
            "goodput_ratio",
            "Training",
            percent,
            [training_s / run_s if run_s and training_s is not None else None for run_s, training_s in times],
        ),
    ]
    return cell_table(
        analysis,
        cells,
        columns,
        name="budget",
        title="Where the time of a run goes",
        caption=[
            "Seconds, mean over the measured runs. Run is the sum of stage to release; "
            f"{BESIDE} comes from the scheduler and is not part of it. Training: share of the run in which the program trained"
        ],
    )


TABLES: Final[dict[str, Callable[[Analysis], Table]]] = {
    "speedup": speedup,
    "times": times,
    "failures": failures,
    "budget": budget,
    "hours": hours,
    "utilisation": utilisation,
    "bounds": bounds,
    "cost": cost,
    "storage": storage,
    "parts": parts,
    "layers": layers,
    "prediction": prediction,
    TIME_TO_ACCURACY: time_to_accuracy,
    PRECISION: precision,
    "dlbench": dlbench,
    "frameworks": frameworks,
    "survey": survey,
    FACTS: facts_of_study,
    MODEL_FACTS: facts_of_models,
    CONVOLUTIONS: convolutions_of_study,
    "scaling": scaling,
}


def interval_text(analysis: Analysis) -> str:
    """Explain how the intervals of rates and ratios were made."""
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
    """Format the baseline as the study file has it; if all cells of a series match it, say which of them are used."""
    baseline = analysis.sources[0].baseline
    narrowed = any(is_named(one.cell.cell, baseline) and not one.is_baseline for one in analysis.primary)
    taken = f"; where all cells of a series have that, those with the fewest {analysis.processes} are the baseline" if narrowed else ""
    return printable(keys_text(baseline) + taken) or "none is named"


def against_text(analysis: Analysis) -> str:
    """Describe the several baselines that numbers are measured against."""
    return "Against: the baseline of a number, as nodes \N{MULTIPLICATION SIGN} processes of each" if analysis.crossed else ""


def _speedup(comparison: Comparison | None, several: bool) -> tuple[str, Marks]:
    if comparison is None:
        return "", NO_MARKS
    if not comparison.speedup or not comparison.efficiency:
        cell = comparison.cell
        return Reason(short_reason(comparison)), cell.marks & {"untimed"} if cell.reason else cell.marks
    if comparison.is_baseline:
        return "1 (baseline)", comparison.marks
    value, error = with_error(comparison.speedup)
    shown = f"{value} ({percent(comparison.efficiency.value)}) {error}".rstrip()
    if several and comparison.partner is not None:
        _, nodes, per_node = comparison.partner.shape
        shown += f" against {nodes}\N{MULTIPLICATION SIGN}{per_node}"
    return shown, comparison.marks


def _speedup_text(comparison: Comparison | None) -> str:
    return NONE if comparison is None else "1" if comparison.is_baseline else estimate_text(comparison.speedup)


def short_reason(comparison: Comparison) -> str:
    """Shorten a reason to a word or two for a table of numbers; the failures table has the sentence."""
    if comparison.cell.reason:
        return comparison.cell.reason
    return f"baseline {comparison.partner.reason}" if comparison.partner else "no baseline"


def _perplexity(cell: CellResult) -> float | None:
    """Return e to the mean loss of the last evaluation, of tokens; None where it is too large to show."""
    loss = cell.means["eval_loss"] if cell.unit == "tokens" else None
    return None if loss is None or loss > MAX_LOSS else math.exp(loss)


def _against(analysis: Analysis, comparison: Comparison) -> str:
    """Describe the baseline of a number, if its study has several of one series."""
    if not analysis.crossed or comparison.is_baseline or comparison.partner is None or comparison.speedup is None:
        return ""
    return shape_words(analysis, comparison.partner)


def _batch_and_total_time(cell: CellResult | None) -> tuple[str, Marks]:
    if cell is None:
        return Reason(NOT_IN_STUDY), NO_MARKS
    if not cell.step_s:
        return Reason(cell.reason or ""), NO_MARKS
    return f"{significant(cell.step_s.value)}({significant(cell.means['train_s'])})", cell.measuring
