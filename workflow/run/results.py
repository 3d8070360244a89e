"""Which results a run has on storage, and its record.json, which is that of the newest. The functions are for who holds the run's lease,
and touch network storage: call them in a child with a time limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from base.errors import RecordError
from base.seal import publish_checked, read_sealed, read_sealed_bytes
from workflow.run.outcome import RESULT

RECORD: Final = "record.json"
ENDED: Final = "ended.json"
"""Of a result that storage did not take when it was made: see ended.py."""


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


def records(run_dir: Path, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The records of these attempts; one that is missing, torn or changed is passed over."""
    for number in numbers:
        path = run_dir / "attempts" / str(number) / RECORD
        try:
            if path.is_file():
                yield read_sealed(path)
        except RecordError:
            continue


def results_of(run_dir: Path) -> list[Result]:
    """All results, newest attempt first; the published one too, whose attempt's directory somebody may have removed."""
    found = {result.attempt: result for result in _readable(records(run_dir, attempt_numbers(run_dir)))}
    published = published_result(run_dir)
    if published is not None:
        found.setdefault(published.attempt, published)
    return [found[attempt] for attempt in sorted(found, reverse=True)]


def published_result(run_dir: Path) -> Result | None:
    """What the run's record.json says; None where it is missing, torn or changed."""
    try:
        return next(_readable([read_sealed(run_dir / RECORD)]), None)
    except RecordError:
        return None


def publish_newest(run_dir: Path, results: Sequence[Result]) -> bool:
    """Make record.json that of the newest of `results`, unless it is; whether something was written. Raises PushError, StorageError."""
    if not results or published_result(run_dir) == results[0]:
        return False
    publish_checked(run_dir / RECORD, read_sealed_bytes(run_dir / "attempts" / str(results[0].attempt) / RECORD))
    return True


def _readable(found: Iterator[dict[str, Any]] | Sequence[dict[str, Any]]) -> Iterator[Result]:
    for record in found:
        try:
            if record["kind"] == RESULT:
                yield Result(number=int(record["result_number"]), attempt=int(record["attempt"]), status=str(record["status"]))
        except (KeyError, TypeError, ValueError):
            continue
