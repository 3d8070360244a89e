"""Look at what storage has of a study: in an interpreter of its own (base/calls.py), for which this module imports little."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from base import errors, jsonfile
from workflow.report.files import RECORDS_FILE
from workflow.run.record.reading import record_at
from workflow.study.paths import STUDY_FILE
from workflow.study.publishing import refuse_unless_owner


class PublishedResult(TypedDict):
    """How a run ended whose record is published, and the number of that result."""

    status: str
    result_number: int


class StorageView(TypedDict):
    """The results of the runs, the datasets that are built, and when outdated tables were made."""

    results: dict[str, PublishedResult]
    built: list[str]
    outdated: int | None


def look_at_storage(
    results_dir: str, run_ids: Sequence[str], manifests: Sequence[str], origin: Mapping[str, object], digest: str | None
) -> StorageView:
    """Look at the results, at the dataset files `manifests`, and at the tables if `digest` is given.

    Raises ConfigError when the results are those of another study file.
    """
    refuse_unless_owner(results_dir, origin)
    made = None if digest is None else outdated(results_dir, digest)
    return {"results": results_in(results_dir, run_ids), "built": [path for path in manifests if Path(path).exists()], "outdated": made}


def outdated(results_dir: str, digest: str) -> int | None:
    """Return when records.parquet was made (ns) if it is of another study than that of `digest`, else None.

    `digest` is the beginning of a SHA-256. The tables are of the study.json that is older than they are; one that is newer was written by a
    start whose tables were never made.
    """
    try:
        made = Path(results_dir, RECORDS_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return None
    study = Path(results_dir, STUDY_FILE)
    try:
        history = jsonfile.read_json(study)["history"]
        current = str(history[-1]["sha256"]).startswith(digest) and study.stat().st_mtime_ns <= made
    except (errors.RecordError, LookupError, TypeError):
        current = False  # the start writes study.json anew
    return None if current else made


def results_in(results_dir: str, run_ids: Sequence[str]) -> dict[str, PublishedResult]:
    """Return the results of those runs that have a published record. It is called in a child with a time limit."""
    runs = Path(results_dir, "runs")
    there = {entry.name for entry in runs.iterdir()} if runs.is_dir() else set()
    paths = {run_id: runs / run_id / "record.json" for run_id in run_ids if run_id in there}
    study = Path(results_dir).name
    return {run_id: result_at(path, study) for run_id, path in paths.items() if path.exists()}


def result_at(path: Path, study: str | None = None) -> PublishedResult:
    """Return what a published record says.

    A record that is not believed stops nobody: the tables show it, and `retry=failed` asks for any result: that of the attempt's own copy,
    where it can be read, or a new one.
    """
    try:
        record, _ = record_at(path, path.parent.name, study=study)
        if record.result_number is not None:  # else it is of a prevented attempt
            return {"status": record.status, "result_number": record.result_number}
    except errors.RecordError:
        pass
    return {"status": "unreadable", "result_number": 0}
