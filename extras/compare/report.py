"""Build what `slipway compare` prints: a table of the cells, a list of the fields that differ, and the answer to a margin. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import asdict, replace

from base.humanize import counted, some
from base.logs import printable
from extras.compare.fields import Facts, differing, shown, together
from extras.compare.sides import Matched, Side
from extras.compare.statistics import ALPHA, POWER, Difference, NotSlower, differences, not_slower
from extras.compare.statistics import together as all_cells
from workflow.report.cells import MEASURING, CellResult, Estimate
from workflow.report.shared_columns import key_columns, size_columns
from workflow.report.table_type import (
    NONE,
    Column,
    Reason,
    Table,
    estimate_text,
    numbers,
    percent,
    significant,
    value_of,
    with_interval,
    words,
)

MAX_VALUES: Final = 4
MAX_CELLS: Final = 4
SIGN: Final = "+"


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field that differs, its values on both sides, and the cells of A in which it does; `everywhere`: in all that both measured."""

    path: str
    a: tuple[str, ...]
    b: tuple[str, ...]
    cells: tuple[str, ...]
    everywhere: bool


@dataclass(frozen=True, kw_only=True)
class Compared:
    """All that is known of two sides."""

    a: Side
    b: Side
    matched: Matched
    found: tuple[Difference, ...]
    fields: tuple[Field, ...]
    gates: tuple[NotSlower, ...] = ()
    gate: NotSlower | None = None


def compared(a: Side, b: Side, matched: Matched, margin: float | None = None) -> Compared:
    """Compare the matched cells; `margin`: also test that B is not slower than A by more than that. Raises RecordError for a record that
    was exchanged meanwhile."""
    found = differences([(one.rate, other.rate) for one, other in matched.pairs], [_why_not(*pair) for pair in matched.pairs])
    gates = [] if margin is None else [not_slower(one.ratio, margin, len(found)) for one in found]
    asked = [gate for gate, (one, _) in zip(gates, matched.pairs, strict=False) if one.rate]  # what A never measured is no bar for B
    asked += [] if margin is None else [not_slower(None, margin) for cell in matched.only_a if cell.rate]
    return Compared(
        a=a,
        b=b,
        matched=matched,
        found=tuple(found),
        fields=differing_fields(a, b, matched),
        gates=tuple(gates),
        gate=None if margin is None else all_cells(asked, margin),
    )


def _why_not(one: CellResult, other: CellResult) -> str:
    """Explain why two cells have no ratio, "" where they have one."""
    reasons = [f"{name}: {cell.reason}" for name, cell in (("A", one), ("B", other)) if cell.reason]
    return "; ".join(reasons) or ("" if one.unit == other.unit else f"{one.unit}/s are not {other.unit}/s")


def differing_fields(a: Side, b: Side, matched: Matched) -> tuple[Field, ...]:
    """Return every field that says what runs were made of and has other values in A than in B; fields of all cells first."""
    measured = [(one, other) for one, other in matched.pairs if one.rate and other.rate]
    where: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for one, other in measured:
        own: Facts = together(a.facts(one))
        others: Facts = together(b.facts(other))
        for path in differing(own, others):
            values = tuple(tuple(map(printable, shown(facts.get(path, ())))) for facts in (own, others))
            where.setdefault((printable(path), values[0], values[1]), []).append(one.cell_id)
    found = [
        Field(path=path, a=first, b=second, cells=tuple(cells), everywhere=len(cells) == len(measured))
        for (path, first, second), cells in where.items()
    ]
    return tuple(sorted(found, key=lambda field: (not field.everywhere, field.path, field.cells)))


def cells_table(of: Compared) -> Table:
    """Build the table of the cells that both sides have."""
    first, second = [one for one, _ in of.matched.pairs], [other for _, other in of.matched.pairs]
    found = of.found
    columns: list[Column] = [*key_columns(of.a.analysis, first), *size_columns(first)]
    for side, cells in (("a", first), ("b", second)):
        unit = of.a.analysis.rate_words
        marks = [cell.marks.intersection(MEASURING) for cell in cells]
        columns += [
            words(f"runs_{side}", f"Runs {side.upper()}", [cell.num_measured for cell in cells], number=True),
            words(f"jobs_{side}", f"Jobs {side.upper()}", [cell.num_allocations for cell in cells], number=True),
            numbers(f"rate_{side}", f"{side.upper()} [{unit}]", estimate_text, [cell.rate_per_s for cell in cells], marks, raw=value_of),
        ]
    columns += [
        *with_interval("difference", "B to A", _signed, [_less_one(one.ratio) for one in found]),
        numbers("p", "p (Holm)", _p_text, [one.p_holm for one in found]),
        numbers("found", "Would find", percent, [one.found for one in found]),
        words("verdict", "Verdict", [one.verdict if one.p is not None else Reason(one.verdict) for one in found]),
        words("note", "Note", [one.reason for one in found], wrap=True),
    ]
    if of.gates:
        columns += [
            words("held", "Not slower", [one.answer for one in of.gates]),
            numbers("bound", "At least", _signed, [None if one.bound is None else one.bound - 1 for one in of.gates]),
        ]
    return Table(
        name="compare",
        title=f"A: {printable(of.a.name)}, B: {printable(of.b.name)}",
        caption=_caption(of, first, second),
        columns=tuple(columns),
    )


def _caption(of: Compared, first: Sequence[CellResult], second: Sequence[CellResult]) -> str:
    tests = sum(one.p is not None for one in of.found)
    corrected = f", corrected for {tests} cells (Holm)" if tests > 1 else ""
    parts = [
        "B to A: the rate of B over that of A, less 1, with its 95 % interval over runs. Slower, faster: by at least 1 % and the spread of "
        f"one run, and p < {ALPHA:g} in a t test on the logarithms{corrected}. Would find: the smallest "
        f"difference that these runs find in {100 * POWER:.0f} of 100 comparisons"
    ]
    alone = [side for side, cells in (("A", first), ("B", second)) if any(cell.num_allocations == 1 < cell.num_measured for cell in cells)]
    if alone:
        parts.append(f"Runs of {' and '.join(alone)} were in one job: what its nodes have in common is in all of them and in no interval")
    for name, cells in (("A", of.matched.only_a), ("B", of.matched.only_b)):
        if cells:
            parts.append(f"Only {name} has {counted(len(cells), 'cell')}: {some([cell.cell_id for cell in cells], MAX_CELLS)}")
    return printable("".join(f"{part}. " for part in parts).strip())


def _less_one(ratio: Estimate | None) -> Estimate | None:
    """Return how far a ratio is above 1, with the ends of its interval."""
    if ratio is None:
        return None
    low, high = (None if end is None else end - 1 for end in (ratio.low, ratio.high))
    return replace(ratio, value=ratio.value - 1, low=low, high=high)


def _signed(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:{SIGN}.1f} %"


def _p_text(value: float | None) -> str:
    return NONE if value is None else "<0.0001" if value < 1e-4 else significant(value, 2)


def fields_table(of: Compared) -> Table:
    """Build the table of the fields that differ."""
    cells = [
        some(field.cells, MAX_CELLS) if not field.everywhere or len(field.cells) < 2 else f"all {len(field.cells)}" for field in of.fields
    ]
    return Table(
        name="fields",
        title="What differs in what the runs were made of",
        caption="Every field of the records of the measured runs but those of their results. In: the cells in which it differs so.",
        columns=(
            words("field", "Field", [field.path for field in of.fields]),
            words("a", "A", [some(field.a, MAX_VALUES, "; ") or NONE for field in of.fields], wrap=True),
            words("b", "B", [some(field.b, MAX_VALUES, "; ") or NONE for field in of.fields], wrap=True),
            words("in", "In", cells, wrap=True),
        ),
        empty="Nothing differs.",
    )


def answer_text(gate: NotSlower, num_cells: int) -> str:
    """Format the answer to a margin, with the power of its test."""
    margin = f"{100 * gate.margin:g} %"
    where = f" in each of {num_cells} cells" if num_cells > 1 else ""
    parts = [f"not slower than {margin}{where}: {gate.answer}"]
    if gate.bound is not None:
        parts.append(f"with 95 % confidence B has at least {100 * gate.bound:.1f} % of A's rate")
    if gate.power is not None:
        parts.append(f"if B were as fast, these runs would show it in {100 * gate.power:.0f} of 100 comparisons")
    if gate.answer == "cannot be told":
        needed = "more than are practical" if gate.runs is None else f"{gate.runs} runs of each cell on each side"
        parts.append(f"to show it in {100 * POWER:.0f} of 100 takes {needed}" if gate.power is not None else "a cell has too few runs")
    return "; ".join(parts)


def values(of: Compared, cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return all of it for programs. `cells`: the values of the table of cells."""
    return {
        "a": of.a.name,
        "b": of.b.name,
        "cells": cells["rows"],
        "marks": cells["marks"],
        "differs": [{"field": one.path, "a": one.a, "b": one.b, "cells": one.cells, "in_all": one.everywhere} for one in of.fields],
        "only_in_a": [cell.cell_id for cell in of.matched.only_a],
        "only_in_b": [cell.cell_id for cell in of.matched.only_b],
        "not_slower_than": None if of.gate is None else asdict(of.gate),
    }
