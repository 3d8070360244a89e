"""Bytes of records -> rows. One bad record of 10^5 is one row that says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from workflow.run.record.columns import FIELDS, MACHINES, RECORD_CELL, REQUIRED
from workflow.run.record.kinds import Kind, NotBelieved, taken_together
from workflow.run.record.reading import COLUMNS, read_row, read_untyped_row

_TYPED: Final[dict[str, Kind]] = {name: kind for name, (_, kind) in {**FIELDS, **RECORD_CELL}.items()}
_KINDS: Final[dict[str, Kind]] = _TYPED | MACHINES
_LISTS: Final = {
    "List": pl.List(pl.String()),
    "Numbers": pl.List(pl.Float64()),
    "Pairs": pl.List(pl.Float64()),
    "Ranks": pl.List(pl.Int64()),
}
SCHEMA: Final[dict[str, pl.DataType]] = {
    name: _LISTS.get(_KINDS[name].stored) or getattr(pl, _KINDS[name].stored)() for name in COLUMNS if name != "schema"
}
_ROWS: Final = {"row": pl.Int64(), "told": pl.Boolean()}
_NOTHING: Final = (None,) * len(COLUMNS)


def read_rows(contents: Sequence[bytes]) -> pl.DataFrame:
    """One row per record, in order, and in `problem` what keeps it from being believed: then it holds nothing else.

    Types are looked at a column at a time; where something is odd, each record is read by itself, which says what it is.
    """
    try:
        columns = _together(contents)
        problems: list[str | None] = [None] * len(contents)
    except (NotBelieved, TypeError, AttributeError):
        columns, problems = _one_by_one(contents)
    series = [_series(name, columns[name], dtype) for name, dtype in SCHEMA.items()]
    return pl.DataFrame([*series, pl.Series("problem", problems, dtype=pl.String())])


def _series(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Of lists, all that is in them together and then by rows, since one list after the other takes ten times as long."""
    if not isinstance(dtype, pl.List) or not any(values):
        return pl.Series(name, values, dtype=dtype)
    rows = pl.DataFrame({"row": range(len(values)), "told": [value is not None for value in values]}, schema=_ROWS)
    at = pl.Series("row", [row for row, value in enumerate(values) if value for _ in value], dtype=pl.Int64())
    items = pl.Series("items", [item for value in values if value for item in value], dtype=dtype.inner)
    found = rows.join(
        pl.DataFrame([at, items]).group_by("row", maintain_order=True).agg("items"), on="row", how="left", maintain_order="left"
    )
    lists = pl.when("told").then(pl.col("items").fill_null(pl.lit([], dtype=dtype)))
    return found.select(lists.alias(name))[name]


def _together(contents: Sequence[bytes]) -> dict[str, Sequence[Any]]:
    """Raises NotBelieved, TypeError, AttributeError where any record is odd."""
    columns = _turned([read_untyped_row(content) for content in contents])
    return {
        name: taken_together(values, _TYPED[name], required=name in REQUIRED) if name in _TYPED else values
        for name, values in columns.items()
    }


def _one_by_one(contents: Sequence[bytes]) -> tuple[dict[str, Sequence[Any]], list[str | None]]:
    rows: list[tuple[Any, ...]] = []
    problems: list[str | None] = []
    for content in contents:
        try:
            rows.append(read_row(content))
            problems.append(None)
        except NotBelieved as error:
            rows.append(_NOTHING)
            problems.append(str(error))
    return _turned(rows), problems


def _turned(rows: Sequence[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    return dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {name: () for name in COLUMNS}
