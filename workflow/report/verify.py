"""Whether the pushed files of the runs are what their records say: sizes and hashes, read back from storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from base.errors import RecordError
from base.jsonfile import read_json
from workflow.report.collect import Collection

BLOCK = 4 << 20


def damaged_files(collection: Collection) -> Iterator[str]:
    """One sentence for every file of a run that is missing or differs from its record. Reads every byte of the attempts that count."""
    roots = {source.label: Path(source.path, "runs") for source in collection.sources}
    rows = collection.frame.filter(pl.col("attempt").is_not_null()).select("source", "run_id", "record", "attempt")
    for source, run_id, record, attempt in rows.iter_rows():
        directory = roots[source] / run_id / "attempts" / str(attempt)
        try:
            files = read_json(roots[source] / record)["files"]
            for file in files:
                problem = _problem(directory, file)
                if problem:
                    yield f"{directory / str(file['path'])}: {problem}"
        except (RecordError, KeyError, TypeError) as error:
            yield f"{roots[source] / record}: its list of files cannot be read: {error}"


def _problem(directory: Path, file: dict[str, Any]) -> str | None:
    from blake3 import blake3

    path = directory / file["path"]
    if not path.resolve().is_relative_to(directory.resolve()):
        return "lies outside the attempt's directory"
    try:
        size = path.stat().st_size
        if size != file["bytes"]:
            return f"{size} bytes, the record says {file['bytes']}"
        hasher = blake3()
        with path.open("rb") as content:
            while block := content.read(BLOCK):
                hasher.update(block)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if hasher.hexdigest() == file["blake3"] else "its bytes are not those that were pushed (blake3 differs)"
