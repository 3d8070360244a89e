"""Where runs come from: one results directory per study and cluster, with the resolved study beside the runs."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from base.errors import RecordError
from base.jsonfile import read_json
from workflow.study.cell import SIZES, WORDS, Cell
from workflow.study.publishing import SCHEMA, last_version
from workflow.study.series import NOT_SERIES


@dataclass(frozen=True, kw_only=True)
class Source:
    """One results directory: its study.json, and how many of its runs are of an older version of the study."""

    label: str
    path: str
    study: str
    site: str | None = None
    site_keys: Mapping[str, Any] = field(default_factory=dict)
    baseline: Mapping[str, Any] = field(default_factory=dict)
    has_study: bool = True
    file_sha256: str | None = None
    left_out: int = 0
    copies: int = 0
    """Records that a source before it has too, by their seals: they are counted there."""
    lies: str | None = None
    """Where its files are read now that they were moved or copied; pages name `path`. It is never stored."""

    @property
    def place(self) -> Path:
        return Path(self.path if self.lies is None else self.lies)

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "lies"}


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """The part of study.json that tables need. `runs`: run id -> (cell id, repeat)."""

    study: str
    site: str | None
    site_keys: Mapping[str, Any]
    baseline: Mapping[str, Any]
    cells: Mapping[str, Cell]
    runs: Mapping[str, tuple[str, int]]
    file_path: str | None = None
    file_sha256: str | None = None
    """SHA-256 of the study file when it last ran; None from an older version."""


def read_study(directory: Path) -> StudyFile | None:
    """Read study.json of a results directory, None if there is none. Raises RecordError if it is torn, no study, or a dangling link."""
    path = directory / "study.json"
    if not os.path.lexists(path):
        return None
    content = read_json(path)
    try:
        if content["schema"] != SCHEMA:
            raise RecordError(f"{path}: found schema {content['schema']!r}, expected {SCHEMA!r}")
        cells = {cell.cell_id: cell for cell in msgspec.convert(content["cells"], tuple[Cell, ...])}
        runs = {run["run_id"]: (run["cell_id"], run["repeat"]) for run in content["runs"]}
        if unknown := {cell_id for cell_id, _ in runs.values()} - cells.keys():
            raise RecordError(f"{path}: its runs name cells that it does not hold, such as {min(unknown)!r}")
        site = content.get("site") or {}
        last = last_version(content.get("history"))
        digest = last.get("file_sha256")
        return StudyFile(
            study=content["study"],
            site=site.get("name"),
            site_keys=dict(site),
            baseline=content.get("baseline") or {},
            cells=cells,
            runs=runs,
            file_path=last["path"] if isinstance(last.get("path"), str) else None,
            file_sha256=digest if isinstance(digest, str) else None,
        )
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise RecordError(f"{path} is no resolved study ({type(error).__name__}: {error}); remove it and plan the study again") from error


def check_directory(directory: Path) -> None:
    """Raise RecordError, saying what to give instead, unless `directory` holds a study's results."""
    if not directory.is_dir():
        raise RecordError(f"{directory} is not a directory: give a study's results, <storage>/results/<study>")
    if not (directory / "runs").is_dir() and not (directory / "study.json").exists():
        inside = sorted(path.parent.name for path in directory.glob("*/study.json"))
        hint = f"; it holds the studies {', '.join(inside)}: give one of them" if inside else ""
        raise RecordError(f"{directory} holds neither study.json nor runs/{hint}")


def cell_frame(cells: Sequence[Cell]) -> pl.DataFrame:
    """Make one row per cell: main keys, `series` (which cells may be compared) and the whole cell as JSON text."""
    columns: dict[str, list[Any]] = {name: [] for name in CELL_COLUMNS}
    for cell in cells:
        keys = cell.to_json()
        rest = msgspec.json.encode({key: value for key, value in keys.items() if key not in NOT_SERIES}, order="sorted")
        own: dict[str, Any] = {"series": hashlib.sha256(rest).hexdigest()[:8], "cell": msgspec.json.encode(keys).decode()}
        own |= {"num_processes": cell.world_size, "threads": str(cell.threads), "unit": cell.unit}
        row = {**keys, **own, "own_program": cell.program is not None, "cell_device": cell.device}
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
    **{name: pl.String() for name in ("cell_device", "threads", "unit")},
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
