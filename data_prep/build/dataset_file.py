"""Read and write dataset.json, which names the finished dataset of a build directory and is the only file that runs depend on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from base.errors import DatasetError
from base.jsonfile import read_json
from base.typed import Check, Count, Digest, Name, read_as
from data_prep.build.locks import publish_json_of

DATASET_FILE: Final = "dataset.json"
_DIRECTORY: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}-[0-9a-f]{12}")
DirectoryName = Annotated[str, Check("<name>-<12 hex digits>", lambda value: _DIRECTORY.fullmatch(value) is not None and ".." not in value)]


@dataclass(frozen=True, kw_only=True)
class BuiltDataset:
    """The content of `dataset.json`. `path` is the name of the dataset's directory below the datasets directory."""

    name: Name
    digest: Digest
    path: DirectoryName
    samples: Count | None
    bytes: Count
    spec12: str = ""


def read_dataset_file(build_dir: Path) -> BuiltDataset:
    """Read the finished dataset of `build_dir`. Raises DatasetError when it is not finished."""
    path = build_dir / DATASET_FILE
    return read_as(BuiltDataset, read_json(path, DatasetError), path, DatasetError, "remove it and run again")


def write_dataset_file(build_dir: Path, built: BuiltDataset) -> None:
    """Publish it, last of all."""
    publish_json_of(build_dir / DATASET_FILE, vars(built))
