"""The columns of records.parquet, which follow from the record's types. Names carry units; null means not measured.

Series of losses stay in the records: they are read where a curve is drawn, and would be most of the bytes here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from workflow.run.record.hardware import Machines, machines_of
from workflow.run.record.model import Column, Provenance, RunRecord, plain
from workflow.run.record.outcome import TABLE
from workflow.run.record.step_clock import STEPS
from workflow.study.cell import SIZES, WORDS, Cell

RESULTS: Final = tuple(status for status, error in TABLE.items() if error is None)
PREVENTED: Final = tuple(status for status in TABLE if status not in RESULTS)
UNREADABLE: Final = "unreadable"
MISSING: Final = "missing"
UNMEASURED: Final = "not measured"  # ended ok, but there is no rate
TIMES_ONLY: Final = "wall times only"  # ended ok, and its program tells of no steps

SEVEN_STEPS: Final = STEPS
SHOWN_STEPS: Final = SEVEN_STEPS[1:]  # login is of the command, the same for all runs of a start: it says nothing of a cell
BESIDE: Final = "assign"  # told by the scheduler: it stands beside the sum of the others, which is run_s

SOFTWARE: Final = ("framework_version", "torch_version", "cuda_version", "cudnn_version", "nccl_version", "driver_version")
SETTINGS: Final = ("tf32", "cudnn_benchmark", "cudnn_deterministic", "deterministic_algorithms")
PROVENANCE: Final = tuple(name for name in Provenance.__struct_fields__ if name not in ("framework", "gpu_memory_bytes"))
"""What the report shows of a run's origin, and what must not differ inside a series."""
OF_CELL: Final = {f"record_{name}": name for name in ("cell_id", *SIZES, *WORDS, "seed")}
RECORD_CELL: Final = ("record_study", *OF_CELL)
"""Columns of the record's own study and cell, which stand beside those of the study's cell of that run: where they differ, the record is of
something else."""


class Stored(NamedTuple):
    """A column: the attributes that lead to its value, the keys that lead to it in the file, the type of its values, or of what is in
    each of them where they are lists, and what makes the column's value of the record's."""

    attributes: tuple[str, ...]
    path: str
    kind: type
    is_list: bool = False
    convert: Callable[[Any], Any] | None = None


def _stored(attributes: tuple[str, ...], path: str, kind: Any) -> Stored:
    inner = plain(kind)
    if get_origin(inner) is tuple:
        entry = plain(get_args(inner)[0])
        if get_origin(entry) is tuple:
            return Stored(attributes, path, float, is_list=True, convert=_flat)
        return Stored(attributes, path, str if get_origin(entry) is Literal else entry, is_list=True)
    if get_origin(inner) in (types.UnionType, Union):
        return Stored(attributes, path, str, convert=_text)
    return Stored(attributes, path, str if get_origin(inner) is Literal else inner)


def _flat(pairs: tuple[tuple[float, float], ...]) -> list[float]:
    """Return one number after the other, since a column of parquet is one list."""
    return [number for pair in pairs for number in pair]


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _columns(part: Any, attributes: tuple[str, ...] = (), path: str = "") -> Iterator[tuple[str, Stored]]:
    for entry in msgspec.structs.fields(part):
        own, place, inner = (*attributes, entry.name), f"{path}{entry.encode_name}", plain(entry.type)
        for column in getattr(entry.type, "__metadata__", ()):
            if isinstance(column, Column):
                yield column.name or entry.name, _stored(own, place, entry.type)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from _columns(inner, own, f"{place}.")


_KEYS: Final = get_type_hints(Cell)
FIELDS: Final[dict[str, Stored]] = {
    **dict(_columns(RunRecord)),
    **{column: _stored(("cell", name), f"cell.{name}", _KEYS[name]) for column, name in OF_CELL.items()},
}
"""Column -> where its value is in a record."""
MACHINES: Final[dict[str, Stored]] = dict(_columns(Machines))
"""Column -> where its value is in what all nodes of a record are together."""


Row = Callable[[Any], tuple[Any, ...]]


def _row_of(prefix: tuple[str, ...]) -> tuple[list[str], Row]:
    """Return the columns below an object of the record, and a function that returns their values, in this order, of such an object."""
    depth = len(prefix)
    below = {name: stored for name, stored in FIELDS.items() if stored.attributes[:depth] == prefix}
    own = {name: stored.attributes[depth] for name, stored in below.items() if len(stored.attributes) == depth + 1}
    inner = {stored.attributes[depth]: None for stored in below.values() if len(stored.attributes) > depth + 1}
    take, parts = _taker(list(own.values())), _taker(list(inner))
    found = [_row_of((*prefix, name)) for name in inner]
    rows = [(row, (None,) * len(columns)) for columns, row in found]

    def read(value: Any) -> tuple[Any, ...]:
        values = take(value)
        for part, (row, nothing) in zip(parts(value), rows, strict=True):
            values += nothing if part is None else row(part)
        return values

    columns = [*own, *(name for names, _ in found for name in names)]
    return columns, read if rows else take


def _taker(names: list[str]) -> Row:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


_OF_RECORD, _ROW = _row_of(())
_OF_MACHINES: Final = attrgetter(*MACHINES)
COLUMNS: Final = (*_OF_RECORD, *MACHINES)


def row_of(record: RunRecord) -> tuple[Any, ...]:
    """Return the values of COLUMNS as the record has them."""
    values: tuple[Any, ...] = _ROW(record) + _OF_MACHINES(machines_of(record.nodes))
    return values


def values_of(rows: Sequence[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    """Return the values of each column, as it is stored."""
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(COLUMNS, ())
    stored = {**FIELDS, **MACHINES}
    return {name: _converted(values, stored[name].convert) for name, values in columns.items()}


def _converted(values: Sequence[Any], convert: Callable[[Any], Any] | None) -> Sequence[Any]:
    return values if convert is None else [None if value is None else convert(value) for value in values]
