"""study.json: the resolved study beside its results. Supervisor and tables read it; neither needs YAML or pydantic for that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypedDict

from base.errors import RecordError
from base.foreign import text
from base.jsonfile import canonical_json, json_text, read_content, read_json
from base.publish import publish, publish_new
from base.typed import FromOne, Like, Name, Seconds, SomeSeconds, read_as
from workflow.study.cell import Cell, Run
from workflow.study.origin import kept_of, origin_of, refuse_other_file
from workflow.study.paths import STUDY_FILE, STUDY_LINE, STUDY_SOURCE
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


def publish_resolved(study: Study, now: datetime | None = None, *, adopt: bool = False, runs: bool = True) -> bool:
    """publish_content() of this study; `runs`: as in origin_of()."""
    return publish_content(study.results_dir, resolved_study(study), study.text, origin_of(study, adopt, runs), now)


def publish_content(
    results_dir: Path | str, content: Mapping[str, Any], typed: str, origin: Mapping[str, Any], now: datetime | None = None
) -> bool:
    """Write study.json if its content, its owner or the owner's file changed, be it a comment, adding one line to its history; False when
    it says the same already. Beside it, the owner's study file as it was typed. `origin`: see origin_of().

    Raises OSError when storage does not let us; ConfigError when the results are those of another file, unless these are to be adopted;
    RecordError when an unreadable study.json is in the way.
    """
    directory = Path(results_dir)
    target = directory / STUDY_FILE
    history: list[dict[str, str]] = list(read_resolved(directory)["history"]) if target.exists() else []
    known, digest = len(history), hashlib.sha256(canonical_json(content)).hexdigest()
    time = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    while True:
        version = {"sha256": digest, **kept_of(origin, history)}
        if history and all(history[-1].get(key) == version.get(key) for key in ("sha256", "path", "file_sha256")):
            break
        refuse_other_file(directory, origin, history)
        directory.mkdir(parents=True, exist_ok=True)
        history.append(_claimed(directory, len(history) + 1, {**version, "time": time}))
    if changed := len(history) > known:
        publish(target, _text({**content, "history": history}))
    if version.get("file_sha256", origin["file_sha256"]) == origin["file_sha256"]:  # a copy that owns nothing leaves the owner's file
        _publish_source(directory / STUDY_SOURCE, typed.encode())
    return changed


def _claimed(directory: Path, number: int, line: dict[str, str]) -> dict[str, str]:
    """The line of the history of that number: `line`, unless another process has written one. Each is a file that is made once and stays,
    so that of two that begin at the same moment the second sees whose the results are, though study.json does not say it yet."""
    path = directory / STUDY_LINE.format(number=number)
    if publish_new(path, json_text(line)):
        return line
    found = read_as(_Version, read_json(path), path)
    return {key: str(value) for key, value in found.items()}


def _publish_source(target: Path, typed: bytes) -> None:
    try:
        unchanged = read_content(target, max_bytes=len(typed)) == typed
    except RecordError:
        unchanged = False  # it is missing, longer, or no file
    if not unchanged:
        publish(target, typed)


def read_resolved(results_dir: Path) -> dict[str, Any]:
    """The content of study.json, checked; its site has all keys. Raises RecordError when it is missing, torn or of another schema."""
    path = results_dir / STUDY_FILE
    value = read_json(path)
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


def _text(value: Mapping[str, Any]) -> bytes:
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
