"""The cells and runs of study.json, compared with what lies on storage: the study file, and the cell of each record. For `verify`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from base.errors import RecordError
from base.jsonfile import canonical_json, read_content, read_json
from base.units import some
from workflow.report.reproduce import MAX_BYTES
from workflow.report.sources import StudyFile, read_study
from workflow.study.origin import last_version
from workflow.study.paths import STUDY_FILE, STUDY_SOURCE
from workflow.study.programs import identity

CELL_FILE: Final = "cell.json"
MOST_KEYS: Final = 6


@dataclass(frozen=True, kw_only=True)
class StudyRuns:
    """The study's name, its cells by id, and of each run the cell and its number of repeat; nothing where there is no study.json."""

    study: str | None = None
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    runs: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def read_study_runs(results: Path) -> tuple[StudyRuns, list[str]]:
    """What study.json says, and what is to be said of it and of the study file beside it."""
    try:
        study = read_study(results)
    except RecordError as error:
        return StudyRuns(), [str(error)]
    if study is None:
        return StudyRuns(), [
            f"{results / STUDY_FILE}: it is missing, so nobody knows which cells and runs were asked for, and which of these are gone; put "
            "it back, or let `slipway run STUDY` write it anew, before any tables are made"
        ]
    findings = []
    if (found := file_changed(results, study)) is not None:
        findings.append(f"{results / STUDY_SOURCE}: {found}")
    if not _is_as_written(results / STUDY_FILE):
        findings.append(f"{results / STUDY_FILE}: it was changed: its content is not that of the last line of its history")
    return StudyRuns(study=study.study, cells=study.cells, runs=study.runs), findings


def _is_as_written(path: Path) -> bool:
    """Whether the content, limits and site too, has the digest in the last line of its history, where that is told."""
    content = dict(read_json(path))
    digest = last_version(content.pop("history", None)).get("sha256")
    return digest is None or hashlib.sha256(canonical_json(content)).hexdigest() == digest


def file_changed(results: Path, study: StudyFile) -> str | None:
    """Why the study file in `results` is not the one of the last run, if so; None too where an older version left no digest of it."""
    if study.file_sha256 is None:
        return None
    try:
        content = read_content(results / STUDY_SOURCE, max_bytes=MAX_BYTES)
    except RecordError:
        return "it is missing, or cannot be read: nobody can see what was typed"
    there = hashlib.sha256(content).hexdigest()
    if there == study.file_sha256:
        return None
    return f"it was changed since it ran (its sha256 is {there[:12]}, that of the last run's file {study.file_sha256[:12]})"


def differences_from_study(record: Mapping[str, Any], asked: StudyRuns) -> Iterator[str]:
    """Where the record says otherwise than the study's own cell of its run: tables believe no such record. A key that one of the two does
    not know was not asked then."""
    run = asked.runs.get(record["run_id"])
    if run is None:
        return
    if record.get("study") not in (None, asked.study):
        yield f"it is of the study {record['study']!r}, and study.json is that of {asked.study!r}"
    if keys := _differing(_identifying(record["cell"]), _identifying(asked.cells[run[0]])):
        yield f"its cell differs from the study's cell of the same run: {keys}"


def differences_from_cell_file(record: Mapping[str, Any], attempt: Path) -> Iterator[str]:
    """Where the record says otherwise than cell.json beside it, which the program was given. Device and threads in it are those that the
    allocation has decided."""
    path = attempt / CELL_FILE
    if not path.exists():  # of an older version
        return
    found = read_json(path)
    if not isinstance(found, dict):
        yield f"{CELL_FILE} beside it holds no cell"
        return
    own = {
        **record["cell"],
        **{key: record[key] for key in ("run_id", "repeat", "attempt", "device")},
        "threads": record["threads_per_rank"],
    }
    if keys := _differing(own, found):
        yield f"{CELL_FILE} beside it, which the program was given, says otherwise: {keys}"


def _identifying(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """A cell without the image, interpreter and places of its program, which may change between its runs: the record has each run's own."""
    program = cell.get("program")
    return {**cell, "program": identity(program)} if isinstance(program, Mapping) else cell


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return some([key for key in sorted(one.keys() & other.keys()) if one[key] != other[key]], MOST_KEYS)
