"""Bytes of records -> rows. One bad record of 10^5 is one row that says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from workflow.run.record.columns import FIELDS, MACHINES, Stored, row_of, values_of
from workflow.run.record.model import NotBelieved
from workflow.run.record.reading import read_record

_TYPES: Final = {float: pl.Float64(), int: pl.Int64(), bool: pl.Boolean(), str: pl.String()}


def _dtype(stored: Stored) -> pl.DataType:
    return pl.List(_TYPES[stored.kind]) if stored.is_list else _TYPES[stored.kind]


SCHEMA: Final[dict[str, pl.DataType]] = {name: _dtype(stored) for name, stored in {**FIELDS, **MACHINES}.items() if name != "schema"}
_ROWS: Final = {"row": pl.Int64(), "told": pl.Boolean()}


def read_rows(contents: Sequence[bytes]) -> pl.DataFrame:
    """Return one row per record, in order, and in `problem` what keeps it from being believed: then it holds nothing else."""
    rows: list[tuple[Any, ...]] = []
    problems: dict[int, str] = {}
    for place, content in enumerate(contents):
        try:
            rows.append(row_of(read_record(content)))  # at once, while it is in the cache of the processor
        except NotBelieved as error:
            problems[place] = str(error)
    values = values_of(rows)
    frame = pl.DataFrame([_series(name, values[name], dtype) for name, dtype in SCHEMA.items()])
    if not problems:
        return frame.with_columns(problem=pl.lit(None, pl.String()))
    read = pl.Series("place", [place for place in range(len(contents)) if place not in problems], dtype=pl.Int64())
    reasons = pl.DataFrame({"place": range(len(contents)), "problem": [problems.get(place) for place in range(len(contents))]})
    joined = reasons.join(frame.with_columns(read), on="place", how="left", maintain_order="left")
    return joined.select(*SCHEMA, "problem")


def _series(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Return a column. Most have one value in all rows; of lists all that is in them is put into the column together, since one list after
    the other takes ten times as long."""
    if values and values[0] == values[-1] and values.count(values[0]) == len(values):
        return pl.Series(name, values[:1], dtype=dtype).new_from_index(0, len(values))
    if not isinstance(dtype, pl.List):
        return pl.Series(name, values, dtype=dtype)
    rows = pl.DataFrame({"row": range(len(values)), "told": [value is not None for value in values]}, schema=_ROWS)
    at = pl.Series("row", [row for row, value in enumerate(values) if value for _ in value], dtype=pl.Int64())
    items = pl.Series("items", [item for value in values if value for item in value], dtype=dtype.inner)
    found = rows.join(
        pl.DataFrame([at, items]).group_by("row", maintain_order=True).agg("items"), on="row", how="left", maintain_order="left"
    )
    lists = pl.when("told").then(pl.col("items").fill_null(pl.lit([], dtype=dtype)))
    return found.select(lists.alias(name))[name]
