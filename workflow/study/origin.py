"""Whose the results of a study are: of the file that ran last. Another file of the same name is refused, since one would write into the
other's results; the same file elsewhere, as in a moved project, or in one that was copied with its storage, is not another one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from base.apart import call_apart
from base.errors import ConfigError, RecordError
from base.foreign import text
from base.jsonfile import canonical_json, read_json
from workflow.study.brought import are_versions
from workflow.study.next_command import command
from workflow.study.paths import STUDY_FILE

if TYPE_CHECKING:
    from workflow.study.study import Study

SHORT: Final = 12
MAX_PATH: Final = 4096
"""What the kernel takes; a longer path stands only in a study.json that was edited."""
KEPT: Final = ("path", "file_sha256", "cells_sha256", "sources", "storage")
"""What a line of the history holds of the file."""
STORAGE_S: Final = 300.0
"""For all records of a study, or one file: network storage may hang, and the caller would with it."""


def origin_of(study: Study, adopt: bool, runs: bool = True) -> dict[str, Any]:
    """KEPT: path and digest of the file, the digest of the cells that it asks for, the build directories of the datasets whose path is
    relative to it, and the storage; `adopt`: whether to take over what is another's, and the `commands` that do; `runs`: whether a run
    starts, which makes the file the owner."""
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
    """KEPT of a line that is to come: of our file when a run starts, else of the owner, who is nobody where nothing has run."""
    of = mine if mine["runs"] or is_same_file(last.get("path"), mine["path"]) else last
    return {key: of[key] for key in KEPT if key in of}


def is_same_file(one: object, other: str) -> bool:
    """Also by another way: through `..`, a link, or a second mount of the same storage; or brought by `slipway remote` in another version.
    What is gone is told by where its path leads."""
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
    """The last line of the history in a study.json, which may have been edited; nothing where there is none."""
    last = history[-1] if isinstance(history, list) and history else None
    return last if isinstance(last, dict) else {}


def known_datasets(results_dir: str) -> tuple[list[Any], list[str]]:
    """The specifications of datasets in the cells of study.json, each once, and the folders that the study file has been in; nothing where
    no study.json can be read. In a child with a time limit."""
    try:
        value = read_json(Path(results_dir, STUDY_FILE))
    except RecordError:
        return [], []
    lists = [value.get(key) if isinstance(value, dict) else None for key in ("cells", "history")]
    cells, history = ([one for one in found if isinstance(one, dict)] if isinstance(found, list) else [] for found in lists)
    specs = {str(cell["dataset_spec"]): cell["dataset_spec"] for cell in cells if "dataset_spec" in cell}
    files = {str(line["path"]) for line in history if "path" in line}
    return list(specs.values()), sorted({str(Path(file).parent) for file in files})


def refuse_other_file(results_dir: Path, mine: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    """Raise ConfigError when the `last` that ran is another file, and asks for other cells, or for other data under the same relative path;
    an earlier version says of no file. A file whose results are on other storage was copied to become ours. One that cannot be found was
    moved, or is on the disk of another host: it is ours if its text or its cells are the same, as at the first start after a move."""
    if mine["adopt"] or last.get("path") is None or is_same_file(last["path"], mine["path"]):
        return
    if not is_same_file(last.get("storage"), mine["storage"]):
        return
    same_cells = last.get("cells_sha256") == mine["cells_sha256"]
    is_gone = _is_gone(last["path"])
    if (is_gone and last.get("file_sha256") == mine["file_sha256"]) or (same_cells and (is_gone or _same_sources(mine, last))):
        return
    raise ConfigError(
        f"the study {results_dir.name!r} of {mine['path']} (sha256 {mine['file_sha256'][:SHORT]}) would write into the results of another "
        f"file: {results_dir} are those of {text(last['path'], 300)} (sha256 {text(last.get('file_sha256'))[:SHORT]}, since "
        f"{text(last.get('time'), 40)}{'; this machine does not find it' if is_gone else ''}), which "
        f"asks for other cells, or for other data. Give one of the two another name (study: ...), or let the results be this file's from "
        f"now on: {mine['commands']}, or `--config adopt=yes` of snakemake; records stay, and tables show the cells of the file that ran "
        "last"
    )


def _same_sources(mine: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
    return bool(last.get("sources", "") == mine["sources"])


def _is_gone(path: object) -> bool:
    try:
        return isinstance(path, str) and not os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # it may be there, for others; or no file can have that path
        return False


def refuse_foreign_results(study: Study) -> list[str]:
    """Raise ConfigError when the results are those of another study file of the same name, StorageError where storage hangs. Return the
    notes of refuse_unless_owner()."""
    mine = origin_of(study, adopt=False)
    notes = call_apart(f"study.json of {study.name}", refuse_unless_owner, str(study.results_dir), mine, timeout_s=STORAGE_S)
    return [f"{note}: `{study.command('dataset', 'build', '--study', str(study.path))}`" for note in notes]


def refuse_unless_owner(results_dir: str, mine: Mapping[str, Any]) -> list[str]:
    """The same of what study.json says now; nothing where there is none, or none that can be read: who writes it looks closer. Return a
    note where the next start takes the results over from another file, and a relative path of a dataset leads to another folder."""
    path = Path(results_dir, STUDY_FILE)
    try:
        found = read_json(path) if path.exists() else {}
    except RecordError:
        return []
    found = found if isinstance(found, dict) else {}
    site = found.get("site")
    storage = site.get("storage") if isinstance(site, dict) else None
    last = {"storage": storage, **last_version(found.get("history"))}
    refuse_other_file(path.parent, mine, last)
    if last.get("path") is None or is_same_file(last["path"], mine["path"]) or _same_sources(mine, last):
        return []
    return [
        f"the next start takes over the results of {text(last['path'], 300)}, for which a relative dataset path led to another folder: "
        "finished runs stay as they are; whether the files here are the same is known once the dataset is built here"
    ]
