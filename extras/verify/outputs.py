"""Verify that records.parquet, tables, plots and page are what the records give now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from base.errors import RecordError
from base.humanize import counted, some
from base.jsonfile import read_content
from extras.verify.result import Verified
from workflow.report import outputs, page
from workflow.report.analysis import Analysis, analyse
from workflow.report.collect import Collection, Source, collect, read_records
from workflow.report.files import PAGE_FILE, PLOT_FILES, PLOT_NAMES, RECORDS_FILE, TABLE_FILES
from workflow.study.paths import STUDY_FILE

AGAIN = "`slipway tables` makes it anew"
MAX_GONE = 6
PAGE_AGAIN = "`slipway report` makes it anew"


def verify_outputs(out: Path, directories: Sequence[Path] = ()) -> Verified:
    """Return a finding for every file in `out` that is not what the records give, or is missing beside others; none where there are no
    files. `directories`: where the records lie now; else where they lay when the tables were made."""
    path = out / RECORDS_FILE
    made = [name for name in (*TABLE_FILES, *PLOT_FILES, PAGE_FILE) if (out / name).exists()]
    if not path.exists():
        gone = [f"{out / made[0]}: not verified, since {path} is missing, which says what it was made of; {AGAIN}"] if made else []
        return Verified(findings=gone)
    try:
        there = read_records(path)
        now = collect(_directories(out, there, directories))
    except RecordError as error:
        return Verified(findings=[str(error)])
    if traces := list(_last_traces(path, there, now)):
        return Verified(findings=traces)
    if different := _rows_that_differ(there, now):
        return Verified(findings=[f"{path}: {different}; it is older than the records, or was changed; {AGAIN}"])
    analysis = analyse(now)
    moved = tuple(replace(was, lies=by_now.path) for was, by_now in zip(there.sources, now.sources, strict=True))
    findings = [
        *(_output_files(outputs.tables_of(analysis), out, AGAIN) if set(TABLE_FILES) & set(made) else []),
        *(_output_files(outputs.plots_of(analysis), out, PAGE_AGAIN) if set(PLOT_FILES) & set(made) else []),
        *(
            _page(analyse(replace(now, sources=moved)), out, None if _is_beside(out) else out) if PAGE_FILE in made else []
        ),  # it tells where it was made, and shows what lies in the copy
    ]
    if PAGE_FILE not in made and set(PLOT_FILES) <= set(made):
        findings.append(f"{out / PAGE_FILE}: it is missing, and the plots that it shows are there; {PAGE_AGAIN}")
    return Verified(outputs=1 + len(made), findings=findings)


def _is_beside(out: Path) -> bool:
    return (out / "runs").is_dir() or (out / STUDY_FILE).exists()


def _directories(out: Path, there: Collection, directories: Sequence[Path]) -> list[Path]:
    """Return where the records lie. Those of one study are the ones beside the file: the directory may have been moved or copied since,
    and what then lies where it was made says nothing about it."""
    if len(there.sources) == 1 and _is_beside(out):
        return [out]
    if len(there.sources) == len(directories):
        return list(directories)
    return [Path(source.path) for source in there.sources]


def _last_traces(path: Path, there: Collection, now: Collection) -> Iterator[str]:
    """Yield what only the collected records know any more: to make tables anew would end that."""
    keys = ["source", "run_id"]
    had = there.frame.filter(pl.col("record").is_not_null())
    have = now.frame.filter(pl.col("record").is_not_null() | (pl.col("num_attempts") > 0))
    gone = had.join(have, on=keys, how="anti", nulls_equal=True)
    if not gone.is_empty():
        shown = some([f"{run} ({end})" for run, end in gone.select("run_id", "status").iter_rows()], MAX_GONE)
        yield (
            f"{path}: it has {counted(len(gone), 'run')} of which nothing is there any more: {shown}; this is the last that tells of them: "
            "keep a copy before any tables are made anew"
        )


def _without_paths(collection: Collection) -> list[Source]:
    return [replace(source, path="", file_sha256=None) for source in collection.sources]


def _output_files(files: Iterable[tuple[str, str]], out: Path, again: str) -> Iterator[str]:
    for name, content in files:
        if problem := _output_problem(out / name, content.encode(), ", or with other fonts" if name.endswith(".svg") else ""):
            yield f"{out / name}: {problem}; {again}"


def _page(analysis: Analysis, out: Path, page_dir: Path | None) -> Iterator[str]:
    """Compare the page, which shows the plots that lie beside it; those are compared by themselves."""
    file = out / PAGE_FILE
    try:
        svgs = {name: read_content(out / "plots" / f"{name}.svg").decode() for name in PLOT_NAMES}
    except (RecordError, UnicodeDecodeError) as error:
        yield f"{file}: not verified, since a plot that it shows is not there: {error}; {PAGE_AGAIN}"
        return
    if problem := _output_problem(file, page.page(analysis, svgs, page_dir).encode()):
        yield f"{file}: {problem}; {PAGE_AGAIN}"


def _output_problem(path: Path, expected: bytes, else_: str = "") -> str | None:
    if not path.exists():
        return "it is missing"
    try:
        same = read_content(path, max_bytes=len(expected)) == expected
    except RecordError:
        same = False
    return None if same else f"not what the records give; it was changed, or made by another version, or of another study file{else_}"


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
