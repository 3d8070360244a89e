"""List the results that a run has on storage, and publish its record.json, which is that of the newest.

The functions are for the holder of the run's lease and touch network storage: call them in a child with a time limit.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from base import errors, seal, system
from cluster.types import Allocation
from workflow.run.record import events, outcome, progress_line, resume
from workflow.run.record.model import RunRecord
from workflow.run.record.reading import names, record_at
from workflow.study.cell import Cell, RunLimits
from workflow.study.paths import supervisor_log
from workflow.study.site import Site

RECORD: Final = "record.json"
ENDED: Final = "ended.json"
"""The name of the note of a result that storage did not take when it was made: storage/attempt.py."""


class Result(NamedTuple):
    """A result: its number among the run's results, its attempt, and how it ended."""

    number: int
    attempt: int
    status: str


def attempt_numbers(run_dir: Path) -> list[int]:
    """List the numbers of the attempts on storage, newest first, those that lost their lease and nodes' late parts included."""
    directory = run_dir / "attempts"
    if not directory.is_dir():
        return []
    found = [entry.name.split(".")[0] for entry in directory.iterdir() if not entry.name.startswith(".")]
    return sorted({int(name) for name in found if name.isdecimal() and int(name)}, reverse=True)


def refuse_failing_storage(error: errors.RecordError) -> None:
    """Raise StorageError where a file is not read since storage fails: a result is there perhaps, and must not be made again."""
    if isinstance(error.__cause__, OSError) and error.__cause__.errno in system.STORAGE_FAILS:
        raise errors.StorageError(f"{error}; it is not known whether there is a result: try again, or see to the storage") from error


def records(run_dir: Path, numbers: Sequence[int], study: str | None = None) -> Iterator[RunRecord]:
    """Yield the records of these attempts that are believed. Raises StorageError."""
    for number in numbers:
        record, _ = _believed(run_dir, number, study)
        if record is not None:
            yield record


def results_of(run_dir: Path, study: str | None = None) -> list[Result]:
    """List all results, newest attempt first; the published one too, whose attempt's directory somebody may have removed. A record that its
    reader does not believe is none, nor is one of another study than `study`. Raises StorageError."""
    published, _ = _believed(run_dir, study=study)
    own = records(run_dir, attempt_numbers(run_dir), study)
    every = (*([] if published is None else [published]), *own)
    found = {one.attempt: Result(one.result_number, one.attempt, one.status) for one in every if one.result_number is not None}
    return [found[attempt] for attempt in sorted(found, reverse=True)]


def publish_newest(run_dir: Path, results: Sequence[Result]) -> bool:
    """Make record.json a copy of the record of the newest of `results`, unless it is or that record is gone. Return True if written. Raises
    PushError, StorageError."""
    record, content = _believed(run_dir, results[0].attempt) if results else (None, b"")
    if record is None or record.result_number is None or content == _believed(run_dir)[1]:
        return False
    seal.publish_checked(run_dir / RECORD, content)
    return True


def _believed(run_dir: Path, attempt: int | None = None, study: str | None = None) -> tuple[RunRecord | None, bytes]:
    """Return an attempt's record (None: the published one) and its bytes; None and none if it is missing, torn, changed, or of another run
    or study: the tables do not believe it. Raises StorageError."""
    path = run_dir / RECORD if attempt is None else run_dir / "attempts" / str(attempt) / RECORD
    try:
        return record_at(path, run_dir.name, attempt, study)
    except errors.RecordError as error:
        refuse_failing_storage(error)
        return None, b""


# The value that all later steps of a run share, once its lease is held.


class PreparedRun(Struct, frozen=True, kw_only=True):
    """A run whose lease is held, and its next attempt."""

    study: str
    run_id: str
    cell: Cell
    dataset_build: str
    """The name of the directory in which its dataset is built."""
    repeat: int
    site: Site
    limits: RunLimits
    allocation: Allocation
    """What the scheduler granted; of a job that runs share, all its nodes."""
    attempt: int
    token: str
    """The token of the lease."""
    tag: str
    """Names the attempt on this cluster."""
    result_number: int
    """The number of the result that the attempt may become."""
    run_dir: str
    resumable: tuple[resume.EarlierAttempt, ...]
    """The earlier attempts from which this one could resume, the best first."""
    done: Result | None
    """The result that was asked for, where it is there already: then nothing is to be trained, and the lease is not held any more."""


# The requested result of a run: any, or one that is later than the failed result that somebody saw.
#
# `RUN` asks for any, `RUN.after-3` for one after its third. Both stay true once they are: a start that comes too late, or twice, finds
# what was asked for and trains nothing.


_REQUESTED: Final = re.compile(r"(?P<run>.*-r\d+?)(\.after-(?P<after>[1-9]\d*))?")


def requested_result(run_id: str, after: int = 0) -> str:
    """Return the text for a result of `run_id` later than number `after`, 0 for any."""
    return f"{run_id}.after-{after}" if after else run_id


def parse_requested(text: str) -> tuple[str, int]:
    """Return the run id, and the number that the result must be later than. Other text is a run id that nobody will find."""
    found = _REQUESTED.fullmatch(text)
    return (found["run"], int(found["after"] or 0)) if found else (text, 0)


# Nodes that prevented earlier attempts of a run. Its next attempt avoids them.


NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}")
MAX_ATTEMPTS: Final = 4
MAX_NODES: Final = 16
"""The most nodes that a job avoids: if more of them fail, the cause is hardly the nodes, and the job would wait for ever."""
FORGOTTEN_S: Final = 86_400.0
"""How long a failed node is avoided: after that it may have been repaired."""


def nodes_to_avoid(run_dir: Path, now: float) -> tuple[str, ...]:
    """Name the nodes that prevented attempts, those of the newest attempt first. `now`: unix seconds. Raises StorageError."""
    return avoided(records(run_dir, attempt_numbers(run_dir)[:MAX_ATTEMPTS]), now)


def avoided(found: Iterable[RunRecord], now: float) -> tuple[str, ...]:
    """Name the nodes that failed by `found`, the run's records, newest first; those before its last result do not count."""
    nodes: dict[str, None] = {}
    for record in found:
        if record.kind == outcome.RESULT:
            break
        try:
            age_s = now - datetime.fromisoformat(record.time.end).timestamp()
        except ValueError:  # of a month 13
            continue
        if age_s < FORGOTTEN_S:
            nodes.update(dict.fromkeys(filter(NODE.fullmatch, record.failed_nodes)))
    return tuple(nodes)[:MAX_NODES]


# Results that wait on the nodes, as the logs of their supervisors report.


def waiting_runs(results: Path | str, runs: Iterable[str]) -> dict[str, str]:
    """Return the reasons of those `runs` without a record whose result waits. Reads the ends of their logs."""
    logs = {parse_requested(name.removesuffix(".log"))[0] for name in names(f"{results}/logs")}
    found = {}
    for run_id in runs:
        log = supervisor_log(Path(results), run_id) if run_id in logs else None
        error = None if log is None else events.last_error(log)
        reason = None if error is None else progress_line.waiting_reason(error)
        if reason is not None:
            found[run_id] = reason
    return found
