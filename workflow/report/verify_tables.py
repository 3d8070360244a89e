"""Whether records.parquet and the tables that lie beside the records are what the records give now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from base.errors import RecordError
from base.jsonfile import read_content
from base.units import counted
from workflow.report.analysis import analyse
from workflow.report.collect import Collection, collect, read_records
from workflow.report.files import RECORDS_FILE, TABLE_FILES
from workflow.report.formats import FORMATS
from workflow.report.tables import TABLES

AGAIN = "`slipway tables` makes it anew"


def stale_files(out: Path) -> Iterator[str]:
    """One sentence for every file of the tables in `out` that is not what the records give, or is missing beside others; nothing where
    there are none."""
    path = out / RECORDS_FILE
    made = [name for name in TABLE_FILES if (out / name).exists()]
    if not path.exists():
        if made:
            yield f"{out / made[0]}: not verified, since {path} is missing, which says what it was made of; {AGAIN}"
        return
    try:
        there = read_records(path)
        now = collect([Path(source.path) for source in there.sources])
    except RecordError as error:
        yield str(error)
        return
    if different := _rows_that_differ(there, now):
        yield f"{path}: {different}; it is older than the records, or was changed; {AGAIN}"
        return
    analysis = analyse(now)
    for name, build in TABLES.items():
        files = {suffix: out / "tables" / f"{name}.{suffix}" for suffix in FORMATS}
        table = build(analysis) if made else None
        for suffix, file in files.items():
            if table is not None and not file.exists():
                yield f"{file}: it is missing; {AGAIN}"
            elif table is not None and _differs(file, FORMATS[suffix](table).encode()):
                yield f"{file}: not what the records give; it was changed, or made by another version; {AGAIN}"


def _differs(file: Path, expected: bytes) -> bool:
    """Whether it holds anything else, or is no file at all."""
    try:
        return read_content(file, max_bytes=len(expected)) != expected
    except RecordError:
        return True


def _rows_that_differ(there: Collection, now: Collection) -> str | None:
    if there.frame.schema != now.frame.schema:
        return "it has other columns than this version makes"
    if there.frame.equals(now.frame) and there.sources == now.sources:
        return None
    keys = ["source", "run_id"]
    marked = [frame.select(*keys, frame.hash_rows(seed=1).alias("hash")) for frame in (there.frame, now.frame)]
    joined = marked[0].join(marked[1], on=keys, how="full", coalesce=True, nulls_equal=True)
    odd = joined.filter(pl.col("hash").ne_missing(pl.col("hash_right")))["run_id"].to_list()
    return f"{counted(len(odd), 'row')} not as they say, such as {odd[0]}" if odd else "its study or order is another"
