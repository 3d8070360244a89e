"""Bytes of records -> rows. One torn record of 10^5 is one row that says so.

The parser is polars' own, typed by columns.record_schema(): 10^5 records take seconds, and text where a number belongs is an error
instead of a null.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from workflow.report.attempts import MAX_BYTES
from workflow.report.columns import PREVENTED, RESULTS, SCHEMA_NAME, flat_columns, record_schema

_SCHEMA: Final = record_schema()
_TOO_LARGE: Final = f"more than {MAX_BYTES} bytes: this is no record of ours"


def parse_records(blobs: Sequence[bytes]) -> tuple[pl.DataFrame, list[str | None]]:
    """One nested row per blob, in order, and beside each what is wrong with it. Rows that could not be read are null."""
    lines = [_one_line(blob) for blob in blobs]
    frame, problem = _parse(b"\n".join(lines))
    if problem is None and frame.height == len(lines):
        return frame, [None] * len(lines)
    frames, problems = zip(*(_parse_one(line) for line in lines), strict=True)  # somewhere in here is a torn one
    return pl.concat(frames), list(problems)


def flat(nested: pl.DataFrame, problems: Sequence[str | None]) -> pl.DataFrame:
    """The columns of columns.FIELDS, and `problem`: what keeps a row from being believed."""
    frame = nested.select(flat_columns()).with_columns(pl.Series("problem", problems, dtype=pl.String))
    schema, status, kind = pl.col("schema"), pl.col("status"), pl.col("kind")
    right_kind = pl.when(status.is_in(PREVENTED)).then(pl.lit("prevented")).otherwise(pl.lit("result"))
    checks = [
        _says(schema.ne_missing(SCHEMA_NAME), f"its schema is {{}}, not {SCHEMA_NAME}", schema),
        _says(~status.is_in([*RESULTS, *PREVENTED]).fill_null(value=False), "its status is {}, which is none of ours", status),
        _says(kind.ne_missing(right_kind), "its kind is {}, which its status is not", kind),
        _says(pl.col("step_p50_s") <= 0, "its median step is {} s", pl.col("step_p50_s")),
    ]
    return frame.with_columns(pl.coalesce("problem", *checks).alias("problem")).drop("schema")


def _parse(lines: bytes) -> tuple[pl.DataFrame, str | None]:
    try:
        return pl.read_ndjson(io.BytesIO(lines), schema=_SCHEMA), None
    except pl.exceptions.PolarsError as error:
        return pl.DataFrame(schema=_SCHEMA), "not a valid record: " + " ".join(str(error).splitlines()[0].split())[:200]


def _parse_one(line: bytes) -> tuple[pl.DataFrame, str | None]:
    frame, problem = _parse(line) if len(line) <= MAX_BYTES else (pl.DataFrame(), _TOO_LARGE)
    if problem is None and frame.height == 1:
        return frame, None
    return pl.DataFrame({name: [None] for name in _SCHEMA}, schema=_SCHEMA), problem or "not a valid record: the file is empty"


def _says(wrong: pl.Expr, text: str, value: pl.Expr) -> pl.Expr:
    return pl.when(wrong).then(pl.format(text, value.cast(pl.String).fill_null("missing")))


def _one_line(blob: bytes) -> bytes:
    """The record on one line (a newline inside JSON text is escaped), without its loss curve: numbers only, hence no quote inside."""
    if len(blob) > MAX_BYTES:
        return blob
    begin = blob.find(b'"losses"')
    if begin >= 0:
        next_key = blob.find(b'"', begin + 8)
        end = blob.rfind(b"]", begin, next_key if next_key >= 0 else len(blob))
        if end >= 0 and re.match(rb'"losses"\s*:\s*\[', blob[begin : begin + 64]):
            blob = blob[:begin] + b'"losses":[]' + blob[end + 1 :]
    return blob.replace(b"\n", b" ").replace(b"\r", b" ")
