"""Bundle what goes up: the study file, the folders and files that its programs name by relative paths, and files of parameters.

Absolute paths are the cluster's own.
"""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base.errors import ConfigError
from containers import program_folder
from workflow.study import programs, publishing, site_file
from workflow.study.loader import Document, KeyPath, dotted, read_document

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A tree that is ready to go up. `name`: of the study; `file`: its file in `tree`; `digest`: of all that is in the tree."""

    tree: Path
    name: str
    file: str
    digest: str


def make_bundle(study: Path, tree: Path) -> Bundle:
    """Copy what goes up to the new directory `tree`. Raises ConfigError for what is not there, lies outside of the study's folder, is no
    plain file or is larger than a program may be; and for sources of datasets, which do not travel."""
    document = programs.with_program_files(read_document(study, "study"))
    folder = Path(os.path.abspath(study)).parent
    tops = _tops([_checked(document, place, text, folder) for place, text in (*_relative(document), *_given_parameters(document))])
    if "." in tops:
        _copy(folder, tree)
        (tree / site_file.BESIDE).unlink(missing_ok=True)  # it says where things are on the laptop
    else:
        tree.mkdir()
        for top in tops:
            (tree / top).parent.mkdir(parents=True, exist_ok=True)
            _copy(folder / top, tree / top)
    copy = tree / study.name
    copy.unlink(missing_ok=True)
    copy.write_bytes(study.read_bytes())
    name = document.value.get("study")
    return Bundle(
        tree=tree,
        name=name if isinstance(name, str) and _NAME.fullmatch(name) else "study",
        file=study.name,
        digest=digest_of(tree),
    )


def digest_of(tree: Path) -> str:
    """Return the digest of paths, contents and which files may be executed. Raises as program_folder.look_at does."""
    return program_folder.look_at(tree, executed=False).digest[: publishing.HASH_LENGTH]


def _relative(document: Document) -> Iterator[tuple[KeyPath, str]]:
    """Yield the relative paths of programs, with where they stand. Raises ConfigError for those of datasets."""
    for name, dataset in _mappings(document.value.get("datasets")):
        splits = {("splits", split): found for split, found in _mappings(dataset.get("splits"))}
        for place, path in [(("path",), dataset.get("path")), *(((*key, "path"), found.get("path")) for key, found in splits.items())]:
            if _is_relative(path):
                where: KeyPath = ("datasets", name, *place)
                raise ConfigError(
                    f"{document.where(where)}: {dotted(where)}: found {path!r}, relative to this file; sources of datasets do not travel: "
                    "copy it to the cluster's storage (rsync), and write the absolute path that it has there"
                )
    for name, program in _mappings(document.value.get("programs")):
        if _is_relative(program.get("folder")):
            yield ("programs", name, "folder"), program["folder"]
        if _is_relative(program.get("python")) and "/" in program["python"]:
            yield ("programs", name, "python"), program["python"]
        mounts = program.get("mounts")
        for number, mount in enumerate(mounts if isinstance(mounts, list) else []):
            if isinstance(mount, dict) and _is_relative(mount.get("source")):
                yield ("programs", name, "mounts", number, "source"), mount["source"]


def _given_parameters(document: Document) -> Iterator[tuple[KeyPath, str]]:
    for place, text in _leaves({key: document.value.get(key) for key in ("base", "axes", "zip", "include")}):
        if "parameters" in place[-2:] and "args" not in place and _is_relative(text) and text.endswith(".safetensors"):
            yield place, text


def _leaves(value: Any, place: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    if not isinstance(value, dict | list):
        yield place, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(part, (*place, key))


def _mappings(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entries that are mappings. Wrong ones are left to the cluster, which checks the whole study."""
    for name, found in value.items() if isinstance(value, dict) else ():
        if isinstance(found, dict):
            yield name, found


def _is_relative(path: object) -> bool:
    return isinstance(path, str) and bool(path) and not path.startswith(("/", "~"))


def _checked(document: Document, place: KeyPath, text: str, folder: Path) -> str:
    found = os.path.normpath(text)
    where = f"{document.where(place)}: {dotted(place)}: found {text!r}"
    if found == ".." or found.startswith("../"):
        raise ConfigError(
            f"{where}, which lies outside of {folder}, the study's folder, and only that goes up: move it there, or write the absolute "
            "path "
            "that it has on the cluster"
        )
    if not os.path.lexists(folder / found):
        raise ConfigError(f"{where}, and {folder / found} is not there; what is on the cluster has an absolute path")
    return found


def _tops(paths: list[str]) -> list[str]:
    """Return the paths that lie in no other of them."""
    unique = sorted(set(paths))
    if "." in unique:
        return ["."]
    return [path for path in unique if not any(path.startswith(f"{other}/") for other in unique)]


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        program_folder.copy(source, program_folder.look_at(source, executed=False).digest, target)
    elif source.is_file() and not source.is_symlink():
        if source.stat().st_size > program_folder.MAX_BYTES:
            raise ConfigError(
                f"{source} has {source.stat().st_size} bytes, and {program_folder.MAX_BYTES} may go up: {program_folder.ADVICE}"
            )
        shutil.copy(source, target)
    else:
        raise ConfigError(f"{source} is a link, or no file: only files and folders go up")
