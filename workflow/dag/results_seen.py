"""What lies on storage of a study: whose its results are, which runs have one, and whether its tables are of it: what Snakemake decides by.
Imports little, because an interpreter of its own runs it (base/apart.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from base.errors import RecordError
from base.jsonfile import read_content, read_json
from workflow.report.files import RECORDS_FILE
from workflow.run.record.attempts import MAX_BYTES
from workflow.run.record.model import NotBelieved
from workflow.run.record.reading import record_of
from workflow.study.origin import refuse_unless_owner
from workflow.study.paths import STUDY_FILE


class Seen(TypedDict):
    """results_in(), and outdated() of the tables."""

    results: dict[str, dict[str, Any]]
    outdated: int | None


def look(results_dir: str, run_ids: Sequence[str], origin: Mapping[str, Any], digest: str | None) -> Seen:
    """All of it; tables where a `digest` is given. Raises ConfigError when the results are those of another study file."""
    refuse_unless_owner(results_dir, origin)
    made = None if digest is None else outdated(results_dir, digest)
    return {"results": results_in(results_dir, run_ids), "outdated": made}


def outdated(results_dir: str, digest: str) -> int | None:
    """When records.parquet was made (ns), if of another study than that of `digest`, the beginning of its SHA-256; else None.

    It is of the study.json that is older than it; one that is newer was written by a start whose tables were never made.
    """
    try:
        made = Path(results_dir, RECORDS_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return None
    study = Path(results_dir, STUDY_FILE)
    try:
        history = read_json(study)["history"]
        current = str(history[-1]["sha256"]).startswith(digest) and study.stat().st_mtime_ns <= made
    except (RecordError, LookupError, TypeError):
        current = False  # the start writes study.json anew
    return None if current else made


def results_in(results_dir: str, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """result_at() of those runs that have a published record. In a child with a time limit."""
    runs = Path(results_dir, "runs")
    there = {entry.name for entry in runs.iterdir()} if runs.is_dir() else set()
    paths = {run_id: runs / run_id / "record.json" for run_id in run_ids if run_id in there}
    study = Path(results_dir).name
    return {run_id: result_at(path, study) for run_id, path in paths.items() if path.exists()}


def result_at(path: Path, study: str | None = None) -> dict[str, Any]:
    """Status and number of a published record; one that is not believed stops nobody: the tables show it, and `retry=failed` asks for any
    result: that of the attempt's own copy, where it can be read, or a new one."""
    try:
        record = record_of(read_content(path, max_bytes=MAX_BYTES), path.parent.name, study=study)
        if record.result_number is not None:  # else it is of a prevented attempt
            return {"status": record.status, "result_number": record.result_number}
    except (RecordError, NotBelieved):
        pass
    return {"status": "unreadable", "result_number": 0}
