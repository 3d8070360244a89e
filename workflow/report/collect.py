"""Read directories of results into one row for each run, and write records.parquet.

Directories are named, never the list of records: argument lists overflow at 2,000. A run of the study's current cells without any record
is a row `missing`, one whose record is torn a row `unreadable`; runs that the study no longer asks for are counted and left out.
"""

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from base.errors import RecordError
from base.humanize import is_name
from base.jsonfile import read_content, read_json
from base.publish import publish
from cluster.gpus.peak import Peak, peak
from containers.models import of_tokens
from workflow.report.files import RECORDS_FILE
from workflow.report.record_reader import BESIDE, ROW_SCHEMA, read_runs
from workflow.run.record.parquet_columns import MISSING, UNREADABLE
from workflow.run.record.progress_line import STATUS as WAITING
from workflow.run.record.reading import names
from workflow.run.storage.results import waiting_runs
from workflow.study.cell import SIZES, WORDS, Cell, Keys, profile_run
from workflow.study.publishing import SCHEMA, last_version
from workflow.study.series import NOT_SERIES

# Model FLOP utilisation of a run: the FLOP that its model needs at the measured rate, over what its GPUs can do at most.
#
# Model FLOP are those of forward and backward for one sample or token, without what is computed again: appendix B of PaLM (Chowdhery
# et al., 2022). A network of ours has its multiply-adds from its layer list, of an image or of a token, twice as many FLOP, and a backward
# pass of twice the forward, but for the gradient of what the first layer reads, which no framework computes (records of earlier versions
# count it).
# A token in a longer sequence attends to more: what was in buckets has the mean over the tokens that were trained.


FLOP_PER_MAC: Final = 2
PASSES: Final = 3
"""Training costs three forward passes: the backward one computes the gradients of inputs and of weights."""
_NAMED = pl.concat_str("gpu_models", pl.lit("\n"), "arithmetic")


def with_flop_and_utilisation(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `mfu` and what it is made of: `flop_per_unit`, `flop_source` (model, program), `arithmetic` (precision of its matrices, which
    for a user's program only that reports), `peak_flop_per_s` of one GPU, and `peak_source`.
    """
    macs = (
        pl.when(pl.col("mode") == "infer")
        .then("model_macs")
        .otherwise(PASSES * pl.col("model_macs") - pl.col("model_first_macs").fill_null(0))
    )
    counted = pl.col("model").is_in(of_tokens()) == (pl.col("unit") == "tokens")  # a program may count samples of a network of tokens
    of_model = pl.when(counted).then(FLOP_PER_MAC * macs)
    told = rows.with_columns(
        pl.coalesce(of_model, "told_flop_per_unit").cast(pl.Float64).alias("flop_per_unit"),
        pl.when(of_model.is_not_null())
        .then(pl.lit("model"))
        .when(pl.col("told_flop_per_unit").is_not_null())
        .then(pl.lit("program"))
        .alias("flop_source"),
        pl.when("own_program").then("told_precision").otherwise("precision").alias("arithmetic"),
    )
    found = _peaks(told)
    flop, source = ({name: getattr(one, field) for name, one in found.items()} for field in ("flop_per_s", "source"))
    known = told.with_columns(
        _NAMED.replace_strict(flop, default=None, return_dtype=pl.Float64()).alias("peak_flop_per_s"),
        _NAMED.replace_strict(source, default=None, return_dtype=pl.String()).alias("peak_source"),
    )
    of_a_gpu = pl.col("flop_per_unit") * pl.col("rate_per_s") / pl.col("num_processes")
    return known.with_columns((of_a_gpu / pl.col("peak_flop_per_s")).alias("mfu")).drop("told_flop_per_unit", "told_precision")


def _peaks(rows: pl.DataFrame) -> dict[str, Peak]:
    pairs = rows.select(_NAMED.alias("named"), "gpu_models", "arithmetic").drop_nulls().unique()
    found = {named: peak(model, precision) for named, model, precision in pairs.iter_rows()}
    return {named: one for named, one in found.items() if one is not None}


# Where runs come from: one results directory per study and cluster, with the resolved study beside the runs.


@dataclass(frozen=True, kw_only=True)
class Source:
    """One results directory: its study.json, and how many of its runs are of an older version of the study."""

    label: str
    path: str
    study: str
    site: str | None = None
    site_keys: Mapping[str, Any] = field(default_factory=dict)
    baseline: Keys = field(default_factory=dict)
    target_accuracy: float | None = None
    file_sha256: str | None = None
    left_out: int = 0

    @property
    def directory(self) -> Path:
        return Path(self.path)


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """The part of study.json that tables need. `runs`: run id -> (cell id, repeat). No profile is among `cells` and `runs`, which give
    rates; `profiles`: run id -> cell of those that are asked for."""

    study: str
    site: str | None
    site_keys: Mapping[str, Any]
    baseline: Keys
    cells: Mapping[str, Cell]
    runs: Mapping[str, tuple[str, int]]
    profiles: Mapping[str, Cell] = field(default_factory=dict)
    target_accuracy: float | None = None
    file_path: str | None = None
    file_sha256: str | None = None
    """SHA-256 of the study file when it last ran; None from an older version."""


def read_study(directory: Path) -> StudyFile:
    """Read study.json of a results directory. Raises RecordError if it is missing, torn or no study."""
    path = directory / "study.json"
    if not os.path.lexists(path):
        raise RecordError(
            f"{path}: it is missing, so nobody knows which cells and runs were asked for, and which of these are gone; put it back, or let "
            "`slipway run STUDY` write it anew"
        )
    content = read_json(path)
    try:
        if content["schema"] != SCHEMA:
            raise RecordError(f"{path}: found schema {content['schema']!r}, expected {SCHEMA!r}")
        every = {cell.cell_id: cell for cell in msgspec.convert(content["cells"], tuple[Cell, ...])}
        listed = {run["run_id"]: (run["cell_id"], run["repeat"]) for run in content["runs"]}
        if unknown := {cell_id for cell_id, _ in listed.values()} - every.keys():
            raise RecordError(f"{path}: its runs name cells that it does not hold, such as {min(unknown)!r}")
        cells = {cell_id: cell for cell_id, cell in every.items() if cell.profile is None}
        site = content.get("site") or {}
        last = last_version(content.get("history"))
        digest = last.get("file_sha256")
        return StudyFile(
            study=content["study"],
            site=site.get("name"),
            site_keys=dict(site),
            baseline=content.get("baseline") or {},
            target_accuracy=target if isinstance(target := content.get("target_accuracy"), float) and 0 < target <= 1 else None,
            cells=cells,
            runs={run_id: run for run_id, run in listed.items() if run[0] in cells},
            profiles={run_id: every[cell_id] for run_id, (cell_id, _) in listed.items() if cell_id not in cells},
            file_path=last["path"] if isinstance(last.get("path"), str) else None,
            file_sha256=digest if isinstance(digest, str) else None,
        )
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        problem = f"{path} is no resolved study ({type(error).__name__}: {error})"
        raise RecordError(f"{problem}; remove it, and `slipway run STUDY` writes it anew") from error


def profile_runs(study: StudyFile) -> set[str]:
    """Return the profile runs of the study's cells, also where the study does not ask for them now."""
    return {*study.profiles, *(profile_run(cell).run_id for cell in study.cells.values())}


def check_directory(directory: Path) -> None:
    """Raise RecordError, saying what to give instead, unless `directory` holds a study's results."""
    if not directory.is_dir():
        raise RecordError(f"{directory} is not a directory: give a study's results, <storage>/results/<study>")
    if not (directory / "runs").is_dir() and not (directory / "study.json").exists():
        inside = sorted(path.parent.name for path in directory.glob("*/study.json"))
        hint = (
            f"it holds the studies {', '.join(inside)}: give one of them" if inside else "give a study's results, <storage>/results/<study>"
        )
        raise RecordError(f"{directory} holds neither study.json nor runs/; {hint}")


def cell_frame(cells: Sequence[Cell]) -> pl.DataFrame:
    """Make one row per cell: main keys, `series` (which cells may be compared) and the whole cell as JSON text."""
    columns: dict[str, list[Any]] = {name: [] for name in CELL_COLUMNS}
    for cell in cells:
        keys = cell.to_json()
        rest = msgspec.json.encode({key: value for key, value in keys.items() if key not in NOT_SERIES}, order="sorted")
        own: dict[str, object] = {"series": hashlib.sha256(rest).hexdigest()[:8], "cell": msgspec.json.encode(keys).decode()}
        own |= {"num_processes": cell.world_size, "threads": str(cell.threads), "unit": cell.unit}
        row = {**keys, **own, "own_program": cell.program is not None}
        for name, values in columns.items():
            values.append(row[name])
    return pl.DataFrame(columns, schema=CELL_COLUMNS)


def cell_of(text: str) -> Cell:
    """Parse a cell."""
    return _DECODER.decode(text)


_DECODER: Final = msgspec.json.Decoder(Cell)
CELL_COLUMNS: dict[str, pl.DataType] = {
    **{name: pl.String() for name in ("cell_id", "series", *(word for word in WORDS if word != "device"))},
    **{name: pl.Int64() for name in (*SIZES, "num_processes")},
    **{name: pl.String() for name in ("threads", "unit")},
    "own_program": pl.Boolean(),
    "seed": pl.Int64(),
    "cell": pl.String(),
}


def labelled(sources: Sequence[Source]) -> list[Source]:
    """Give each source a label of its own: the site's name, else the study's, else as much of the path as is needed."""
    parts = [Path(source.path).parts for source in sources]
    choices = [[source.site or source.study for source in sources], [source.study for source in sources]]
    choices += [["/".join(part[-depth:]) for part in parts] for depth in range(1, max((len(part) for part in parts), default=0) + 1)]
    for labels in choices:
        if max(Counter(labels).values(), default=0) <= 1:
            return [replace(source, label=label) for source, label in zip(sources, labels, strict=True)]
    raise AssertionError("directories are distinct")


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
    """Read every directory. Raises RecordError when one holds no results, its study.json is torn, or two hold the same record."""
    unique = list(dict.fromkeys(directory.resolve() for directory in directories))
    for directory in unique:
        check_directory(directory)
    read = [_collect_one(directory) for directory in unique]
    sources = labelled([source for source, _ in read])
    frames = [frame.insert_column(0, pl.lit(source.label).alias("source")) for source, (_, frame) in zip(sources, read, strict=True)]
    _refuse_copies(frames, sources)
    return Collection(frame=pl.concat(frames), sources=tuple(sources))


def _refuse_copies(frames: Sequence[pl.DataFrame], sources: Sequence[Source]) -> None:
    """Raise RecordError where a record lies in two of the directories, the same by its seal: it would count twice."""
    first: dict[str, str] = {}
    for frame, source in zip(frames, sources, strict=True):
        seals = frame["seal"].drop_nulls().to_list()
        if (copied := next((seal for seal in seals if seal in first), None)) is not None:
            raise RecordError(f"{source.path}: it has records of {first[copied]}, the same by their seals; give one of the two alone")
        first.update(dict.fromkeys(seals, source.path))


def write_records(collection: Collection, out: Path) -> Path:
    """Publish records.parquet in `out`, whole or not at all. The file's metadata holds the sources."""
    buffer = io.BytesIO()
    metadata = {_META: json.dumps([asdict(source) for source in collection.sources]), _META_COLUMNS: _columns()}
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
        sources = tuple(Source(**found) for found in json.loads(metadata[_META]))
        return Collection(frame=pl.read_parquet(io.BytesIO(content)), sources=sources)
    except (pl.exceptions.PolarsError, KeyError, ValueError, TypeError) as error:
        raise RecordError(f"{path} cannot be read as collected records ({error}); collect them again") from error


def _columns() -> str:
    """Hash the column names: a table would miss a column that came later."""
    return hashlib.sha256(",".join((*ROW_SCHEMA, *CELL_COLUMNS, *BESIDE)).encode()).hexdigest()[:12]


def _collect_one(directory: Path) -> tuple[Source, pl.DataFrame]:
    study = read_study(directory)
    cells = {run_id: study.cells[study.runs[run_id][0]] for run_id in sorted(study.runs)}
    source = Source(
        **{name: getattr(study, name) for name in ("study", "site", "site_keys", "baseline", "target_accuracy", "file_sha256")},
        label=study.study,
        path=str(directory),
        left_out=len({name for name in names(str(directory / "runs")) if is_name(name)} - set(cells) - profile_runs(study)),
    )
    frame = _joined(read_runs(directory / "runs", cells, study.study), study)
    missing = frame.filter(pl.col("status") == MISSING)["run_id"]
    return source, _with_waiting(frame, waiting_runs(directory, missing))


def _with_waiting(frame: pl.DataFrame, waiting: Mapping[str, str]) -> pl.DataFrame:
    """Mark runs without a record whose result waits on its nodes as prevented."""
    if not waiting:
        return frame
    said = pl.col("run_id").replace_strict(waiting, default=None, return_dtype=pl.String())
    status = pl.when(said.is_not_null()).then(pl.lit(WAITING)).otherwise(pl.col("status"))
    return frame.with_columns(status.alias("status"), pl.coalesce(said, "status_reason").alias("status_reason"))


def _joined(rows: pl.DataFrame, study: StudyFile) -> pl.DataFrame:
    """Join the rows with the keys of the study's own cell (names of today), and set their final status."""
    cell_ids, repeats = [cell_id for cell_id, _ in study.runs.values()], [repeat for _, repeat in study.runs.values()]
    types = {"run_id": pl.String(), "cell_id": pl.String(), "repeat": pl.Int64()}
    wanted = pl.DataFrame({"run_id": list(study.runs), "cell_id": cell_ids, "repeat": repeats}, schema=types)
    cells = cell_frame(list(study.cells.values())).with_row_index("cell_index")
    frame = (
        rows.with_columns(pl.lit(study.study).alias("study")).join(wanted, on="run_id", how="left").join(cells, on="cell_id", how="left")
    )
    frame = _judged(frame).sort("cell_index", "repeat", "run_id", nulls_last=True)
    keys = ["study", "run_id", "repeat", *cells.columns]
    return frame.select(*keys, pl.exclude(keys))


def _judged(frame: pl.DataFrame) -> pl.DataFrame:
    """Set the status of `missing` and `unreadable` rows."""
    no_record, bad = pl.col("record").is_null(), pl.col("problem").is_not_null()
    lost = pl.format("{} attempts left no record", "num_attempts")
    return (
        frame.with_columns(
            pl.when(no_record).then(pl.lit(MISSING)).when(bad).then(pl.lit(UNREADABLE)).otherwise(pl.col("status")).alias("status"),
            pl.when(no_record & (pl.col("num_attempts") > 0))
            .then(lost)
            .when(bad)
            .then(pl.format("{}: {}", "record", "problem"))
            .otherwise(pl.col("status_reason"))
            .alias("status_reason"),
        )
        .with_columns(*_rates())
        .pipe(with_flop_and_utilisation)
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
