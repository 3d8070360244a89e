"""Which results a run has on storage, and its record.json, which is that of the newest. The functions are
for the holder of the run's lease and touch network storage: call them in a child with a time limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from base.errors import RecordError, StorageError
from base.jsonfile import read_content
from base.refusals import STORAGE_FAILS
from base.seal import publish_checked, read_sealed
from workflow.run.record.attempts import MAX_BYTES
from workflow.run.record.model import NotBelieved
from workflow.run.record.reading import record_of

RECORD: Final = "record.json"
ENDED: Final = "ended.json"
"""Of a result that storage did not take when it was made: see late_record.py."""


class Result(NamedTuple):
    """A result: its number among the run's results, its attempt, and how it ended."""

    number: int
    attempt: int
    status: str


def attempt_numbers(run_dir: Path) -> list[int]:
    """Numbers of the attempts on storage, newest first, those that lost their lease and nodes' late parts included."""
    directory = run_dir / "attempts"
    if not directory.is_dir():
        return []
    found = [entry.name.split(".")[0] for entry in directory.iterdir() if not entry.name.startswith(".")]
    return sorted({int(name) for name in found if name.isdecimal() and int(name)}, reverse=True)


def refuse_failing_storage(error: RecordError) -> None:
    """Raise StorageError where a file is not read since storage fails: a result is there perhaps, and must not be made again."""
    if isinstance(error.__cause__, OSError) and error.__cause__.errno in STORAGE_FAILS:
        raise StorageError(f"{error}; it is not known whether there is a result: try again, or see to the storage") from error


def records(run_dir: Path, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The records of these attempts; one that is missing, torn or changed is passed over. Raises StorageError."""
    for number in numbers:
        path = run_dir / "attempts" / str(number) / RECORD
        try:
            if path.is_file():
                yield read_sealed(path)
        except RecordError as error:
            refuse_failing_storage(error)


def results_of(run_dir: Path, study: str | None = None) -> list[Result]:
    """All results, newest attempt first; the published one too, whose attempt's directory somebody may have removed. A record that its
    reader does not believe is none, nor is one of another study than `study`. Raises StorageError."""
    own = (_believed(run_dir, attempt, study)[1] for attempt in attempt_numbers(run_dir))
    found = {result.attempt: result for result in own if result is not None}
    published = published_result(run_dir, study)
    if published is not None:
        found.setdefault(published.attempt, published)
    return [found[attempt] for attempt in sorted(found, reverse=True)]


def published_result(run_dir: Path, study: str | None = None) -> Result | None:
    """What the run's record.json says; None where it is missing or not believed. Raises StorageError."""
    return _believed(run_dir, study=study)[1]


def publish_newest(run_dir: Path, results: Sequence[Result]) -> bool:
    """Make record.json, to the byte, the record of the newest of `results`, unless it is or that attempt's own copy is gone; whether
    something was written. Raises PushError, StorageError."""
    content, result = _believed(run_dir, results[0].attempt) if results else (b"", None)
    if result is None or content == _believed(run_dir)[0]:
        return False
    publish_checked(run_dir / RECORD, content)
    return True


def _believed(run_dir: Path, attempt: int | None = None, study: str | None = None) -> tuple[bytes, Result | None]:
    """The bytes of an attempt's record, None: of the published one, and the result that it is; None where it is missing, prevented, or
    not believed by the reader of the tables. Raises StorageError."""
    path = run_dir / RECORD if attempt is None else run_dir / "attempts" / str(attempt) / RECORD
    try:
        content = read_content(path, max_bytes=MAX_BYTES)
        record = record_of(content, run_dir.name, attempt, study)
    except RecordError as error:
        refuse_failing_storage(error)
        return b"", None
    except NotBelieved:
        return b"", None
    if record.result_number is None:
        return content, None
    return content, Result(number=record.result_number, attempt=record.attempt, status=record.status)
