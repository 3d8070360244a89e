"""Write study.json at each start of a study, and refuse results that belong to another study file."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypedDict

import msgspec

from base import calls, publish
from base.errors import ConfigError, RecordError
from base.jsonfile import canonical_json, read_content, read_json
from base.sanitize import text
from base.typed import FromOne, Name, ReadableAs, read_as
from workflow.study.cell import Cell, Keys, Run, RunLimits, datasets_of
from workflow.study.next_command import command
from workflow.study.paths import STUDY_FILE, STUDY_SOURCE
from workflow.study.site import Site

if TYPE_CHECKING:
    from workflow.study.study import Study  # half of the time of the interpreter that publishes


# The directories of studies that `slipway remote` brings.


STUDIES: Final = "studies"
HASH_LENGTH: Final = 32
VERSION: Final = re.compile(rf"(?P<of>.*/{STUDIES}/[^/]+-[0-9a-f]{{12}})/[0-9a-f]{{{HASH_LENGTH}}}/(?P<file>[^/]+)", re.DOTALL)


def version_dir(storage: Path, source: str, digest: str) -> Path:
    """Return the directory of one version of a study file, named by its content, so that a running job keeps what it began with.

    `source`: NAME-<12 hex digits>, which stands for the file on the laptop; `digest`: DIGITS of them.
    """
    return storage / STUDIES / source / digest


def folder_of(study: Path) -> Path:
    """Return the directory beside whose files the results of the site `local` lie: for all versions of a file that was brought, one."""
    version = VERSION.fullmatch(str(study))
    return study.parent if version is None else Path(version["of"]).parents[2]


def are_versions(one: str, other: str) -> bool:
    """Return True if two paths are of versions of one file that was brought: both have the same results."""
    first, second = VERSION.fullmatch(one), VERSION.fullmatch(other)
    return first is not None and second is not None and first.groups() == second.groups()


# The owner of a study's results: the file that ran last.


SHORT: Final = 12
MAX_PATH: Final = 4096
"""The longest path that the kernel takes; a longer path stands only in a study.json that was edited."""
KEPT_KEYS: Final = ("path", "file_sha256", "cells_sha256", "sources", "storage")
"""The keys of the study file that a line of the history keeps."""
STORAGE_S: Final = 300.0
"""The seconds for all records of a study, or one file: network storage may hang, and the caller would with it."""


def origin_of(study: Study, adopt: bool, runs: bool = True) -> dict[str, object]:
    """Return the values of KEPT_KEYS for this study file, and how it is started.

    They are path and digest of the file, the digest of the cells that it asks for, the build directories of the datasets whose path is
    relative to it, and the storage. `adopt`: whether to take over results of another file, and the `commands` that do; `runs`: whether a
    run starts, which makes the file the owner.
    """
    verbs = ("run",) if study.site.scheduler == "local" else ("run", "submit")
    cells = sorted(cell.cell_id for cell in study.cells)
    relative = {cell.dataset for cell in study.cells if cell.dataset_spec != study.datasets[cell.dataset].to_json()}
    return {
        "path": str(study.path.absolute()),
        "file_sha256": hashlib.sha256(study.text.encode()).hexdigest(),
        "cells_sha256": hashlib.sha256(canonical_json(cells)).hexdigest(),
        "sources": " ".join(sorted(study.build_dir(name).name for name in relative)),
        "storage": str(study.site.storage),
        "adopt": adopt,
        "runs": runs,
        "commands": " or ".join(f"`{command(study, verb, '--adopt')}`" for verb in verbs),
    }


def kept_of(mine: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of KEPT_KEYS for the next line of the history.

    They are of our file when a run starts, else of the owner, who is nobody where nothing has run.
    """
    of = mine if mine["runs"] or is_same_file(last.get("path"), mine["path"]) else last
    return {key: of[key] for key in KEPT_KEYS if key in of}


def is_same_file(one: object, other: str) -> bool:
    """Return True if two paths lead to one study file.

    It may be another way: through `..`, a link, or a second mount of the same storage; or brought by `slipway remote` in another
    version. Files that are gone are compared by where their paths lead.
    """
    if not isinstance(one, str) or len(one) > MAX_PATH:
        return False
    if are_versions(one, other):
        return True
    try:
        return one == other or Path(one).samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
    except ValueError:  # of a path that no file can have, in a study.json that was edited
        return False


def last_version(history: Any) -> Mapping[str, Any]:
    """Return the last line of the history in a study.json, which may have been edited; an empty one where there is none."""
    last = history[-1] if isinstance(history, list) and history else None
    return last if isinstance(last, dict) else {}


def refuse_other_file(results_dir: Path, mine: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    """Raise ConfigError if these results belong to another study file than `mine`. `last`: the file that ran last.

    Allowed are: adoption that was asked for; the same file; a `last` without a path, of an early version; another storage, since the
    results were copied; the same cells whose relative paths lead to the same data; and a `last` that cannot be found but has the same text
    or the same cells, as at the first start after a move."""
    if mine["adopt"] or last.get("path") is None or is_same_file(last["path"], mine["path"]):
        return
    if not is_same_file(last.get("storage"), mine["storage"]):
        return
    is_gone, same_sources = _is_gone(last["path"]), last.get("sources", "") == mine["sources"]
    if last.get("cells_sha256") == mine["cells_sha256"] and (is_gone or same_sources):
        return
    if is_gone and last.get("file_sha256") == mine["file_sha256"]:
        return
    raise ConfigError(
        f"the study {results_dir.name!r} of {mine['path']} (sha256 {mine['file_sha256'][:SHORT]}) would write into the results of another "
        f"file: {results_dir} are those of {text(last['path'], 300)} (sha256 {text(last.get('file_sha256'))[:SHORT]}, since "
        f"{text(last.get('time'), 40)}{'; this machine does not find it' if is_gone else ''}), which "
        f"asks for other cells, or for other data. Give one of the two another name (study: ...), or let the results be this file's from "
        f"now on: {mine['commands']}, or `--config adopt=yes` of snakemake; records stay, and tables show the cells of the file that ran "
        "last"
    )


def _is_gone(path: object) -> bool:
    try:
        return isinstance(path, str) and not os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # it may be there, for others; or no file can have that path
        return False


def refuse_results_of_others(study: Study) -> None:
    """Raise ConfigError when the results are those of another study file of the same name, StorageError where storage hangs."""
    mine = origin_of(study, adopt=False)
    calls.call_isolated(f"study.json of {study.name}", refuse_unless_owner, str(study.results_dir), mine, timeout_s=STORAGE_S)


def refuse_unless_owner(results_dir: str, mine: Mapping[str, Any]) -> None:
    """Refuse results of another study file, by what study.json says now.

    Nothing is refused where there is none, or none that can be read: who writes it looks closer.
    """
    path = Path(results_dir, STUDY_FILE)
    try:
        found = read_json(path) if path.exists() else {}
    except RecordError:
        return
    found = found if isinstance(found, dict) else {}
    site = found.get("site")
    storage = site.get("storage") if isinstance(site, dict) else None
    refuse_other_file(path.parent, mine, {"storage": storage, **last_version(found.get("history"))})


# The content of study.json. Supervisor and tables read it, for which neither needs YAML or pydantic.


SCHEMA: Final = "slipway.study/1"


class _Version(TypedDict):
    sha256: str
    time: str
    path: NotRequired[str]
    file_sha256: NotRequired[str]
    cells_sha256: NotRequired[str]
    sources: NotRequired[str]
    storage: NotRequired[str]


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """A run of the study, as study.json lists it."""

    run_id: Name
    cell_id: Name
    repeat: FromOne


@dataclass(frozen=True, kw_only=True)
class ResolvedStudy:
    """The content of study.json, as it is read."""

    study: Name
    baseline: Keys
    limits: RunLimits
    site: Site
    cells: tuple[Cell, ...]
    repeats: FromOne
    runs: tuple[RunEntry, ...]
    history: tuple[Annotated[dict[str, Any], ReadableAs(_Version)], ...]
    datasets: Mapping[str, Name] = field(default_factory=dict)
    """The name of the directory in which each dataset is built; an earlier version left them out."""
    target_accuracy: float | None = None

    def __post_init__(self) -> None:
        cells = {cell.cell_id for cell in self.cells}
        for number, run in enumerate(self.runs):
            if run.cell_id not in cells:
                raise ValueError(f"runs[{number}].cell_id: {run.cell_id!r} is none of its cells")


def resolved_study(study: Study) -> dict[str, object]:
    """Return the content of study.json, without its history."""
    return {
        "schema": SCHEMA,
        "study": study.name,
        "baseline": dict(study.baseline),
        **({} if study.target_accuracy is None else {"target_accuracy": study.target_accuracy}),
        "limits": {"walltime_s": study.limits.walltime_s, "gpu_hours": study.limits.gpu_hours, "init_s": study.limits.init_s},
        "site": study.site.to_json(),
        "datasets": {name: study.build_dir(name).name for name in datasets_of(study.cells)},
        "cells": [cell.to_json() for cell in (*study.cells, *study.profiles)],
        "repeats": study.repeats,
        "runs": [{"run_id": run.run_id, "cell_id": run.cell.cell_id, "repeat": run.repeat} for run in study.runs],
    }


def read_resolved(results_dir: Path) -> ResolvedStudy:
    """Read study.json of a study's results. Raises RecordError when it is missing, torn or of another schema."""
    path = results_dir / STUDY_FILE
    return parse_resolved(read_json(path), path)


def parse_resolved(value: Any, path: Path) -> ResolvedStudy:
    """Parse `value`, the content of the study.json at `path`. Raises RecordError."""
    found = value.get("schema") if isinstance(value, dict) else None
    if found != SCHEMA:
        raise RecordError(f"{path}: schema: found {text(found, 80)}, this version of Slipway reads {SCHEMA!r}")
    return read_as(
        ResolvedStudy, value, path, advice="it was edited, or is of another version: remove it, and `slipway run` writes it anew"
    )


def find_run(study: ResolvedStudy, run_id: str) -> Run:
    """Return the run of that name. Raises RecordError when the current study has none."""
    for entry in study.runs:
        if entry.run_id == run_id:
            return Run(cell=next(cell for cell in study.cells if cell.cell_id == entry.cell_id), repeat=entry.repeat)
    raise RecordError(f"the study {study.study!r} has no run {run_id!r}; `slipway status` lists its runs")


def publish_resolved(study: Study, now: datetime | None = None, *, adopt: bool = False, runs: bool = True) -> bool:
    """Publish the content of this study; `runs`: as in origin_of()."""
    return publish_content(study.results_dir, resolved_study(study), study.text, origin_of(study, adopt, runs), now)


def publish_content(
    results_dir: Path | str, content: Mapping[str, object], typed: str, origin: Mapping[str, object], now: datetime | None = None
) -> bool:
    """Write study.json if its content, its owner or the owner's file changed, be it a comment, adding one line to its history; False when
    it says the same already. Beside it, the owner's study file as it was typed. `origin`: see origin_of().

    Of several starts at the same moment the last to write counts. Raises OSError when storage does not let us; ConfigError when the results
    are those of another file, unless these are to be adopted; RecordError when an unreadable study.json is in the way.
    """
    directory = Path(results_dir)
    path = directory / STUDY_FILE
    history = read_resolved(directory).history if path.exists() else ()
    before: Mapping[str, object] = history[-1] if history else {}
    version = {"sha256": hashlib.sha256(canonical_json(content)).hexdigest(), **kept_of(origin, before)}
    changed = not before or any(before.get(key) != version.get(key) for key in ("sha256", "path", "file_sha256"))
    if changed:
        refuse_other_file(directory, origin, before)
        directory.mkdir(parents=True, exist_ok=True)
    if version.get("file_sha256", origin["file_sha256"]) == origin["file_sha256"]:  # a copy that owns nothing leaves the owner's
        _publish_source(directory / STUDY_SOURCE, typed.encode())
    if changed:
        time_text = (now or datetime.now(UTC)).isoformat(timespec="seconds")
        value = {**content, "history": [*history, {**version, "time": time_text}]}
        publish.publish(path, msgspec.json.format(canonical_json(value), indent=1) + b"\n")
    return changed


def _publish_source(target: Path, content: bytes) -> None:
    try:
        unchanged = read_content(target, max_bytes=len(content)) == content
    except RecordError:
        unchanged = False  # it is missing, longer, or no file
    if not unchanged:
        publish.publish(target, content)
