"""Whether what was made of the records (records.parquet, tables, plots, the page) is what the records give now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from base.errors import RecordError
from base.jsonfile import read_content
from base.units import counted
from workflow.report.analysis import Analysis, analyse
from workflow.report.collect import Collection, collect, read_records
from workflow.report.files import PAGE_FILE, PLOT_FILES, PLOT_NAMES, RECORDS_FILE, TABLE_FILES
from workflow.report.formats import FORMATS
from workflow.report.page import page
from workflow.report.sources import Source
from workflow.report.tables import TABLES
from workflow.report.verified import Verified

AGAIN = "`slipway tables` makes it anew"
PAGE_AGAIN = "`slipway report` makes it anew"


def verify_outputs(out: Path) -> Verified:
    """One finding for every file in `out` that is not what the records give, or is missing beside others; nothing where there are none."""
    path = out / RECORDS_FILE
    made = [name for name in (*TABLE_FILES, *PLOT_FILES, PAGE_FILE) if (out / name).exists()]
    if not path.exists():
        gone = [f"{out / made[0]}: not verified, since {path} is missing, which says what it was made of; {AGAIN}"] if made else []
        return Verified(findings=gone)
    try:
        there = read_records(path)
        now = collect(_directories(out, there))
    except RecordError as error:
        return Verified(findings=[str(error)])
    if different := _rows_that_differ(there, now):
        return Verified(findings=[f"{path}: {different}; it is older than the records, or was changed; {AGAIN}"])
    analysis = analyse(now)
    findings = [
        *(_tables(analysis, out) if set(TABLE_FILES) & set(made) else []),
        *(_plots(analysis, out) if set(PLOT_FILES) & set(made) else []),
        *(_page(analyse(replace(now, sources=there.sources)), out) if PAGE_FILE in made else []),  # it tells where it was made
    ]
    return Verified(outputs=1 + len(made), findings=findings)


def _directories(out: Path, there: Collection) -> list[Path]:
    """Where the records lie. Those of one study are the ones beside the file: the directory may have been moved or copied since, and what
    then lies where it was made says nothing about it."""
    if len(there.sources) == 1 and (out / "runs").is_dir():
        return [out]
    return [Path(source.path) for source in there.sources]


def _without_paths(collection: Collection) -> list[Source]:
    return [replace(source, path="") for source in collection.sources]


def _tables(analysis: Analysis, out: Path) -> Iterator[str]:
    for name, build in TABLES.items():
        table = build(analysis)
        for suffix, to_text in FORMATS.items():
            file = out / "tables" / f"{name}.{suffix}"
            if problem := _problem(file, to_text(table).encode()):
                yield f"{file}: {problem}; {AGAIN}"


def _plots(analysis: Analysis, out: Path) -> Iterator[str]:
    from workflow.report.rendering import to_json, to_svg
    from workflow.report.run_plots import PLOTS

    for name in PLOT_NAMES:
        spec = PLOTS[name](analysis)
        for suffix, content, fonts in (("vl.json", to_json(spec), ""), ("svg", to_svg(spec, name), ", or with other fonts")):
            file = out / "plots" / f"{name}.{suffix}"
            if problem := _problem(file, content.encode(), fonts):
                yield f"{file}: {problem}; {PAGE_AGAIN}"


def _page(analysis: Analysis, out: Path) -> Iterator[str]:
    """The page shows the plots that lie beside it: those are compared by themselves."""
    file = out / PAGE_FILE
    try:
        svgs = {name: read_content(out / "plots" / f"{name}.svg").decode() for name in PLOT_NAMES}
    except (RecordError, UnicodeDecodeError) as error:
        yield f"{file}: not verified, since a plot that it shows is not there: {error}; {PAGE_AGAIN}"
        return
    if problem := _problem(file, page(analysis, svgs).encode()):
        yield f"{file}: {problem}; {PAGE_AGAIN}"


def _problem(path: Path, expected: bytes, else_: str = "") -> str | None:
    """Why it does not hold `expected`, if so."""
    if not path.exists():
        return "it is missing"
    try:
        same = read_content(path, max_bytes=len(expected)) == expected
    except RecordError:
        same = False
    return None if same else f"not what the records give; it was changed, or made by another version{else_}"


def _rows_that_differ(there: Collection, now: Collection) -> str | None:
    if there.frame.schema != now.frame.schema:
        return "it has other columns than this version makes"
    if there.frame.equals(now.frame) and _without_paths(there) == _without_paths(now):
        return None
    keys = ["source", "run_id"]
    marked = [frame.select(*keys, frame.hash_rows(seed=1).alias("hash")) for frame in (there.frame, now.frame)]
    joined = marked[0].join(marked[1], on=keys, how="full", coalesce=True, nulls_equal=True)
    odd = joined.filter(pl.col("hash").ne_missing(pl.col("hash_right")))["run_id"].to_list()
    return f"{counted(len(odd), 'row')} not as they say, such as {odd[0]}" if odd else "its study or order is another"
