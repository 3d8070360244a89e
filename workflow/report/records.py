"""Bytes of records -> rows. One bad record of 10^5 is one row that says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from workflow.report.columns import FIELDS, MACHINES, RECORD_CELL
from workflow.report.kinds import Kind, NotBelieved
from workflow.report.reading import COLUMNS, read_row

_KINDS: Final[dict[str, Kind]] = {name: kind for name, (_, kind) in {**FIELDS, **RECORD_CELL}.items()} | MACHINES
_LISTS: Final = {"List": pl.List(pl.String()), "Numbers": pl.List(pl.Float64())}
SCHEMA: Final[dict[str, pl.DataType]] = {
    name: _LISTS.get(_KINDS[name].stored) or getattr(pl, _KINDS[name].stored)() for name in COLUMNS if name != "schema"
}
_NOTHING: Final = (None,) * len(COLUMNS)


def read_rows(contents: Sequence[bytes]) -> pl.DataFrame:
    """One row per record, in order, and in `problem` what keeps it from being believed: then it holds nothing else."""
    rows: list[tuple[Any, ...]] = []
    problems: list[str | None] = []
    for content in contents:
        try:
            rows.append(read_row(content))
            problems.append(None)
        except NotBelieved as error:
            rows.append(_NOTHING)
            problems.append(str(error))
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {}
    series = [pl.Series(name, columns.get(name, ()), dtype=dtype) for name, dtype in SCHEMA.items()]
    return pl.DataFrame([*series, pl.Series("problem", problems, dtype=pl.String())])
