"""`framework.yaml` in the folder of a program of the study: keys that then need not stand in the study file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from base.errors import ConfigError
from base.userpath import absolute_path
from workflow.study.explain import Fault, fault_error
from workflow.study.loader import Document, read_document
from workflow.study.places import Place

FILE: Final = "framework.yaml"
OF_OURS: Final = ("name", "python_version", "containers_only", "own_order", "missing", "facts")
"""Keys of the frameworks that Slipway brings along, which tell how they are installed, and what is known of them."""


def with_program_files(document: Document) -> Document:
    """The study with the keys of the files in the folders of its programs. Raises ConfigError: a file that cannot be read, a key that
    stands in both, or that is none of a program."""
    programs = document.value.get("programs")
    found = dict(_files(programs, Path(os.path.abspath(document.path)).parent)) if isinstance(programs, dict) else {}
    for name, file in found.items():
        document = _merged(document, name, _with_renderings(file))
    return document


def _files(programs: Mapping[str, Any], study_folder: Path) -> Iterator[tuple[str, Document]]:
    """A folder that is none is somebody else's matter."""
    for name, program in programs.items():
        folder = program.get("folder") if isinstance(program, dict) else None
        if not isinstance(folder, str) or not folder:
            continue
        try:
            path = absolute_path(folder, study_folder) / FILE
        except ValueError:
            continue
        if os.path.lexists(path):
            yield name, read_document(path, "program")


def _with_renderings(file: Document) -> Document:
    """With `env_from` instead of a list as `env`, which is what a framework.yaml of Slipway's own calls it."""
    if not isinstance(file.value.get("env"), list):
        return file
    if "env_from" in file.value:
        raise ConfigError(f"{file.where(('env',))}: env: found a list, which is env_from, and env_from beside it; valid: one of the two")
    lines = {("env_from", *place[1:]) if place[:1] == ("env",) else place: line for place, line in file.lines.items()}
    value = {"env_from" if key == "env" else key: inner for key, inner in file.value.items()}
    return replace(file, value=value, lines=lines)


def _merged(document: Document, name: str, file: Document) -> Document:
    place: Place = ("programs", name)
    own = document.value["programs"][name]
    also = {key: f"{document.where((*place, key))}: programs.{name}.{key}" for key in own}
    faults = [Fault(place=(key,), message=words) for key in file.value if (words := _wrong_key(key, also.get(key)))]
    if faults:
        raise fault_error(file, faults)
    programs = {**document.value["programs"], name: {**own, **file.value}}
    return replace(
        document,
        value={**document.value, "programs": programs},
        lines=document.lines | {(*place, *inner): line for inner, line in file.lines.items()},
        files=document.files | {(*place, key): file.path for key in file.value},
    )


def _wrong_key(key: str, also: str | None) -> str | None:
    if key == "folder":
        return "this file lies in the folder; valid: folder in the study file"
    if key in OF_OURS:
        return f"this is a key of Slipway's own frameworks, which it installs and tells of; a program of a study has no {key}: leave it out"
    return f"found here and in {also}; valid: one of the two" if also else None
