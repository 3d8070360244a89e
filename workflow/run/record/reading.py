"""Find and read the record of a run, checked."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from base import jsonfile
from base.errors import RecordError
from base.sanitize import quoted
from base.seal import seal_state
from workflow.run.record import outcome
from workflow.run.record.model import OwnKeys, RunRecord, StepSeconds

# The attempt that counts: the latest result, else the latest prevented one.
#
# A run's directory holds `record.json`, the published result, and `attempts/<n>/record.json`, every attempt. The published one is the
# answer unless newer attempts lie beside it; where there is none (its supervisor died before it was published) the attempts are asked.


T = TypeVar("T")
MAX_BYTES: Final = 64 << 20
"""A record is some kB. Of a thousand nodes, each with its load and the files that it may push, it is some ten MB."""
MAX_VALUES: Final = 2 << 20
"""The most commas and opening brackets of a record, for each of which a value is made: `[],` becomes 64 bytes, also if a type asks for it.
A record of a thousand nodes, with a hundred files and some hundred cores each, has less than a million."""
ASIDE: Final = re.compile(r"([1-9][0-9]{0,8})\.lost-[^/]+")
"""The directory of an attempt beside another one that has its number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRecord:
    """The record that counts: its path below runs/, its bytes (None: there is no record), the attempts' numbers, the newest first, and the
    directories of attempts that lie beside, since another one had their number when they were delivered."""

    run_id: str
    path: str | None = None
    content: bytes | None = None
    attempts: tuple[int, ...] = ()
    aside: tuple[str, ...] = ()


def find_record(runs_dir: str, run_id: str) -> FoundRecord:
    """Find the record of the attempt that counts. A newest one that is torn counts too, since nobody knows what it said."""
    there = names(f"{runs_dir}/{run_id}/attempts")
    numbers = sorted((int(name) for name in there if name.isascii() and name.isdecimal()), reverse=True)
    aside = tuple([name for name in there if ASIDE.fullmatch(name)])
    path: str | None = f"{run_id}/record.json"
    content = _read(f"{runs_dir}/{path}")
    if content is None or len(numbers) > 1:
        path, content = _latest(runs_dir, run_id, numbers, content)
    return FoundRecord(run_id=run_id, path=path, content=content, attempts=tuple(numbers), aside=aside)


def _latest(runs_dir: str, run_id: str, numbers: Sequence[int], published: bytes | None) -> tuple[str | None, bytes | None]:
    """Return path and bytes of the published record, or of a result that is newer; where neither is there, of the newest attempt."""
    best = (None, None) if published is None else (f"{run_id}/record.json", published)
    said = None if published is None else _head(published)
    if published is not None and said is None:
        return best
    for number in numbers:
        if said is not None and number <= said.attempt:
            break
        path = f"{run_id}/attempts/{number}/record.json"
        content = _read(f"{runs_dir}/{path}")
        if content is None:
            continue
        head = _head(content)
        if (head is None and best[1] is None) or (head is not None and head.kind == "result"):
            return path, content
        if head is not None and best[1] is None:
            best = path, content
    return best


class _Head(msgspec.Struct):
    attempt: int
    kind: str


def _head(content: bytes) -> _Head | None:
    """Return the attempt and the kind of a record, None if it cannot be read. Its reader checks whether it is believed.

    No other value is made, since its bytes may be anybody's.
    """
    try:
        return msgspec.json.decode(content, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _read(path: str) -> bytes | None:
    """Return the bytes of a file, None if it is missing. One that cannot be read, or is too large, gives none, which no record is."""
    try:
        return jsonfile.read_content(Path(path), max_bytes=MAX_BYTES)
    except RecordError as error:
        return None if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError) else b""


def beside(runs_dir: str, found: FoundRecord, counted: int | None) -> list[tuple[str, RunRecord]]:
    """Return the records of a run without the one that counts, each with its kind, or `aside` where another attempt has its number. Records
    that are not believed are left out."""
    others: list[tuple[str, RunRecord]] = []
    for name in (*(str(number) for number in found.attempts if number != counted), *found.aside):
        try:
            record, _ = record_at(Path(runs_dir, found.run_id, "attempts", name, "record.json"), found.run_id)
        except RecordError:
            continue
        if str(record.attempt) == name.partition(".")[0]:
            others.append(("aside" if name in found.aside else record.kind, record))
    return others


def names(directory: str) -> list[str]:
    """List the names in a directory; none if it does not exist."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def attempt_directories(attempts: Path) -> list[int]:
    """List the numbers of the attempts in that directory of a run, ascending, without those beside another attempt of their number."""
    return sorted(int(name) for name in names(str(attempts)) if name.isascii() and name.isdecimal())


_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)")


def record_at(path: Path, run_id: str, attempt: int | None = None, study: str | None = None) -> tuple[RunRecord, bytes]:
    """Read the record in a file, as `record_of` does. Return it and the file's bytes. Raises RecordError, which names the file."""
    content = jsonfile.read_content(path, max_bytes=MAX_BYTES)
    try:
        return record_of(content, run_id, attempt, study), content
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error


def read_record(content: bytes) -> RunRecord:
    """Return the record that a file's bytes are. Raises RecordError, which says why they are not believed."""
    _check_bytes(content)
    return decoded(content)


def decoded(content: bytes) -> RunRecord:
    """Return the record of a JSON text, whoever wrote it. Raises RecordError."""
    record = _decoded(content, RunRecord)
    _check(record)
    return record


def read_value(content: bytes) -> OwnKeys:
    """Return the plain JSON of a record, its seal checked. Raises RecordError."""
    _check_bytes(content)
    return _decoded(content, OwnKeys)


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise RecordError(_mismatch(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"it is no JSON: {error}") from error


def record_of(content: bytes, run_id: str, attempt: int | None = None, study: str | None = None) -> RunRecord:
    """Return the record in the bytes. Raises RecordError, also where it is of another run, or of another attempt than `attempt`, or of
    another study than `study`, whose cells may have the same runs: the tables believe none of those."""
    record = read_record(content)
    if record.run_id != run_id or (attempt is not None and record.attempt != attempt):
        raise RecordError(f"it says that it is of run {record.run_id}, attempt {record.attempt}")
    if run_id != f"{record.cell.cell_id}-r{record.repeat}":
        raise RecordError(f"its cell is {record.cell.cell_id}, repeat {record.repeat}, which is not its run")
    if study is not None and record.study not in (None, study):
        raise RecordError(f"it says that it is of the study {record.study}, and lies in the results of {study}")
    return record


def _check_bytes(content: bytes) -> None:
    """Refuse what is not what was written, and what has too many values to be parsed."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise RecordError(f"it has more than {MAX_VALUES} values, which no run has")
    if seal_state(content) == "broken":
        advice = "`slipway run STUDY --retry failed` takes the record of its attempt, or makes the run again"
        raise RecordError(f"it is not what was written: its seal does not fit; {advice}")
    if not content or content.isspace():
        raise RecordError(f"it is empty, cannot be read, or has more than {MAX_BYTES} bytes")


def _mismatch(reason: str) -> str:
    """Return where in the record what was expected, for a reason such as "Expected `float`, got `str` - at `$.performance.window_s`"."""
    words, _, path = reason.partition(" - at `$")
    where = path.strip(".`")
    return f"{where}: {words[0].lower()}{words[1:]}" if where else f"{words[0].lower()}{words[1:]}"


def _check(record: RunRecord) -> None:
    kind = "result" if outcome.TABLE[record.status] is None else outcome.PREVENTED
    if record.kind != kind or (record.result_number is None) != (kind == outcome.PREVENTED):
        raise RecordError(
            f"its status {record.status} needs kind {kind!r} {'without' if kind == outcome.PREVENTED else 'with'} a result_number, "
            f"found kind {record.kind!r} and {record.result_number}"
        )
    if record.status == "ok" and record.status_reason is not None:
        raise RecordError(f"its status is ok, and its status_reason is {quoted(record.status_reason)}")
    cell, world = record.cell, record.world_size
    if world != cell.world_size or cell.global_batch_size != cell.batch_size * world or len(record.nodes) != cell.nodes:
        raise RecordError(
            f"its numbers contradict: a cell of {cell.nodes} nodes x {cell.gpus_per_node} with batch {cell.batch_size} each and "
            f"{cell.global_batch_size} in all, {len(record.nodes)} nodes and world_size {world}"
        )
    start, end = _MOMENT.fullmatch(record.time.start), _MOMENT.fullmatch(record.time.end)
    if start is None or end is None or (start[2] == end[2] and start[1] > end[1]):
        raise RecordError(f"its time is from {quoted(record.time.start)} to {quoted(record.time.end)}")
    if record.performance is not None:
        _check_steps(record.performance.step_s, record.performance.window_s)


def _check_steps(steps: StepSeconds, window_s: float | None) -> None:
    if steps.p50 <= 0 or (window_s is not None and window_s <= 0):
        raise RecordError(f"its median step is {steps.p50} s, its window {window_s} s")
