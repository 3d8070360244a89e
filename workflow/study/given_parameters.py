"""Find the parameters that cells start from: a file that the study names, or what a run of this or another study has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from base.errors import ConfigError
from base.jsonfile import read_json
from base.sanitize import quoted, whole
from base.untrusted import open_plain
from base.userpath import absolute_path
from base.worker import call_apart
from containers.spec import PARAMETERS
from workflow.study.cell import ParametersFile
from workflow.study.paths import attempts_dir, record_path, results_dir

HASH_S: Final = 600.0
"""The time limit for reading a file of parameters once from slow storage."""


def find_parameters(text: str, folder: Path, storage: Path, study: str) -> ParametersFile:
    """Return the file that `text` names, with its size and its digest now. `text`: a path that ends with .safetensors, relative to
    `folder`, or a run, as RUN of `study` or STUDY/RUN. Raises ConfigError where there is none, StorageError where storage is silent."""
    if text.endswith(Path(PARAMETERS).suffix):
        try:
            found: ParametersFile = call_apart(text, _described, str(absolute_path(text, folder)), timeout_s=HASH_S)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return found
    other, _, run = text.rpartition("/")
    if not run or "/" in other or {other, run} & {".", ".."}:
        raise ConfigError(f"found {text!r}; valid: seed, a file that ends with .safetensors, or a run, as RUN or STUDY/RUN")
    of_run: ParametersFile = call_apart(text, _of_run, str(results_dir(storage, other or study)), run, text, timeout_s=HASH_S)
    return of_run


def _of_run(results: str, run: str, text: str) -> ParametersFile:
    record = record_path(Path(results), run)
    if not record.is_file():
        raise ConfigError(
            f"found {text!r}, and {record} is not there: a run that others start from must have its result before they are planned; "
            "of a file only .safetensors is read, as safetensors.torch.save_file writes it"
        )
    found: Any = read_json(record, ConfigError)
    value = found.get("attempt") if isinstance(found, dict) else None
    attempt = whole(value, 1)
    if attempt is None:
        raise ConfigError(f"found {run!r}, and {record}: attempt: found {quoted(value)}; expected a whole number from 1")
    path = attempts_dir(Path(results), run) / str(attempt) / PARAMETERS
    if not path.is_file():
        raise ConfigError(f"found {run!r}, which has no {path}: it has not trained well, or with save_parameters: false")
    return _described(str(path))


def _described(path: str) -> ParametersFile:
    from data_prep.hashing import hash_open

    try:
        with open(open_plain(Path(path)), "rb", buffering=0) as file:
            found = hash_open(file)
    except OSError as error:
        raise ConfigError(f"found {path}, which cannot be read: {error.strerror}") from error
    return {"path": path, "bytes": found.bytes, "blake3": found.blake3}
