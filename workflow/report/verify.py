"""Whether what lies on storage is what was measured: every record, every file of every attempt, every number that events give."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from base.errors import DatasetError, RecordError
from base.jsonfile import read_content
from base.limited import call_limited
from base.names import is_name
from base.seal import seal_state
from data_prep.hashing import hash_file
from workflow.report.kept_programs import program_digests, verify_programs
from workflow.report.recompute import differences
from workflow.report.sources import check_directory
from workflow.report.study_runs import CELL_FILE, StudyRuns, differences_from_cell_file, differences_from_study, read_study_runs
from workflow.report.verified import Verified
from workflow.report.watched import SILENCE_S, Told, each_run
from workflow.run.record.attempts import ASIDE, MAX_BYTES, attempt_directories, names
from workflow.run.record.model import NotBelieved
from workflow.run.record.reading import read_value, record_of

MOST_RESULTS: Final = 10_000
RECORD: Final = "record.json"


def verify_runs(results: Path, until: float | None = None, seen: Callable[[int, int], None] | None = None) -> Verified:
    """Every run below `results`, several at once; `seen(done, in all)` after each. `until`: by the monotonic clock; then no run is begun.
    Reads every byte, and waits for none longer than SILENCE_S. Raises RecordError where `results` holds none, StorageError where that takes
    too long."""
    runs, missing, study = call_limited(f"the list of the runs in {results}", _listed, results, timeout_s=SILENCE_S)
    total, asked = Verified(**missing), StudyRuns(**study)
    done = 0
    for found in each_run(results / "runs", runs, lambda directory, told: verify_run(directory, told, asked), until):
        total.add(found)
        done += found.runs + found.silent + found.unread
        if seen is not None:
            seen(done, len(runs))
    total.add(verify_programs(results, total.programs, until))
    return total


def _listed(results: Path) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """The runs that are there; of those that study.json names, how many have no directory, and what is to be said of it; what it asks."""
    check_directory(results)
    there = sorted(name for name in names(str(results / "runs")) if is_name(name))
    asked, findings = read_study_runs(results)
    return there, asdict(Verified(without=len(asked.runs.keys() - set(there)), findings=findings)), asdict(asked)


def verify_run(directory: Path, told: Told, asked: StudyRuns) -> Verified:
    """One run, of which `asked` may know the cell; `told` is called with each file before it is read, and after each block of it."""
    told(directory)
    found = Verified(runs=1)
    places = (directory, directory / "attempts", *(directory / "attempts").glob("[1-9]*"))
    found.findings += [f"{place}: a link, and nobody of ours made one" for place in places if place.is_symlink()]
    if found.findings:
        return found
    contents: dict[int, bytes] = {}
    for number in attempt_directories(directory / "attempts"):
        content = _believed(found, told, directory / "attempts" / str(number) / RECORD, number)
        if content is not None:
            contents[number] = content
    for name in sorted(names(str(directory / "attempts"))):  # its hours are counted, its files are nobody's
        path = directory / "attempts" / name / RECORD
        if (beside := ASIDE.fullmatch(name)) and path.exists():
            _believed(found, told, path, int(beside[1]))
    records = {number: read_value(content) for number, content in contents.items()}
    for number, record in records.items():
        path = directory / "attempts" / str(number)
        found.findings += [f"{path / RECORD}: {text}" for text in differences_from_study(record, asked)]
        found.programs += list(program_digests(record))
        found.findings += list(_attempt(found, told, path, record, records))
    found.findings += _published(found, told, directory, contents, records)
    found.without += not found.records
    return found


def _published(
    found: Verified, told: Told, directory: Path, contents: Mapping[int, bytes], records: Mapping[int, Mapping[str, Any]]
) -> Iterator[str]:
    """The run's record and its attempts, one against the other. Results are counted from 1, so one that is gone is noticed; an attempt
    that was prevented, or whose supervisor was killed, may have left nothing. Whoever holds the lease publishes what is not published."""
    path = directory / RECORD
    told(path)
    results = {number: record["result_number"] for number, record in records.items() if record["kind"] == "result"}
    newest = max(results, default=None)
    if path.exists() or path.is_symlink():
        published = _believed(found, told, path, None)
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


def _believed(found: Verified, told: Told, path: Path, attempt: int | None) -> bytes | None:
    """The bytes of a record that its reader believes; else a finding."""
    told(path)
    found.records += 1
    try:
        if path.is_symlink():
            raise NotBelieved("it is a link, and nobody of ours made one")
        content = read_content(path, max_bytes=MAX_BYTES)
        record_of(content, path.parents[0 if attempt is None else 2].name, attempt)
    except NotBelieved as error:
        found.findings.append(f"{path}: {error}")
        return None
    except RecordError as error:
        found.findings.append(str(error))
        return None
    found.not_sealed += seal_state(content) == "unsealed"
    return content


def _attempt(
    found: Verified, told: Told, directory: Path, record: Mapping[str, Any], records: Mapping[int, Mapping[str, Any]]
) -> Iterator[str]:
    """The files of an attempt, then its numbers, which are made of them."""
    try:
        listed = {str(file["path"]): (file["bytes"], file["blake3"]) for file in record["files"]}
        earlier = records.get(record["resumed_from"]["attempt"]) if record["resumed_from"] else None
    except (KeyError, TypeError, AttributeError) as error:
        yield f"{directory / RECORD}: its list of files cannot be read: {error}"
        return
    whole = True
    for sentence in _files(found, told, directory, listed):
        whole = False
        yield sentence
    if not whole:
        return  # numbers of damaged files say nothing about the record
    try:
        told(directory / CELL_FILE)
        yield from (f"{directory / RECORD}: {text}" for text in differences_from_cell_file(record, directory))
        yield from (f"{directory / RECORD}: {text}" for text in differences(record, directory, earlier, told))
        found.recomputed += 1
    except (KeyError, TypeError, ValueError, AttributeError, RecordError) as error:
        yield f"{directory / RECORD}: its numbers cannot be computed again: {type(error).__name__}: {error}"


def _files(found: Verified, told: Told, directory: Path, listed: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    there: dict[str, os.stat_result] = {}
    for above, inner, files in os.walk(directory):
        told(above)
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
            found.bytes += status_there.st_size
            if problem := _problem(told, directory / name, (status_there.st_size, size), digest):
                yield f"{directory / name}: {problem}"


def _problem(told: Told, path: Path, sizes: tuple[int, Any], digest: Any) -> str | None:
    """`sizes`: there, and in the record."""
    if sizes[0] != sizes[1]:
        return f"{sizes[0]} bytes, the record says {sizes[1]}"
    told(path)
    try:
        found = hash_file(path, on_piece=lambda _bytes: told(path), stored=True)
    except (OSError, DatasetError) as error:
        return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    return None if found.blake3 == digest else "its bytes are not those that were pushed (blake3 differs)"
