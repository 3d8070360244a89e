"""Read directories of results into one row for each run, and write records.parquet.

Directories are named, never the list of records: argument lists overflow at 2,000. A run of the study's current cells without any record
is a row `missing`, one whose record is torn a row `unreadable`; runs that the study no longer asks for are counted and left out.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import polars as pl

from base.errors import RecordError
from base.jsonfile import read_content
from base.names import is_name
from base.publish import publish
from workflow.report.files import RECORDS_FILE
from workflow.report.mfu import with_utilisation
from workflow.report.record_reader import BESIDE, SCHEMA, read_runs
from workflow.report.sources import CELL_COLUMNS, Source, StudyFile, cell_frame, check_directory, labelled, read_study
from workflow.run.record.columns import MISSING, RECORD_CELL, UNREADABLE
from workflow.run.record.continuation import STATUS as WAITING
from workflow.run.record.reading import names, read_record
from workflow.run.storage.results import waiting_runs
from workflow.study.cell import SIZES, WORDS, Cell

MAX_RECORDS_BYTES = 4 << 30
_META = "slipway"
_META_COLUMNS = "slipway-columns"


@dataclass(frozen=True, kw_only=True)
class Collection:
    """The records of several results directories. `frame`: one row per run. `sources`: the directories in the order given; the first one's
    study and baseline hold for all."""

    frame: pl.DataFrame
    sources: tuple[Source, ...]


def collect(directories: Sequence[Path]) -> Collection:
    """Read every directory. Raises RecordError when one holds no results, or its study.json is torn."""
    unique = list(dict.fromkeys(directory.resolve() for directory in directories))
    for directory in unique:
        check_directory(directory)
    read = [_collect_one(directory) for directory in unique]
    sources = labelled([source for source, _ in read])
    frames = [frame.insert_column(0, pl.lit(source.label).alias("source")) for source, (_, frame) in zip(sources, read, strict=True)]
    return _each_once(frames, sources)


def _each_once(frames: Sequence[pl.DataFrame], sources: Sequence[Source]) -> Collection:
    """Count a record once that lies in two of the directories, the same by its seal.

    Of a directory that holds nothing but copies, what is missing is missing in the other one too.
    """
    kept, counted = [], []
    seals: set[str] = set()
    for frame, source in zip(frames, sources, strict=True):
        copied = frame["seal"].is_in(sorted(seals)).fill_null(value=False) if seals else pl.repeat(False, len(frame), eager=True)
        num = int(copied.sum())
        only = num > 0 and num == frame["record"].is_not_null().sum()
        kept.append(frame.clear() if only else frame.filter(~copied))
        counted.append(replace(source, copies=num))
        seals.update(frame["seal"].drop_nulls().to_list())
    return Collection(frame=pl.concat(kept), sources=tuple(counted))


def write_records(collection: Collection, out: Path) -> Path:
    """Publish records.parquet in `out`, whole or not at all. The file's metadata holds the sources."""
    buffer = io.BytesIO()
    metadata = {_META: json.dumps([source.to_json() for source in collection.sources]), _META_COLUMNS: _columns()}
    collection.frame.write_parquet(buffer, compression="zstd", metadata=metadata)
    publish(out / RECORDS_FILE, buffer.getvalue())
    return out / RECORDS_FILE


def read_records(path: Path) -> Collection:
    """Read what write_records wrote. Raises RecordError when it is missing, torn or of another version."""
    try:
        content = read_content(path, max_bytes=MAX_RECORDS_BYTES)  # not by its name, in which polars would take [, * and ? for a pattern
    except RecordError as error:
        raise RecordError(f"{error}; collect them again") from error
    try:
        metadata = pl.read_parquet_metadata(io.BytesIO(content))
        if metadata.get(_META_COLUMNS) != _columns():
            raise RecordError(f"{path} has other columns than this version of Slipway reads; `slipway tables` makes it anew")
        sources = tuple(Source(**values) for values in json.loads(metadata[_META]))
        return Collection(frame=pl.read_parquet(io.BytesIO(content)), sources=sources)
    except (pl.exceptions.PolarsError, KeyError, ValueError, TypeError) as error:
        raise RecordError(f"{path} cannot be read as collected records ({error}); collect them again") from error


def _columns() -> str:
    """Hash the column names: a table would miss a column that came later."""
    return hashlib.sha256(",".join((*SCHEMA, *CELL_COLUMNS, *BESIDE)).encode()).hexdigest()[:12]


def _collect_one(directory: Path) -> tuple[Source, pl.DataFrame]:
    there = {name for name in names(str(directory / "runs")) if is_name(name)}
    study = read_study(directory)
    runs = sorted(study.runs if study else there)
    rows = _in_place(read_runs(directory / "runs", runs))
    resolved, rows = (study, rows) if study else _study_of_records(directory, rows)
    source = Source(
        **{name: getattr(resolved, name) for name in ("study", "site", "site_keys", "baseline", "file_sha256")},
        label=resolved.study,
        path=str(directory),
        has_study=study is not None,
        left_out=len(there - set(runs)),
    )
    frame = _joined(rows, resolved)
    missing = frame.filter(pl.col("status") == MISSING)["run_id"]
    return source, _with_waiting(frame, waiting_runs(directory, missing))


def _with_waiting(frame: pl.DataFrame, waiting: Mapping[str, str]) -> pl.DataFrame:
    """Mark runs without a record whose result waits on its nodes as prevented."""
    if not waiting:
        return frame
    said = pl.col("run_id").replace_strict(waiting, default=None, return_dtype=pl.String())
    status = pl.when(said.is_not_null()).then(pl.lit(WAITING)).otherwise(pl.col("status"))
    return frame.with_columns(status.alias("status"), pl.coalesce(said, "status_reason").alias("status_reason"))


def _in_place(rows: pl.DataFrame) -> pl.DataFrame:
    """Refuse a record of another run or attempt than its directory's."""
    number = pl.col("record").str.extract(r"/attempts/(\d+)/").cast(pl.Int64, strict=False)
    other_run = pl.col("record").is_not_null() & pl.col("said_run_id").ne_missing(pl.col("run_id"))
    other_attempt = number.is_not_null() & pl.col("attempt").ne_missing(number)
    wrong_place = pl.when(other_run).then(pl.format("it says that it is of run {}", pl.col("said_run_id").fill_null("?")))
    wrong_number = pl.when(other_attempt).then(pl.format("it says that it is of attempt {}", pl.col("attempt").fill_null(0)))
    return rows.with_columns(pl.coalesce("problem", wrong_place, wrong_number).alias("problem")).drop("said_run_id")


def _study_of_records(directory: Path, rows: pl.DataFrame) -> tuple[StudyFile, pl.DataFrame]:
    """Derive the study from one record per cell, read whole; return with it the rows, with the reason where that record is not believed."""
    readable = rows.filter(pl.col("record").is_not_null() & pl.col("problem").is_null())
    cells: dict[str, Cell] = {}
    odd: dict[str, str] = {}
    sites = set()
    for run_id, path, cell_id in readable.select("run_id", "record", "record_cell_id").iter_rows():
        if cell_id not in cells:
            try:
                record = read_record(read_content(directory / "runs" / path))
                msgspec.json.encode(record.cell)
                cells[cell_id] = record.cell
                sites.add(record.site)
            except (RecordError, ValueError, OverflowError) as error:
                odd[run_id] = f"its cell cannot be used: {error}"
    readable = readable.filter(pl.col("record_cell_id").is_in(list(cells)) & ~pl.col("run_id").is_in(list(odd)))
    runs = {run_id: (cell_id, repeat) for run_id, cell_id, repeat in readable.select("run_id", "record_cell_id", "repeat").iter_rows()}
    named = readable["record_study"].drop_nulls().value_counts(sort=True)["record_study"]
    site = sites.pop() if len(sites) == 1 else None
    problem = pl.coalesce("problem", pl.col("run_id").replace_strict(odd, default=None, return_dtype=pl.String()))
    study = StudyFile(study=named[0] if len(named) else directory.name, site=site, site_keys={}, baseline={}, cells=cells, runs=runs)
    return study, rows.with_columns(problem.alias("problem"))


def _joined(rows: pl.DataFrame, study: StudyFile) -> pl.DataFrame:
    """Join the rows with the keys of the study's own cell (names of today), and set their final status."""
    cell_ids, repeats = [cell_id for cell_id, _ in study.runs.values()], [repeat for _, repeat in study.runs.values()]
    types = {"run_id": pl.String(), "cell_id": pl.String(), "repeat": pl.Int64()}
    wanted = pl.DataFrame({"run_id": list(study.runs), "cell_id": cell_ids, "repeat": repeats}, schema=types)
    cells = cell_frame(list(study.cells.values())).with_row_index("cell_index")
    frame = (
        rows.rename({"repeat": "record_repeat"})
        .with_columns(pl.lit(study.study).alias("study"))
        .join(wanted, on="run_id", how="left")
        .join(cells, on="cell_id", how="left")
    )
    frame = _judged(frame).sort("cell_index", "repeat", "run_id", nulls_last=True)
    keys = ["study", "run_id", "repeat", *cells.columns]
    return frame.select(*keys, pl.exclude(*keys, *RECORD_CELL, "record_repeat"))


def _differences() -> pl.Expr:
    """Describe where a record differs from the study's own cell. A key that the record does not know was not asked then."""
    own = {"study": "study", "repeat": "repeat", "cell_id": "cell_id", "device": "cell_device", "seed": "seed"}
    own |= {name: name for name in (*SIZES, *WORDS) if name not in ("dataset", "device")}
    differs = [
        pl.when(pl.col(f"record_{name}").is_not_null() & pl.col(f"record_{name}").ne_missing(pl.col(mine))).then(pl.lit(name))
        for name, mine in own.items()
    ]
    names = pl.concat_str(differs, separator=", ", ignore_nulls=True)
    return pl.when(names != "").then(pl.format("its cell differs from the study's cell of the same run: {}", names))


def _judged(frame: pl.DataFrame) -> pl.DataFrame:
    """Set the status of `missing` and `unreadable` rows, and drop what is not believed of their records."""
    no_record = pl.col("record").is_null()
    told = pl.col("problem").is_null() & ~no_record
    frame = frame.with_columns(pl.when(told).then(_differences()).otherwise("problem").alias("problem"))
    bad = pl.col("problem").is_not_null()
    told_names = {*SCHEMA, "record_repeat"} - {"run_id", "repeat"} if frame["problem"].count() else ()
    measured = [pl.when(~bad).then(pl.col(name)).alias(name) for name in frame.columns if name in told_names]
    lost = pl.format("{} attempts left no record", "num_attempts")
    return (
        frame.with_columns(measured)
        .with_columns(
            pl.when(no_record).then(pl.lit(MISSING)).when(bad).then(pl.lit(UNREADABLE)).otherwise(pl.col("status")).alias("status"),
            pl.when(no_record & (pl.col("num_attempts") > 0))
            .then(lost)
            .when(bad)
            .then(pl.format("{}: {}", "record", "problem"))
            .otherwise(pl.col("status_reason"))
            .alias("status_reason"),
        )
        .with_columns(*_rates())
        .pipe(with_utilisation)
        .drop("problem", "told_samples_per_s", "told_tokens_per_s")
    )


def _rates() -> list[pl.Expr]:
    """Compute samples or tokens of the window over its wall time; in inference the sum of the ranks' own rates.

    A record without `samples` is of a version that took the global batch over the median step for the rate, and the rank that ended its
    steps last for a straggler: its rate is made of the wall time that it holds, and the rank is left out.
    """
    old = pl.col("samples").is_null()
    samples = pl.coalesce("samples", pl.col("num_measured_steps") * pl.col("global_batch_size"))
    over_wall = samples / pl.col("window_s")
    in_samples = pl.when(old | (pl.col("mode") != "infer")).then(over_wall).otherwise(pl.col("told_samples_per_s"))
    in_tokens = pl.when(pl.col("mode") != "infer").then(pl.col("tokens") / pl.col("window_s")).otherwise(pl.col("told_tokens_per_s"))
    counts_tokens = pl.col("unit") == "tokens"
    rate = pl.when(counts_tokens).then(in_tokens).otherwise(in_samples)
    rate = pl.when(rate.is_finite() & (rate > 0)).then(rate)
    by_median = in_samples * pl.col("step_p50_s") / pl.col("global_batch_size")
    return [
        samples.alias("samples"),
        rate.alias("rate_per_s"),
        pl.when(~counts_tokens).then(rate).alias("samples_per_s"),
        pl.when(counts_tokens).then(rate).alias("tokens_per_s"),
        pl.coalesce("rate_to_median_ratio", pl.when(by_median.is_finite()).then(by_median)).alias("rate_to_median_ratio"),
        *[pl.when(~old).then(pl.col(name)).alias(name) for name in ("rank_skew_p95_ratio", "straggler_rank")],
    ]
