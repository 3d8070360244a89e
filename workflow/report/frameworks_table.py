"""Table `frameworks`: frameworks x networks x processes, as the tables of dlbench's paper have them: seconds of a batch, and the rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from base.errors import ConfigError
from containers.frameworks import load_framework
from workflow.report.analysis import Analysis
from workflow.report.cells import CellResult, Shape
from workflow.report.digits import significant
from workflow.report.keys import SIZE_COLUMNS, key_columns, key_values, sentence, several_shapes, shape_key, shape_title
from workflow.report.leads import cell_place
from workflow.report.lint import MEASURING
from workflow.report.table import MOST_ROWS, Column, Table, Value, text
from workflow.study.baseline_keys import TOLD_BY_FRAMEWORK

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
    """One row per network, batch and framework, one column per number of processes: `seconds of a batch (rate)`."""
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
                yield Line(model=model, batch=batch, framework=framework, values=shown, cells={}, missing=_why(framework, model))


def _why(framework: str, model: str) -> str:
    """Why a study has no such cell."""
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
