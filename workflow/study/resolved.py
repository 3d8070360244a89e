"""study.json: the resolved study beside its results. Supervisor and tables read it; neither needs YAML or pydantic for that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypedDict

from base.errors import RecordError
from base.foreign import text
from base.jsonfile import read_json
from base.typed import FromOne, Like, Name, read_as
from workflow.study.cell import Cell, Run, RunLimits, datasets_of
from workflow.study.paths import STUDY_FILE
from workflow.study.site import Site

if TYPE_CHECKING:
    from workflow.study.study import Study

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
    """study.json, as it is read."""

    study: Name
    baseline: Mapping[str, Any]
    limits: RunLimits
    site: Site
    cells: tuple[Cell, ...]
    repeats: FromOne
    runs: tuple[RunEntry, ...]
    history: tuple[Annotated[dict[str, Any], Like(_Version)], ...]
    datasets: Mapping[str, Name] = field(default_factory=dict)
    """The name of the directory in which each dataset is built; an earlier version left them out."""

    def __post_init__(self) -> None:
        cells = {cell.cell_id for cell in self.cells}
        for number, run in enumerate(self.runs):
            if run.cell_id not in cells:
                raise ValueError(f"runs[{number}].cell_id: {run.cell_id!r} is none of its cells")


_LISTS: Final = ("cells", "runs", "history")


def resolved_study(study: Study) -> dict[str, Any]:
    """The content of study.json, without its history."""
    return {
        "schema": SCHEMA,
        "study": study.name,
        "baseline": dict(study.baseline),
        "limits": {"walltime_s": study.limits.walltime_s, "gpu_hours": study.limits.gpu_hours, "init_s": study.limits.init_s},
        "site": study.site.to_json(),
        "datasets": {name: study.build_dir(name).name for name in datasets_of(study.cells)},
        "cells": [cell.to_json() for cell in study.cells],
        "repeats": study.repeats,
        "runs": [{"run_id": run.run_id, "cell_id": run.cell.cell_id, "repeat": run.repeat} for run in study.runs],
    }


def read_resolved(results_dir: Path) -> ResolvedStudy:
    """study.json of a study's results. Raises RecordError when it is missing, torn or of another schema."""
    path = results_dir / STUDY_FILE
    return parse_resolved(read_json(path), path)


def parse_resolved(value: Any, path: Path) -> ResolvedStudy:
    """`value`, which came from `path`, where it is the content of a study.json. Raises RecordError."""
    found = value.get("schema") if isinstance(value, dict) else None
    if found != SCHEMA:
        raise RecordError(f"{path}: schema: found {text(found, 80)}, this version of Slipway reads {SCHEMA!r}")
    return read_as(ResolvedStudy, value, path, advice="it was edited, or is of another version of Slipway: `slipway run` writes it anew")


def find_run(study: ResolvedStudy, run_id: str) -> Run:
    """The run of that name. Raises RecordError when the current study has none."""
    for entry in study.runs:
        if entry.run_id == run_id:
            return Run(cell=next(cell for cell in study.cells if cell.cell_id == entry.cell_id), repeat=entry.repeat)
    raise RecordError(f"the study {study.study!r} has no run {run_id!r}; `slipway status` lists its runs")


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
