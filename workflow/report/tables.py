"""Make the tables of a study. The letters are those of the design notes: a speed-up, b time, c dlbench, h hours, l time budget, m
utilisation, o failures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

import polars as pl

from base.errors import ConfigError
from base.logs import printable
from containers.frameworks import FRAMEWORKS, load_framework
from containers.frameworks.facts import Facts, load_other_facts, told
from containers.frameworks.spec import FrameworkSpec
from containers.models import MODELS, of_tokens
from workflow.report.analysis import Analysis
from workflow.report.cells import ENDED_WELL, MARKS, MEASURED, MEASURING, CellResult, Estimate, Shape
from workflow.report.derive import Comparison, has_several_baselines
from workflow.report.digits import NONE, joined, percent, significant, time_unit, with_error
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
from workflow.report.table import MOST_ROWS, Column, Table, Value, number, text
from workflow.run.record.columns import BESIDE, MISSING, PREVENTED, SHOWN_STEPS, UNREADABLE
from workflow.study.cell import ARGS, SIZES, UNITS, WORDS, Cell, plain_text
from workflow.study.series import TOLD_BY_FRAMEWORK, in_words, is_named

# Table `framework-facts`: what is claimed of each framework, and what a test of ours ran. It is made from framework.yaml and
# other-frameworks.yaml, not from records.


NAME: Final = "framework-facts"
ABLE: Final = {
    "interfaces": "interfaces",
    "data_parallel": "data parallel",
    "model_parallel": "model parallel",
    "devices": "devices",
    "lmdb": "reads LMDB",
}
COLUMNS: Final = (
    *(Column(key=key, title=key.capitalize(), number=False) for key in ("framework", "version", "launcher", "status")),
    Column(key="release", title="Last release", number=False),
    Column(key="released", title="Month", number=False),
    Column(key="licence", title="Licence", number=False),
    Column(key="networks", title="Networks", number=False, wrap=True),
    *(Column(key=f"verified_{key}", title=f"Verified: {title}", number=False, wrap=True) for key, title in ABLE.items()),
    *(Column(key=f"claimed_{key}", title=f"Claimed: {title}", number=False, wrap=True) for key, title in ABLE.items()),
    Column(key="verified_by", title="Verified by", number=False, wrap=True),
    Column(key="missing", title="Not supported, and why", number=False, wrap=True),
    Column(key="sources", title="Claims and status by", number=False, wrap=True),
    Column(key="note", title="Note", number=False, wrap=True),
)

FACT_PARTS: Final = {
    "Facts of the frameworks": ("version", "launcher", "status", "release", "released", "licence", "networks"),
    "Verified: what a test of ours ran": tuple(f"verified_{key}" for key in ABLE),
    "Claimed: what the sources say, and we have not tried": tuple(f"claimed_{key}" for key in ABLE),
    "Verified by": ("verified_by",),
    "Never run by a test of ours": ("note",),
    "Not supported, and why": ("missing",),
    "Sources of claims, status, release and licence": ("sources",),
}
"""Title -> columns."""


def of_study(analysis: Analysis) -> Table:
    """Of the frameworks of the study; programs of its own are none, and what another version knew is left out."""
    return facts_table(cell.keys["framework"] for cell in analysis.cells if not cell.keys.get("program"))


def facts_table(names: Iterable[str] | None = None) -> Table:
    """Build a table with one row per framework, in the order of FRAMEWORKS.

    Without `names` it has all of them, and those that Slipway does not run.
    """
    wanted = set(FRAMEWORKS if names is None else names)
    rows = [_row(load_framework(name)) for name in FRAMEWORKS if name in wanted]
    if names is None:
        rows += [_row_of_other(name, facts) for name, facts in load_other_facts().items()]
    return Table(
        name=NAME,
        title="Facts of the frameworks",
        caption="Version: what Slipway installs. Verified: the test that is named ran it. Claimed: told by the sources that are named, "
        "and not tried by us; so are status, last release and licence. An empty cell: not tried, or not told; "
        "no: the sources say that it has none. Reads LMDB: by itself; Slipway's reader gives it to all.",
        columns=COLUMNS,
        rows=tuple(rows),
        empty="No framework of Slipway's.",
    )


def in_parts(table: Table) -> list[Table]:
    """Split the table of frameworks for a terminal, which has no room for all columns.

    A part has the frameworks that it has something to say about.
    """
    parts = [_part(table, title, keys) for title, keys in FACT_PARTS.items()]
    return [*parts[:-1], replace(parts[-1], caption=table.caption)]


def _part(table: Table, title: str, keys: Sequence[str]) -> Table:
    places = [0, *(place for place, column in enumerate(table.columns) if column.key in keys)]
    rows = (tuple(row[place] for place in places) for row in table.rows)
    columns = tuple(replace(table.columns[place], title=_short(table.columns[place].title)) for place in places)
    return replace(table, title=title, caption="", columns=columns, rows=tuple(row for row in rows if any(value.text for value in row[1:])))


def _short(title: str) -> str:
    """`Verified: reads LMDB` below the title that says what it is: `Reads LMDB`."""
    word = title.rpartition(": ")[2]
    return word[:1].upper() + word[1:]


def _row(spec: FrameworkSpec) -> tuple[Value, ...]:
    missing = "; ".join(f"{', '.join(one.words)}: {one.why}" for one in spec.missing)
    return _of_words([spec.name, _version(spec), spec.launcher], spec.facts, _networks(spec), missing, _note(spec))


def _row_of_other(name: str, facts: Facts) -> tuple[Value, ...]:
    return _of_words([name, "", ""], facts, "", "", "Slipway does not run it")


def _of_words(words: Sequence[str], facts: Facts | None, networks: str, missing: str, note: str) -> tuple[Value, ...]:
    known = ["", "", "", ""] if facts is None else [facts.status, facts.release, facts.released or "", facts.licence]
    verified = None if facts is None else facts.verified
    able = [*told(verified).values(), *told(None if facts is None else facts.claimed).values()]
    last = [verified.by if verified else "", missing, "; ".join(facts.sources) if facts else "", note]
    return tuple(map(text, [*words, *known, networks, *able, *last]))


def _networks(spec: FrameworkSpec) -> str:
    """How many of Slipway's it trains."""
    able, tokens = set(spec.supports.models), set(of_tokens())
    parts = {"images": set(MODELS) - tokens, "tokens": tokens}
    return ", ".join(f"{len(able & names)} of {len(names)} for {what}" for what, names in parts.items())


def _version(spec: FrameworkSpec) -> str:
    """The pinned one; of a framework that is no package the tag of its image."""
    pinned = next((package for package in spec.packages if "==" in package), None)
    return pinned.split("==")[1] if pinned else spec.image.rpartition(":")[2]


def _note(spec: FrameworkSpec) -> str:
    if spec.facts is None or spec.facts.verified is not None:
        return ""
    return "never run by a test of ours" + (f": {spec.containers_only}" if spec.containers_only else "")


# Table `frameworks`: frameworks x networks x processes, as in dlbench's paper: seconds per batch, and the rate.


OF_FRAMEWORK: Final = ("framework", "backend", "reader", "layout", *TOLD_BY_FRAMEWORK)
"""Keys in which frameworks differ that do the same: each has its name, and some lay out memory in one way only."""
NOT_ASKED: Final = "not in the study"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row: `cells` by their shape; without any, `missing` says why there is none, and `values` are those of the keys."""

    model: str
    batch: int
    framework: str
    values: tuple[Value, ...]
    cells: Mapping[Shape, CellResult]
    missing: str = NOT_ASKED


def frameworks(analysis: Analysis) -> Table:
    """Build a table with one row per network, batch and framework, one column per number of processes: `seconds of a batch (rate)`."""
    shapes, several = analysis.shapes, several_shapes(analysis.shapes)
    columns = [*key_columns(analysis), SIZE_COLUMNS[0]]
    columns += [Column(key=shape_key(shape, several), title=shape_title(shape, several, analysis)) for shape in shapes]
    lines = _in_order(analysis, [line for group in _groups(analysis) for line in _lines(analysis, group)])
    rows: list[tuple[Value, ...]] = []
    leads: list[tuple[str, ...]] = []
    for line in lines:
        shown = [_value(line.cells[shape]) if shape in line.cells else text(line.missing, muted=True) for shape in shapes]
        rows.append((*line.values, text(line.batch), *shown))
        if len(leads) < MOST_ROWS:
            places = {shape: cell_place(analysis, cell.source, cell.cell_id) for shape, cell in line.cells.items()}
            leads.append((*[""] * (len(line.values) + 1), *[places.get(shape, "") for shape in shapes]))
    return Table(
        name="frameworks",
        title="Frameworks, networks and sizes",
        caption=sentence(
            f"Seconds of a batch, the median step, and behind it {analysis.rate_words} of all processes together; batch per process. "
            "`slipway check-frameworks` tells whether they train the same network",
            analysis.shared,
        ),
        columns=tuple(columns),
        rows=tuple(rows),
        leads=tuple(leads),
        reasons=analysis.reasons,
        folds=len(key_columns(analysis)) + 1,
    )


def _groups(analysis: Analysis) -> list[list[CellResult]]:
    """Cells of the same source and batch, alike but for framework and network."""
    groups: dict[tuple[object, ...], list[CellResult]] = {}
    alike: dict[str, tuple[tuple[str, str], ...]] = {}
    for cell in analysis.cells:
        if cell.series not in alike:
            keys = analysis.flat[cell.source, cell.cell_id]
            alike[cell.series] = tuple(sorted((name, repr(value)) for name, value in keys.items() if name not in ("model", *OF_FRAMEWORK)))
        groups.setdefault((cell.source, cell.keys["batch_size"], alike[cell.series]), []).append(cell)
    return list(groups.values())


def _lines(analysis: Analysis, group: Sequence[CellResult]) -> Iterator[Line]:
    """Those that the group has; and one for each of its frameworks with each of its networks that it has not."""
    found: dict[str, list[CellResult]] = {}
    for cell in group:
        found.setdefault(cell.series, []).append(cell)
    for cells in found.values():
        keys = cells[0].keys
        yield Line(
            model=keys["model"],
            batch=keys["batch_size"],
            framework=keys["framework"],
            values=tuple(key_values(analysis, cells[0])),
            cells={cell.shape: cell for cell in cells},
        )
    ours = [cell for cell in group if not cell.keys.get("program")]
    had = {(cell.keys["model"], cell.keys["framework"]) for cell in ours}
    first = {cell.keys["framework"]: cell for cell in reversed(ours)}
    values = {framework: key_values(analysis, cell) for framework, cell in first.items()}
    place, batch = analysis.key_names.index("model"), group[0].keys["batch_size"]
    for model in dict.fromkeys(cell.keys["model"] for cell in ours):
        for framework, own in values.items():
            if (model, framework) not in had:
                shown = (*own[:place], text(model), *own[place + 1 :])
                yield Line(model=model, batch=batch, framework=framework, values=shown, cells={}, missing=_why_no_cell(framework, model))


def _why_no_cell(framework: str, model: str) -> str:
    try:
        spec = load_framework(framework)
    except ConfigError:
        return NOT_ASKED  # of another version, which had it
    if model in spec.supports.models:
        return NOT_ASKED
    return f"not supported: {spec.why[model]}" if model in spec.why else "not supported"


def _in_order(analysis: Analysis, lines: Sequence[Line]) -> list[Line]:
    """By network, then batch, then framework, each in the study's order."""
    models = _places(cell.keys["model"] for cell in analysis.cells)
    names = _places(cell.keys["framework"] for cell in analysis.cells)
    return sorted(lines, key=lambda line: (models[line.model], line.batch, names[line.framework]))


def _places(values: Iterator[Any]) -> dict[Any, int]:
    return {value: place for place, value in enumerate(dict.fromkeys(values))}


def _value(cell: CellResult) -> Value:
    if not cell.step_s or not cell.rate_per_s:
        return text(cell.reason, muted=True, marks=cell.marks & {"untimed"})
    shown = f"{significant(cell.step_s.value)} ({significant(cell.rate_per_s.value)})"
    return text(shown, marks=cell.marks.intersection(MEASURING))


# Table h, hours: process hours and GPU hours of the runs. Prevented attempts have columns of their own.


HOUR_PARTS: Final = {"measured": "Measured", "failed": "Failed", "prevented": "Prevented", "repeated": "Repeated", "aside": "Set aside"}
HOUR_S: Final = 3600.0


def hours(analysis: Analysis) -> Table:
    """Build a table with one row per cell that took any time: run_s of its attempts x its processes, and x its GPUs."""
    took = {(row["source"], row["cell_id"]): row for row in _seconds(analysis.frame).iter_rows(named=True)}
    columns = [
        *key_columns(analysis),
        *SIZE_COLUMNS,
        *[Column(key=f"{part}_process_h", title=title) for part, title in HOUR_PARTS.items()],
        Column(key="process_h", title="Process hours"),
        Column(key="gpu_h", title="GPU hours"),
    ]
    cells = [(cell, row) for cell in analysis.cells if (row := took.get((cell.source, cell.cell_id))) and _total(row)]
    return Table(
        name="hours",
        title="What the runs took",
        caption=sentence(
            "Hours of a run (stage to release) times its processes. Failed: results without a measurement. Prevented: attempts that were "
            "cut off, also where a later one was measured. Repeated: results that a later one replaced. Set aside: attempts that were "
            "delivered when another one had their number. GPU hours: times its GPUs. Attempts without a readable record are in none",
            _in_all(cells),
            analysis.shared,
        ),
        columns=tuple(columns),
        rows=tuple((*key_values(analysis, cell), *_hour_values(cell, row)) for cell, row in cells),
        leads=to_cells(analysis, columns, [cell for cell, _ in cells]),
        empty="No run has taken any time yet.",
    )


def _seconds(frame: pl.DataFrame) -> pl.DataFrame:
    """Per cell the seconds of its attempts by how they ended, and of all of them times their GPUs."""
    run_s = pl.col("run_s").fill_null(0.0)
    cut = pl.col("status").is_in(PREVENTED)
    return (
        frame.filter(pl.col("cell_id").is_not_null())
        .group_by("source", "cell_id", maintain_order=True)
        .agg(
            run_s.filter(ENDED_WELL).sum().alias("measured"),
            (run_s.filter(~ENDED_WELL & ~cut).sum() + pl.col("unmeasured_s").sum()).alias("failed"),
            (run_s.filter(cut).sum() + pl.col("prevented_s").sum()).alias("prevented"),
            pl.col("repeated_s").sum().alias("repeated"),
            pl.col("aside_s").sum().alias("aside"),
            ((run_s * pl.col("num_gpus").fill_null(0)).sum() + pl.col("beside_gpu_s").sum()).alias("gpu_s"),
        )
    )


def _total(row: Mapping[str, Any]) -> float:
    return float(sum(row[part] for part in HOUR_PARTS))


def _hour_values(cell: CellResult, row: Mapping[str, Any]) -> list[Value]:
    parts = [row[part] * cell.num_processes / HOUR_S for part in HOUR_PARTS]
    shown = [*parts, sum(parts), row["gpu_s"] / HOUR_S]
    return [*size_values(cell), *[number(significant, value) for value in shown]]


def _in_all(cells: list[tuple[CellResult, dict[str, Any]]]) -> str:
    process_h = sum(_total(row) * cell.num_processes for cell, row in cells) / HOUR_S
    lost_h = sum(row["prevented"] * cell.num_processes for cell, row in cells) / HOUR_S
    gpu_h = sum(row["gpu_s"] for _, row in cells) / HOUR_S
    return f"In all {significant(process_h)} process hours, {significant(lost_h)} of them prevented; {significant(gpu_h)} GPU hours"


# Long tables: one row for every comparison, and for every run without a number.


LONGEST: Final = 400
LAST_LINES: Final = 3
RUN_AGAIN: Final = (
    "Results that failed run again with `slipway run STUDY --retry failed`, prevented and missing runs with the same command as before. "
    "A run that ended ok does not run again."
)
KEYS: Final = (*(field.name for field in fields(Cell) if field.name in WORDS and field.name != "device"), *SIZES)
SCALING: Final = (
    *(
        "source",
        "cell",
        *KEYS,
        "processes",
        "hardware",
        "scaling",
        "primary",
        "runs",
        "allocations",
        "node_sets",
        "step_s",
        "step_low_s",
        "step_high_s",
        "samples_per_s",
        "samples_per_s_low",
        "samples_per_s_high",
        "tokens_per_s",
        "tokens_per_s_low",
        "tokens_per_s_high",
        "window_s",
    ),
    *("partner", "speedup", "speedup_low", "speedup_high", "efficiency", "efficiency_low", "efficiency_high", "interval", "reason"),
)


def failures(analysis: Analysis) -> Table:
    """Build table o: every run of the study without a measurement, with the reason. Runs not yet begun stand at the end."""
    several = len(analysis.sources) > 1
    heads = [("source", "Source")] if several else []
    heads += [
        ("run", "Run"),
        ("attempt", "Attempt"),
        ("end", "End"),
        ("reason", "Reason"),
        ("rank", "Rank"),
        ("host", "Host"),
        ("exit", "Exit"),
    ]
    heads += [("last_lines", "Last lines"), ("files", "Files")]
    numbers, sentences = ("attempt", "rank"), ("reason", "last_lines", "files")
    columns = [Column(key=key, title=title, number=key in numbers, wrap=key in sentences) for key, title in heads]
    failed = analysis.frame.filter(~MEASURED).sort(pl.col("status") == MISSING, maintain_order=True)
    rows = [_failure(row) for row in failed.iter_rows(named=True)]
    return Table(
        name="failures",
        title="Runs without a measurement",
        caption=RUN_AGAIN,
        columns=tuple(columns),
        rows=tuple(
            (text(row["source"]), *values) if several else values for row, values in zip(failed.iter_rows(named=True), rows, strict=True)
        ),
        empty="Every run of the study was measured.",
    )


def reason_of(row: Mapping[str, Any]) -> str | None:
    """Explain in words why a row of records.parquet is no measurement."""
    if row["status"] == "ok" and row["steps_source"] == "none":
        return "ended ok; its program tells of no steps (events: none), so that there are wall times only"
    untold = ": its program told no tokens" if row["unit"] == "tokens" and row["tokens"] is None else ""
    return row["status_reason"] or {MISSING: "not run yet", "ok": f"ended ok, but no rate could be measured{untold}"}.get(row["status"])


def _failure(row: Mapping[str, Any]) -> tuple[Value, ...]:
    files = (
        f"runs/{row['run_id']}/attempts/{row['attempt']}/"
        if row["attempt"]
        else f"runs/{row['record']}"
        if row["status"] == UNREADABLE
        else None
    )
    end = row["failed_signal"] or row["failed_exit_code"]
    return (
        text(row["run_id"]),
        number(_whole, row["attempt"]),
        text(row["status"]),
        text(short(reason_of(row))),
        number(_whole, row["failed_rank"]),
        text(short(row["failed_host"])),
        text("" if end is None else end),
        text(short(last_lines(row))),
        text(files),
    )


def last_lines(row: Mapping[str, Any]) -> str:
    """Return the last lines that the failed rank wrote. A record may also hold its lines as a JSON list."""
    told = row["failed_last_lines"] or ""
    lines = told.splitlines()
    if told.startswith("["):
        with suppress(ValueError):
            lines = [str(line) for line in json.loads(told)]
    return "\n".join(lines[-LAST_LINES:])


def short(value: str | None) -> str | None:
    """Shorten what programs wrote; its beginning stays."""
    return value if value is None or len(value) <= LONGEST else value[:LONGEST] + "\N{HORIZONTAL ELLIPSIS}"


def scaling(analysis: Analysis) -> Table:
    """Build the table of every comparison, weak and strong, with its partner: the source of the other tables, for programs to read."""
    words = {*WORDS, "source", "cell", "hardware", "scaling", "partner", "interval", "reason"}
    arguments = sorted({name for comparison in analysis.comparisons for name in comparison.cell.keys.get("args") or ()})
    columns = [Column(key=name, title=name.replace("_", " "), number=name not in words) for name in SCALING]
    return Table(
        name="scaling",
        title="Every comparison",
        caption="Weak: the baseline has the same batch per process. Strong: the same global batch. low, high: 95 % confidence interval; "
        "interval: how that of the ratio was made, from differences within each repeat (paired) or by Welch.",
        columns=(*columns, *(Column(key=f"{ARGS}{name}", title=f"{ARGS}{name}") for name in arguments)),
        rows=tuple((*_comparison(one), *_arguments(one.cell.keys, arguments)) for one in analysis.comparisons),
    )


def _arguments(keys: Mapping[str, Any], names: Sequence[str]) -> list[Value]:
    """Those of a cell's program; nothing where it has not all of them."""
    args = keys.get("args") or {}
    return [text(plain_text(args[name]) if name in args else None) for name in names]


def _comparison(comparison: Comparison) -> tuple[Value, ...]:
    cell, partner = comparison.cell, comparison.partner
    step = cell.step_s
    return (
        text(cell.source),
        text(cell.cell_id),
        *[text(cell.keys.get(key)) for key in KEYS],
        text(cell.num_processes),
        text(" / ".join(sorted(cell.distinct["hardware"]))),
        text("baseline" if comparison.is_baseline else comparison.scaling if partner else None),
        text(int(comparison.primary)),
        text(cell.num_measured, marks=cell.marks & {"partial"}),
        text(cell.num_allocations),
        text(cell.num_node_sets),
        *_three(step, marks=cell.marks - {"partial"}),
        *[value for unit in UNITS for value in _three(cell.rate_per_s if cell.unit == unit else None, marks=cell.marks - {"partial"})],
        number(significant, cell.means.get("window_s")),
        text(partner.cell_id if partner else None),
        *_three(comparison.speedup, marks=comparison.marks),
        *_three(comparison.efficiency, marks=comparison.marks, as_percent=True),
        text(_interval_method(comparison.speedup)),
        text(comparison.reason),
    )


def _interval_method(ratio: Estimate | None) -> str | None:
    """Return how the interval of a ratio was made; None where it has none."""
    return None if ratio is None or ratio.low is None else "paired" if ratio.paired else "welch"


def _three(estimate: Estimate | None, marks: frozenset[str] = frozenset(), *, as_percent: bool = False) -> tuple[Value, Value, Value]:
    show = percent if as_percent else _four_digits
    value, low, high = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return number(show, value, marks), number(show, low), number(show, high)


def _four_digits(value: float | None) -> str:
    return significant(value, 4)


def _whole(value: int | None) -> str:
    return NONE if value is None else str(value)


# Table m, utilisation: how much of its GPUs a model uses, and the memory that it takes.


GIGA: Final = 1e9
TERA: Final = 1e12
GIB: Final = 2**30
OLDER: Final = " (of records of earlier versions with it)"
ALIKE: Final = ("device", "flop_per_unit", "flop_source", "arithmetic", "gpu_models", "peak_flop_per_s", "peak_source")
"""What all runs of a cell have in common, or there is no number."""


def utilisation(analysis: Analysis) -> Table:
    """Build a table with one row per measured cell."""
    found = {(row["source"], row["cell_id"]): row for row in _cells(analysis.frame).iter_rows(named=True)}
    cells = [(cell, row) for cell in analysis.cells if (row := found.get((cell.source, cell.cell_id))) is not None]
    heads = {"arithmetic": "Precision", "flop_per_unit": "GFLOP per sample", "flop_source": "FLOP told by", "flop_per_s": "TFLOP/s"}
    heads["flop_per_unit"] = f"GFLOP per {' or '.join(unit.removesuffix('s') for unit in analysis.units)}"
    heads |= {"peak_flop_per_s": "Peak TFLOP/s", "mfu": "MFU", "peak_memory_bytes": "Memory [GiB]", "note": "Note"}
    words = ("arithmetic", "flop_source", "note")
    columns = [
        *key_columns(analysis),
        *SIZE_COLUMNS,
        *[Column(key=key, title=title, number=key not in words, wrap=key == "note") for key, title in heads.items()],
    ]
    sources = dict.fromkeys(f"{row['gpu_models']}: {row['peak_source']}" for _, row in cells if row["peak_source"])
    counts = analysis.frame.filter(MEASURED & (pl.col("flop_source") == "model") & (pl.col("mode") != "infer"))
    older = counts["model_first_macs"].null_count() > 0
    why = dict.fromkeys(filter(None, (_why_none(cell, row) for cell, row in cells)))
    return Table(
        name="utilisation",
        title="Model FLOP utilisation and memory",
        caption=sentence(
            "MFU: FLOP that the model needs for one sample or token, forward and backward, without what is computed again (PaLM, appendix "
            "B) and, of networks of Slipway, without the gradient of what the first layer reads"
            f"{OLDER if older else ''}, times the rate, over the peak of the {analysis.processes}; geometric mean over runs. TFLOP/s: the "
            f"same of one {analysis.process_name}. Peak: dense, of the vendor{'; ' if sources else ''}{'; '.join(sources)}. Memory: the "
            "most of all processes and runs: on GPUs of PyTorch's allocator, on CPUs the resident set",
            f"No MFU where {'; '.join(why)}" if why else "",
            analysis.shared,
        ),
        columns=tuple(columns),
        rows=tuple((*key_values(analysis, cell), *_utilisation_values(cell, row)) for cell, row in cells),
        leads=to_cells(analysis, columns, [cell for cell, _ in cells]),
        empty="No run was measured.",
    )


def _cells(frame: pl.DataFrame) -> pl.DataFrame:
    """Per measured cell what its runs have in common, null where they differ."""
    return (
        frame.filter(MEASURED & pl.col("cell_id").is_not_null())
        .group_by("source", "cell_id", maintain_order=True)
        .agg(
            *[pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()).alias(name) for name in ALIKE],
            pl.col("mfu").log().mean().exp().alias("mfu"),
            pl.col("peak_memory_bytes").max(),
            pl.any_horizontal(pl.col(name).n_unique() > 1 for name in ALIKE).alias("differ"),
        )
    )


def _utilisation_values(cell: CellResult, row: Mapping[str, Any]) -> list[Value]:
    rate, flop = cell.rate_per_s, row["flop_per_unit"]
    why = _why_none(cell, row)
    return [
        *size_values(cell),
        text(row["arithmetic"]),
        number(partial(_in, GIGA), flop),
        text(row["flop_source"]),
        number(partial(_in, TERA), flop * rate.value / cell.num_processes if flop and rate else None),
        number(partial(_in, TERA, digits=4), row["peak_flop_per_s"]),
        number(percent, None if why else row["mfu"], cell.marks & {"impossible"}),
        number(partial(_in, GIB), row["peak_memory_bytes"]),
        text(why, muted=True),
    ]


def _in(unit: float, value: float | None, digits: int = 3) -> str:
    return significant(None if value is None else value / unit, digits)


def _why_none(cell: CellResult, row: Mapping[str, Any]) -> str | None:
    """Why there is no utilisation; None where there is one."""
    if row["device"] == "cpu":
        return "it ran on CPUs, whose peak is not told"
    if row["differ"]:
        return "the runs of a cell differ in their GPUs, or in what their program tells"
    if row["flop_per_unit"] is None:
        return f"the FLOP of a {cell.unit.removesuffix('s')} are not known: a program tells them by start(flop_per_unit=...)"
    if row["arithmetic"] is None:
        return "the precision of its matrices is not known: a program tells it by start(precision=...)"
    if row["peak_flop_per_s"] is None:
        return f"the peak of {row['gpu_models'] or 'its GPUs'} in {row['arithmetic']} is not known here"
    return None


SLOWED: Final = frozenset({"oversubscribed", "shared", "busy", "drift", "network", "stalls", "input", "stragglers", "gaps", "threads"})
"""Marks that say why a baseline can be slower than it should: then a speed-up against it is too large."""
STATED: Final = ("gpus_per_node", "allocations", "node_sets", "input_wait_ratio")
"""Columns of `times` that the caption states where all rows have one value: with them the table is wider than the page."""
MOST_LOSS: Final = 700.0
"""Of a greater one the perplexity is no number."""


def all_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield every table in the order of the report, one after the other: those of 10^5 runs do not lie in memory together."""
    return (build(analysis) for build in TABLES.values())


def speedup(analysis: Analysis) -> Table:
    """Build table a: one row per line (series and batch), one column per number of processes, `S (E) ±CI`."""
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
    """Build table b: nodes x batch x model -> time, step, rate, speed-up, efficiency."""
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
    """Build table c: `batchTime(totalTime)` in the words of dlbench, one column per batch size."""
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
    """Build table l: the steps of a run, means over the measured runs of a cell."""
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
    NAME: of_study,
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
    """Shorten a reason to a word or two for a table of numbers; the failures table has the sentence."""
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
