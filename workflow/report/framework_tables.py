"""Make the tables that compare frameworks, on several machines too, what is known of each of them, and precisions and memory layouts."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from containers.frameworks import framework_folders, load_framework
from containers.frameworks.spec import Facts, FrameworkSpec, describe_capabilities, load_other_facts
from containers.models import MODELS, of_tokens
from workflow.report.analysis import Analysis
from workflow.report.bounds import is_anchor
from workflow.report.cells import MEASURING, CellResult, Shape, ratio
from workflow.report.shared_columns import (
    cell_links,
    cell_table,
    key_columns,
    sentence,
    several_shapes,
    shape_key,
    shape_title,
    size_columns,
)
from workflow.report.speedup import mixed_marks
from workflow.report.table_type import (
    MILLI,
    NO_MARKS,
    NONE,
    Column,
    Marks,
    Reason,
    Table,
    estimate_text,
    numbers,
    scaled,
    significant,
    with_interval,
    words,
)

# Table `framework-facts`: what is claimed of each framework, and what a test of ours ran. It is made from framework.yaml and
# other-frameworks.yaml, not from records.


FACTS: Final = "framework-facts"
CAPABILITIES: Final = {
    "interfaces": "interfaces",
    "data_parallel": "data parallel",
    "model_parallel": "model parallel",
    "devices": "devices",
    "lmdb": "reads LMDB",
}
FACT_TITLES: Final = {
    **{key: key.capitalize() for key in ("framework", "version", "launcher", "status")},
    **{"release": "Last release", "released": "Month", "licence": "Licence", "networks": "Networks"},
    **{f"verified_{key}": f"Verified: {title}" for key, title in CAPABILITIES.items()},
    **{f"claimed_{key}": f"Claimed: {title}" for key, title in CAPABILITIES.items()},
    **{"verified_by": "Verified by", "missing": "Not supported, and why", "sources": "Claims and status by", "note": "Note"},
}
SHORT_FACTS: Final = ("framework", "version", "launcher", "status", "release", "released", "licence")
FACT_PARTS: Final = {
    "Facts of the frameworks": ("version", "launcher", "status", "release", "released", "licence", "networks"),
    "Verified: what a test of ours ran": tuple(f"verified_{key}" for key in CAPABILITIES),
    "Claimed: what the sources say, and we have not tried": tuple(f"claimed_{key}" for key in CAPABILITIES),
    "Verified by": ("verified_by",),
    "Never run by a test of ours": ("note",),
    "Not supported, and why": ("missing",),
    "Sources of claims, status, release and licence": ("sources",),
}


def facts_of_study(analysis: Analysis) -> Table:
    """Build the table of the study's frameworks, without its own programs and frameworks that only another version knew."""
    return facts_table(cell.cell.framework for cell in analysis.cells if not cell.cell.program)


def facts_table(names: Iterable[str] | None = None) -> Table:
    """Build a table with one row per framework, in the order of `framework_folders`.

    Without `names` it has all of them, and those that Slipway does not run.
    """
    chosen = set(framework_folders() if names is None else names)
    rows = [_facts(load_framework(name)) for name in framework_folders() if name in chosen]
    if names is None:
        rows += [
            {"framework": name, "note": "Slipway does not run it", **_known_facts(facts)} for name, facts in load_other_facts().items()
        ]
    return Table(
        name=FACTS,
        title="Facts of the frameworks",
        caption="Version: what Slipway installs. Verified: the named test ran it. Claimed, status, last release and licence: stated by the "
        "named sources, and not tried by us. An empty cell: not tried, or not stated; "
        "no: the sources say that it has none. Reads LMDB: by itself; Slipway's reader gives it to all.",
        columns=tuple(words(key, title, [row.get(key) for row in rows], wrap=key not in SHORT_FACTS) for key, title in FACT_TITLES.items()),
        empty="No framework of Slipway's.",
    )


def in_parts(table: Table) -> list[Table]:
    """Split the table of frameworks for a terminal. Each part has the frameworks that it has something to say about."""
    parts = [_part(table, title, keys) for title, keys in FACT_PARTS.items()]
    return [*parts[:-1], replace(parts[-1], caption=table.caption)]


def _part(table: Table, title: str, keys: Sequence[str]) -> Table:
    name, *facts = (column for column in table.columns if column.key in ("framework", *keys))
    kept = [index for index in range(table.num_rows) if any(column.values[index] for column in facts)]
    columns = (replace(column, title=_short(column.title), values=[column.values[index] for index in kept]) for column in (name, *facts))
    return replace(table, title=title, caption="", columns=tuple(columns))


def _short(title: str) -> str:
    """Shorten `Verified: reads LMDB` to `Reads LMDB`."""
    word = title.rpartition(": ")[2]
    return word[:1].upper() + word[1:]


def _facts(spec: FrameworkSpec) -> dict[str, object]:
    missing = "; ".join(f"{', '.join(one.words)}: {one.why}" for one in spec.missing)
    row = {"framework": spec.name, "version": _version(spec), "launcher": spec.launcher, "missing": missing}
    return {**row, "networks": _networks(spec), **_known_facts(spec.facts)}


def _known_facts(facts: Facts | None) -> dict[str, object]:
    if facts is None:
        return {}
    abilities = {"verified": describe_capabilities(facts.verified), "claimed": describe_capabilities(facts.claimed)}
    return {
        **{key: getattr(facts, key) for key in ("status", "release", "released", "licence")},
        **{f"{kind}_{key}": value for kind, values in abilities.items() for key, value in values.items()},
        "verified_by": facts.verified.by if facts.verified else "",
        "sources": "; ".join(facts.sources),
    }


def _networks(spec: FrameworkSpec) -> str:
    able, tokens = set(spec.supports.models), set(of_tokens())
    parts = {"images": set(MODELS) - tokens, "tokens": tokens}
    return ", ".join(f"{len(able & names)} of {len(names)} for {what}" for what, names in parts.items())


def _version(spec: FrameworkSpec) -> str:
    """Return the pinned version; the tag of the image for a framework that is no package."""
    pinned = next((package for package in spec.packages if "==" in package), None)
    return pinned.split("==")[1] if pinned else spec.image.rpartition(":")[2]


# Table `frameworks`: frameworks x networks x processes, as in dlbench's paper: seconds per batch, and the rate.


NOT_IN_STUDY: Final = "not in the study"


def frameworks(analysis: Analysis) -> Table:
    """Build a table with one row per network, batch and framework, one column per number of processes: `seconds of a batch (rate)`."""
    several = several_shapes(analysis.shapes)
    rows = _in_order(analysis)
    first = [next(iter(row.values())) for row in rows]
    columns = [
        *key_columns(analysis, first),
        words("batch_size", "Batch", [cell.cell.batch_size for cell in first], number=True, folds=True),
    ]
    for shape in analysis.shapes:
        cells = [row.get(shape) for row in rows]
        found = [(Reason(NOT_IN_STUDY), NO_MARKS) if cell is None else _batch_time(cell) for cell in cells]
        key, title = shape_key(shape, several), shape_title(shape, several, analysis)
        columns.append(marked_words(key, title, found, links=cell_links(analysis, cells)))
    return Table(
        name="frameworks",
        title="Frameworks, networks and sizes",
        caption=sentence(
            f"Seconds of a batch, the median step, and behind it {analysis.rate_words} of all processes together; batch per process. "
            "`slipway check-frameworks` shows whether they train the same network",
            analysis.shared,
        ),
        columns=tuple(columns),
    )


def marked_words(key: str, title: str, found: Sequence[tuple[str, Marks]], links: Sequence[str]) -> Column:
    """Make a column of texts with their marks, which stands among numbers."""
    return words(key, title, [text for text, _ in found], number=True, marks=[marks for _, marks in found], links=links)


def _in_order(analysis: Analysis) -> list[dict[Shape, CellResult]]:
    """Return the cells of each row by their shape: frameworks beside each other, in the order of the study."""
    rows: dict[tuple[str, str, int], dict[Shape, CellResult]] = {}
    for cell in analysis.cells:
        rows.setdefault((cell.source, cell.series, cell.cell.batch_size), {})[cell.shape] = cell
    models, names = (list(dict.fromkeys(getattr(cell.cell, key) for cell in analysis.cells)) for key in ("model", "framework"))

    def sort_key(row: dict[Shape, CellResult]) -> tuple[int, int, int]:
        cell = next(iter(row.values())).cell
        return models.index(cell.model), cell.batch_size, names.index(cell.framework)

    return sorted(rows.values(), key=sort_key)


def _batch_time(cell: CellResult) -> tuple[str, Marks]:
    if not cell.step_s or not cell.rate_per_s:
        return Reason(cell.reason or ""), cell.marks & {"untimed"}
    return f"{significant(cell.step_s.value)} ({significant(cell.rate_per_s.value)})", cell.measuring


# Table `precision`: how much faster each precision and layout is than a base, and the loss that it ends with.


PRECISION: Final = "precision"
BASE: Final = ("fp32", "nchw")
Kind = tuple[str, str]
"""Precision and layout."""


def precision(analysis: Analysis) -> Table:
    """Build the table with one row for cells that differ in precision and layout alone, and two columns for each of these: the ratio of
    its rate to that of the base, and the final loss."""
    rows = [row for row in _precision_rows(analysis) if len(row) > 1]
    kinds = sorted({kind for row in rows for kind in row}, key=lambda kind: kind != BASE)
    bases = [BASE if BASE in row else next(iter(row)) for row in rows]
    first = [row[base] for row, base in zip(rows, bases, strict=True)]
    columns = [column for column in key_columns(analysis, first) if column.key not in ("precision", "layout")]
    columns += [*size_columns(first), words("base", "Base", [" ".join(base) for base in bases])]
    for kind in kinds:
        cells = [row.get(kind) for row in rows]
        found = [_ratio(*pair) for pair in zip(cells, first, strict=True)]
        name, title = "_".join(kind), " ".join(kind)
        losses = [None if cell is None else cell.means["final_loss"] for cell in cells]
        columns.append(marked_words(f"{name}_ratio", title, found, cell_links(analysis, cells)))
        columns.append(numbers(f"{name}_final_loss", f"{title}: loss", significant, losses))
    return Table(
        name=PRECISION,
        title="Precision and layout",
        caption=sentence(
            f"{analysis.rate_words.capitalize()} over those of the base, which is {' '.join(BASE)} where there is such a cell, of the same "
            "processes and batch, with its 95 % confidence interval over runs; loss: of the last step, mean over runs. A precision that is "
            "fast and does not learn is no result",
            analysis.shared,
        ),
        columns=tuple(columns),
        empty="The study has no cells that differ in precision or layout alone.",
    )


def _precision_rows(analysis: Analysis) -> list[dict[Kind, CellResult]]:
    rows: dict[tuple[object, ...], dict[Kind, CellResult]] = {}
    for cell in analysis.cells:
        keys = analysis.flat[cell.source, cell.cell_id].items()
        alike = tuple((name, repr(value)) for name, value in keys if name not in ("precision", "layout"))
        row = rows.setdefault((cell.source, cell.shape, cell.cell.batch_size, alike), {})
        row[cell.cell.precision, cell.cell.layout] = cell
    return list(rows.values())


def _ratio(cell: CellResult | None, base: CellResult) -> tuple[str, Marks]:
    if cell is None:
        return Reason(NOT_IN_STUDY), NO_MARKS
    if cell.rate is None:
        return Reason(cell.reason or ""), cell.marks & {"untimed"}
    if base.rate is None:
        return Reason(f"base {base.reason}"), NO_MARKS
    if cell is base:
        return "1 (base)", cell.measuring
    marks = (cell.marks | mixed_marks(cell, base)).intersection(MEASURING)
    return estimate_text(ratio(cell.rate, base.rate)), marks | ({"baseline"} if base.measuring - marks else NO_MARKS)


# Table `survey`: what each framework does with each network on each machine, by its device and threads.


def survey(analysis: Analysis) -> Table:
    """Build the table: one row per measured cell, those of one network and framework together."""
    measured = [cell for cell in analysis.cells if cell.num_measured and not is_anchor(cell)]
    cells = sorted(measured, key=lambda cell: (cell.cell.model, cell.cell.framework))
    columns = [
        words("ran_on", "Ran on", [_each(cell, "device") for cell in cells]),
        words("threads_per_process", "Threads used", [_each(cell, "threads_per_rank") for cell in cells], number=True),
        *with_interval("step_p50_s", "Step p50 [ms]", partial(scaled, MILLI), [cell.step_s for cell in cells]),
        *with_interval(
            "rate_per_s",
            analysis.rate_words.capitalize(),
            partial(significant, digits=4),
            [cell.rate_per_s for cell in cells],
            [cell.measuring for cell in cells],
        ),
    ]
    return cell_table(
        analysis,
        cells,
        columns,
        name="survey",
        title="Survey of frameworks, networks and machines",
        caption=[
            "Step: median, and rate of all processes together: geometric means over runs, with the 95 % interval from 3 runs on. Ran on, "
            "threads used: of each process"
        ],
    )


def _each(cell: CellResult, name: str) -> str:
    return ", ".join(sorted(map(str, cell.distinct[name]))) or NONE
