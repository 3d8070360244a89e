"""study.json: the resolved study beside its results. Supervisor and tables read it; neither needs YAML or pydantic for that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypedDict

from base.errors import RecordError
from base.foreign import text
from base.jsonfile import read_json
from base.typed import FromOne, Like, Name, Seconds, SomeSeconds, read_as
from workflow.study.cell import Cell, Run
from workflow.study.paths import STUDY_FILE
from workflow.study.site import Site

if TYPE_CHECKING:
    from workflow.study.study import Study

SCHEMA: Final = "slipway.study/1"


class _Limits(TypedDict):
    walltime_s: SomeSeconds
    gpu_hours: NotRequired[Seconds | None]
    init_s: NotRequired[Seconds | None]


class _Run(TypedDict):
    run_id: Name
    cell_id: Name
    repeat: FromOne


class _Version(TypedDict):
    sha256: str
    time: str
    path: NotRequired[str]
    file_sha256: NotRequired[str]
    cells_sha256: NotRequired[str]


class StudyContent(TypedDict):
    """What must stand in study.json, and of which type."""

    study: Name
    baseline: dict[str, Any]
    limits: _Limits
    site: Annotated[dict[str, Any], Like(Site)]
    cells: list[Annotated[dict[str, Any], Like(Cell)]]
    repeats: FromOne
    runs: list[_Run]
    history: list[_Version]


_LISTS: Final = ("cells", "runs", "history")


def resolved_study(study: Study) -> dict[str, Any]:
    """The content of study.json, without its history."""
    return {
        "schema": SCHEMA,
        "study": study.name,
        "baseline": dict(study.baseline),
        "limits": {"walltime_s": study.limits.walltime_s, "gpu_hours": study.limits.gpu_hours, "init_s": study.limits.init_s},
        "site": study.site.to_json(),
        "cells": [cell.to_json() for cell in study.cells],
        "repeats": study.repeats,
        "runs": [{"run_id": run.run_id, "cell_id": run.cell.cell_id, "repeat": run.repeat} for run in study.runs],
    }


def read_resolved(results_dir: Path) -> dict[str, Any]:
    """The content of study.json, checked; its site has all keys. Raises RecordError when it is missing, torn or of another schema."""
    path = results_dir / STUDY_FILE
    return checked(read_json(path), path)


def checked(value: Any, path: Path) -> dict[str, Any]:
    """`value`, which came from `path`, where it is the content of a study.json. Raises RecordError."""
    found = value.get("schema") if isinstance(value, dict) else None
    if found != SCHEMA:
        raise RecordError(f"{path}: schema: found {text(found, 80)}, this version of Slipway reads {SCHEMA!r}")
    content = read_as(StudyContent, value, path, advice="it was edited, or is of another version of Slipway: `slipway run` writes it anew")
    cells = {cell["cell_id"] for cell in content["cells"]}
    for number, run in enumerate(content["runs"]):
        if run["cell_id"] not in cells:
            raise RecordError(f"{path}: runs[{number}].cell_id: {run['cell_id']!r} is none of its cells; it was edited")
    site = Site.from_json(content["site"]).to_json()
    return {**content, "site": {**content["site"], **site}}


def find_run(content: Mapping[str, Any], run_id: str) -> Run:
    """The run of that name. Raises RecordError when the current study has none."""
    for entry in content["runs"]:
        if entry["run_id"] == run_id:
            for cell in content["cells"]:
                if cell["cell_id"] == entry["cell_id"]:
                    return Run(cell=Cell.from_json(cell), repeat=entry["repeat"])
    raise RecordError(f"the study {content['study']!r} has no run {run_id!r}; `slipway status` lists its runs")


def text_of(value: Mapping[str, Any]) -> bytes:
    """One cell, run and history entry a line: readable with grep, and fast to write (an indented dump takes ten times as long)."""
    parts = []
    for key in sorted(value):
        entries = value[key]
        if key in _LISTS:
            lines = ",\n".join(f"  {_line(entry)}" for entry in entries)
            parts.append(f" {json.dumps(key)}: [\n{lines}\n ]" if lines else f" {json.dumps(key)}: []")
        else:
            parts.append(f" {json.dumps(key)}: {_line(entries)}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
