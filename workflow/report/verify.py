"""Whether what lies on storage is what was measured: every record, every file of every attempt, every number that events give."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from base.errors import RecordError
from base.jsonfile import read_content
from base.names import is_name
from base.seal import seal_state
from workflow.report.attempts import MAX_BYTES, names
from workflow.report.believing import record_of
from workflow.report.kinds import NotBelieved
from workflow.report.reading import read_value
from workflow.report.recompute import differences
from workflow.report.sources import read_study

BLOCK: Final = 4 << 20
READERS: Final = 4
MOST_RESULTS: Final = 10_000
RECORD: Final = "record.json"


@dataclass
class Verified:
    """What was looked at. `not_sealed`: records of a version that had no seals; `unread`: runs for which there was no time; `without`: runs
    of the study that have no record, since they were not begun, are not finished, or somebody has removed them."""

    runs: int = 0
    records: int = 0
    not_sealed: int = 0
    recomputed: int = 0
    files: int = 0
    bytes: int = 0
    unread: int = 0
    without: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, other: Verified) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def verify_runs(results: Path, until: float | None = None, seen: Callable[[int, int], None] | None = None) -> Verified:
    """Every run below `results`, several at once; `seen(done, in all)` after each. `until`: by the monotonic clock; then no run is begun.
    Reads every byte."""
    runs = sorted(name for name in names(str(results / "runs")) if is_name(name))
    total = _missing(results, runs)

    def one(run_id: str) -> Verified:
        return _run(results / "runs" / run_id) if until is None or time.monotonic() < until else Verified(unread=1)

    with ThreadPoolExecutor(READERS) as pool:
        for done, found in enumerate(pool.map(one, runs), 1):
            total.add(found)
            if seen is not None:
                seen(done, len(runs))
    return total


def _missing(results: Path, there: Sequence[str]) -> Verified:
    """Runs that study.json names and that have no directory; a finding where it cannot be read."""
    try:
        study = read_study(results)
    except RecordError as error:
        return Verified(findings=[str(error)])
    return Verified(without=len(study.runs.keys() - set(there)) if study else 0)


def _run(directory: Path) -> Verified:
    found = Verified(runs=1)
    places = (directory, directory / "attempts", *(directory / "attempts").glob("[1-9]*"))
    found.findings += [f"{place}: a link, and nobody of ours made one" for place in places if place.is_symlink()]
    if found.findings:
        return found
    contents: dict[int, bytes] = {}
    for number in sorted(int(name) for name in names(str(directory / "attempts")) if name.isascii() and name.isdecimal()):
        content = _believed(found, directory / "attempts" / str(number) / RECORD, directory.name, number)
        if content is not None:
            contents[number] = content
    records = {number: read_value(content, losses=True) for number, content in contents.items()}
    for number, record in records.items():
        found.findings += list(_attempt(found, directory / "attempts" / str(number), record, records))
    found.findings += _published(found, directory, contents, records)
    found.without += not found.records
    return found


def _published(found: Verified, directory: Path, contents: Mapping[int, bytes], records: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """The run's record and its attempts, one against the other. Results are counted from 1, so one that is gone is noticed; an attempt
    that was prevented, or whose supervisor was killed, may have left nothing. Who holds the lease publishes what is not published."""
    path = directory / RECORD
    results = {number: record["result_number"] for number, record in records.items() if record["kind"] == "result"}
    newest = max(results, default=None)
    if path.exists() or path.is_symlink():
        published = _believed(found, path, directory.name, None)
        if published is None:
            return
        if published not in contents.values():
            yield f"{path}: it is the record of no attempt of this run"
        elif newest is not None and published != contents[newest] and not (directory / "lease.json").exists():
            yield f"{path}: it is not that of attempt {newest}, the newest result"
    elif newest is not None and not (directory / "lease.json").exists():
        yield f"{path}: it is missing, and attempt {newest} is a result"
    known = set(results.values())
    if lost := [str(number) for number in range(1, min(max(known, default=1), MOST_RESULTS)) if number not in known]:
        yield f"{directory / 'attempts'}: of its results number {', '.join(lost[:10])} is missing"
    for number, record in records.items():
        earlier = record.get("resumed_from")
        if isinstance(earlier, dict) and earlier.get("attempt") not in records:
            yield f"{directory / 'attempts' / str(number)}: it went on from an attempt that is not there"


def _believed(found: Verified, path: Path, run_id: str, attempt: int | None) -> bytes | None:
    """The bytes of a record that its reader believes; else a finding."""
    found.records += 1
    try:
        if path.is_symlink():
            raise NotBelieved("it is a link, and nobody of ours made one")
        content = read_content(path, max_bytes=MAX_BYTES)
        record_of(content, run_id, attempt)
    except NotBelieved as error:
        found.findings.append(f"{path}: {error}")
        return None
    except RecordError as error:
        found.findings.append(str(error))
        return None
    found.not_sealed += seal_state(content) == "unsealed"
    return content


def _attempt(found: Verified, directory: Path, record: Mapping[str, Any], records: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """The files of an attempt, then its numbers, which are made of them."""
    try:
        listed = {str(file["path"]): (file["bytes"], file["blake3"]) for file in record["files"]}
        earlier = records.get(record["resumed_from"]["attempt"]) if record["resumed_from"] else None
    except (KeyError, TypeError, AttributeError) as error:
        yield f"{directory / RECORD}: its list of files cannot be read: {error}"
        return
    whole = True
    for sentence in _files(found, directory, listed):
        whole = False
        yield sentence
    if not whole:
        return  # numbers of damaged files say nothing about the record
    try:
        yield from (f"{directory / RECORD}: {text}" for text in differences(record, directory, earlier))
        found.recomputed += 1
    except (KeyError, TypeError, ValueError) as error:
        yield f"{directory / RECORD}: its numbers cannot be computed again: {type(error).__name__}: {error}"


def _files(found: Verified, directory: Path, listed: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    there: dict[str, os.stat_result] = {}
    for above, inner, files in os.walk(directory):
        for name in [*files, *(name for name in inner if Path(above, name).is_symlink())]:
            path = Path(above, name)
            there[str(path.relative_to(directory))] = path.lstat()
    for name, status in sorted(there.items()):
        if not stat.S_ISREG(status.st_mode):
            yield f"{directory / name}: a link or a special file, and nobody of ours made one"
        elif name not in listed and name != RECORD:
            yield f"{directory / name}: no file of the record"
    for name, (size, digest) in sorted(listed.items()):
        status_there = there.get(name)
        if status_there is None:
            yield f"{directory / name}: it is missing"
        elif stat.S_ISREG(status_there.st_mode):
            found.files += 1
            problem = _problem(directory / name, size, digest)
            found.bytes += status_there.st_size
            if problem:
                yield f"{directory / name}: {problem}"


def _problem(path: Path, size: Any, digest: Any) -> str | None:
    from blake3 import blake3

    hasher = blake3()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            there = os.fstat(descriptor).st_size
            if there != size:
                return f"{there} bytes, the record says {size}"
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # from storage, not from this machine's memory
            while block := file.read(BLOCK):
                hasher.update(block)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None if hasher.hexdigest() == digest else "its bytes are not those that were pushed (blake3 differs)"


def summary(found: Verified, sources: Sequence[Path]) -> str:
    """What was verified, in one line."""
    from base.units import counted, format_size

    sealed = f", {found.not_sealed} of them without a seal: of an earlier version" if found.not_sealed else ""
    left = f"; {counted(found.unread, 'run')} not verified: the time was over" if found.unread else ""
    without = f"; {counted(found.without, 'run')} of the study without a record" if found.without else ""
    wrong = counted(len(found.findings), "finding") if found.findings else "all is what was written"
    where = ", ".join(str(source) for source in sources)
    return (
        f"{where}: {counted(found.runs, 'run')}, {counted(found.records, 'record')}{sealed}, {counted(found.files, 'file')} "
        f"({format_size(found.bytes)}); numbers of {counted(found.recomputed, 'attempt')} computed again{without}{left}: {wrong}"
    )
