"""Whether the tables of a study belong to the study as it is now. Imports little, because it runs in a fresh interpreter."""

from __future__ import annotations

from pathlib import Path

from base.errors import RecordError
from base.jsonfile import read_json
from workflow.report.files import RECORDS_FILE
from workflow.study.paths import STUDY_FILE


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
