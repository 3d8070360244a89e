"""Verify that storage holds what was measured: every record, every file of every attempt, and every number that the events give."""

import hashlib
import math
import os
import select
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from base import seal
from base.calls import LimitedCall, call_limited, moved
from base.errors import DatasetError, RecordError, SlipwayError, StorageError
from base.humanize import counted, format_size, is_name, some
from base.jsonfile import canonical_json, read_content, read_json
from containers.program_folder import look_at
from data_prep.hashing import hash_file
from workflow.report import collect, provenance
from workflow.run.record.events import RequestedSteps, most_steps, read_events, requested_steps
from workflow.run.record.machine_load import loads
from workflow.run.record.model import OwnKeys, RunRecord
from workflow.run.record.outcome import other_device
from workflow.run.record.reading import ASIDE, attempt_directories, names, read_value, record_at
from workflow.run.record.run_record import join_measurements, measured
from workflow.study import programs, publishing
from workflow.study.cell import NO_EXCHANGE, Cell, Keys
from workflow.study.paths import STUDY_FILE, STUDY_SOURCE, kept_program

# What was verified, and what was found, summed up in a line.


@dataclass
class Verified:
    """What was verified, and what was found."""

    runs: int = 0
    records: int = 0
    not_sealed: int = 0
    """Records of a version that had no seals."""
    recomputed: int = 0
    files: int = 0
    bytes: int = 0
    runs_not_verified: int = 0
    """Runs on storage that did not answer, and those that were not begun after that."""
    runs_without_record: int = 0
    """Runs of the study without a record: not begun, not finished, or removed by somebody."""
    programs_not_verified: int = 0
    programs: list[str] = field(default_factory=list)
    """Digests of the folders of programs that records name."""
    findings: list[str] = field(default_factory=list)

    def add(self, other: "Verified") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def is_whole(self) -> bool:
        return not (self.findings or self.runs_not_verified or self.programs_not_verified)


def summary(found: Verified, sources: Sequence[Path]) -> str:
    """Describe what was verified and what was not, in one line."""
    sealed = f", {found.not_sealed} of them without a seal: of an earlier version" if found.not_sealed else ""
    where = ", ".join(str(source) for source in sources)
    parts = [
        f"{where}: {counted(found.runs, 'run')}, {counted(found.records, 'record')}{sealed}, {counted(found.files, 'file')} "
        f"({format_size(found.bytes)})",
        f"numbers of {counted(found.recomputed, 'attempt')} computed again",
        f"{counted(len(set(found.programs)), 'state')} of programs' folders" if found.programs else "",
        f"{counted(found.runs_without_record, 'run')} of the study without a record" if found.runs_without_record else "",
        f"{counted(found.runs_not_verified, 'run')} not verified: storage did not answer" if found.runs_not_verified else "",
        f"{counted(found.programs_not_verified, 'state')} of programs' folders not verified" if found.programs_not_verified else "",
    ]
    return f"{'; '.join(part for part in parts if part)}: {_verdict(found)}"


def _verdict(found: Verified) -> str:
    if found.findings:
        return counted(len(found.findings), "finding")
    if not found.runs and not found.records:
        return "nothing was looked at"
    return "all is what was written" if found.is_whole else "what was looked at is what was written"


# The numbers of a record, computed again from the pushed events.


RELATIVE: Final = 1e-9  # another version may add in another order
PARTS: Final = ("performance", "training")
OF_ANOTHER_RULE: Final = frozenset(
    {"window_s", "rate_to_median_ratio", "uneven_cause", "rank_skew_p95_ratio", "straggler_rank"}
    | {f"{unit}_per_s{each}" for unit in ("samples", "tokens") for each in ("", "_per_gpu")}
)
"""Numbers that earlier versions computed by other rules; they are not compared in their records."""
WITH_LAST_STEP: Final = frozenset({"last_half_ratio", "first_steps_ratio"})
"""Numbers that an earlier rule computed with the last step of the window; a record does not show which rule it used."""


def differences(record: OwnKeys, attempt: Path, earlier: OwnKeys | None) -> Iterator[str]:
    """Yield one sentence for each number of the record that the events in `attempt` do not give, and one where they contradict its `ok`.
    `earlier`: the record of the attempt that this one resumed from. Raises KeyError, TypeError where the record is none."""
    read, before = (None if one is None else msgspec.convert(one, RunRecord) for one in (record, earlier))
    assert read is not None
    cell, asked = read.cell, _requested_steps(read)
    events = read_events(attempt, cell.world_size, most_steps(cell, asked))
    seen = loads(attempt, events, cell)
    model = _model(attempt, cell)
    found = measured(events, cell.world_size, cell.global_batch_size, cell.mode, model, asked, one_network=cell.comm_hook != NO_EXCHANGE)
    if read.status == "ok" and (wrong := found.contradiction or other_device(events, read.device)) is not None:
        yield f"it says ok, and is an error by the rules of this version: {wrong}"
    for index, node in enumerate(record["nodes"]):
        if node.get("load") is not None:
            yield from _unequal(f"nodes[{index}].load", node["load"], _as_json(seen.get(index)))
    if read.resumed_from is not None and before is not None:
        found = join_measurements(found, before.performance, before.training, read.resumed_from.step)
    for part in PARTS:
        said, again = record[part], _as_json(getattr(found, part))
        if part == "performance" and said is not None and again is not None:
            left_out = WITH_LAST_STEP | (OF_ANOTHER_RULE if _of_another_rule(record, said) else frozenset())
            said = {key: value for key, value in said.items() if key not in left_out}
        yield from _unequal(part, said, again)


def _as_json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _of_another_rule(record: OwnKeys, performance: OwnKeys) -> bool:
    """Return whether the rate was made by an earlier rule: of the median step, or of seconds that lines of output told."""
    return performance.get("samples") is None or ("assumed" not in performance and record.get("steps_source") == "log")


def _model(attempt: Path, cell: Cell) -> tuple[str, int] | None:
    path = attempt / "cell.json"
    document = read_json(path) if path.exists() else None
    parameters = document.get("model_parameters") if isinstance(document, dict) else None
    return (cell.model, parameters) if isinstance(parameters, int) else None


def _requested_steps(record: RunRecord) -> RequestedSteps | None:
    """Return None for epochs: the size of the training split is not in a record."""
    resumed = record.resumed_from
    return None if record.cell.epochs is not None else requested_steps(record.cell, 0, 0 if resumed is None else resumed.step)


def _unequal(path: str, recorded: Any, again: Any) -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(again, dict):
        for key in sorted(recorded.keys() & again.keys()):
            yield from _unequal(f"{path}.{key}", recorded[key], again[key])
    elif isinstance(recorded, list) and isinstance(again, list):
        if any(_differ(one, other) for one, other in zip(recorded, again, strict=False)) or len(recorded) != len(again):
            yield f"{path} is not what its events give"
    elif _differ(recorded, again):
        yield f"{path} is {_brief(recorded)}, and its events give {_brief(again)}"


def _differ(recorded: Any, again: Any) -> bool:
    if isinstance(recorded, list | tuple) and isinstance(again, list | tuple):
        return len(recorded) != len(again) or any(_differ(one, other) for one, other in zip(recorded, again, strict=True))
    if isinstance(recorded, int | float) and isinstance(again, int | float):
        return not math.isclose(recorded, again, rel_tol=RELATIVE, abs_tol=1e-12)
    return bool(recorded != again)


def _brief(value: Any) -> str:
    return "an object" if isinstance(value, dict) else "nothing" if value is None else str(value)[:60]


# The cells and runs of study.json, compared with the study file and with the cell of each record.


MAX_KEYS: Final = 6


@dataclass(frozen=True, kw_only=True)
class StudyRuns:
    """The study's name, its cells by id, and of each run the cell and its number of repeat; nothing where there is no study.json."""

    study: str | None = None
    cells: Mapping[str, Keys] = field(default_factory=dict)
    runs: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def read_study_runs(results: Path) -> tuple[StudyRuns, list[str]]:
    """Read study.json; return it, and the findings about it and the study file beside it."""
    try:
        study = collect.read_study(results)
    except RecordError as error:
        return StudyRuns(), [str(error)]
    findings = []
    if (found := file_changed(results, study)) is not None:
        findings.append(f"{results / STUDY_SOURCE}: {found}")
    if not _is_as_written(results / STUDY_FILE):
        findings.append(f"{results / STUDY_FILE}: it was changed: its content is not that of the last line of its history")
    cells = {cell.cell_id: cell.to_json() for cell in (*study.cells.values(), *study.profiles.values())}
    runs = {**study.runs, **{run_id: (cell.cell_id, 1) for run_id, cell in study.profiles.items()}}
    return StudyRuns(study=study.study, cells=cells, runs=runs), findings


def _is_as_written(path: Path) -> bool:
    """Return True if the content, limits and site too, has the digest in the last line of its history, where there is one."""
    content = dict(read_json(path))
    digest = publishing.last_version(content.pop("history", None)).get("sha256")
    return digest is None or hashlib.sha256(canonical_json(content)).hexdigest() == digest


def file_changed(results: Path, study: collect.StudyFile) -> str | None:
    """Explain why the study file in `results` is not that of the last run; None where it is, and where an older version left no digest
    of it."""
    if study.file_sha256 is None:
        return None
    try:
        content = read_content(results / STUDY_SOURCE, max_bytes=provenance.MAX_PROGRAM_BYTES)
    except RecordError:
        return "it is missing, or cannot be read: nobody can see what was typed"
    there = hashlib.sha256(content).hexdigest()
    if there == study.file_sha256:
        return None
    return f"it was changed since it ran (its sha256 is {there[:12]}, that of the last run's file {study.file_sha256[:12]})"


def differences_from_study(record: OwnKeys, asked: StudyRuns) -> Iterator[str]:
    """Yield the differences between the record and the study's own cell. A key that one of the two does not know was not requested then."""
    run = asked.runs.get(record["run_id"])
    if run is None:
        return
    if record.get("study") not in (None, asked.study):
        yield f"it is of the study {record['study']!r}, and study.json is that of {asked.study!r}"
    if keys := _differing(_identifying(record["cell"]), _identifying(asked.cells[run[0]])):
        yield f"its cell differs from the study's cell of the same run: {keys}"


def _identifying(cell: Keys) -> Keys:
    """Return a cell without the image, interpreter and paths of its program, which may change between its runs."""
    program = cell.get("program")
    return {**cell, "program": programs.identity(program)} if isinstance(program, Mapping) else cell


def _differing(one: Keys, other: Keys) -> str:
    return some([key for key in sorted(one.keys() & other.keys()) if one[key] != other[key]], MAX_KEYS)


MAX_RESULTS: Final = 10_000
RECORD: Final = "record.json"
CHILDREN: Final = 4
MAX_TOGETHER: Final = 32
"""Runs of a child, which costs as much as a few of them."""
SILENCE_S: Final = 120.0
"""A block of a file, or the numbers of an attempt, take seconds where storage is slow."""


def verify_runs(results: Path, seen: Callable[[int, int], None] | None = None) -> Verified:
    """Verify every run below `results`, several at once. `seen(done, in all)` is called after each. Reads every byte, and waits for none
    longer than SILENCE_S. Raises RecordError where `results` holds none, StorageError where that takes too long."""
    runs, missing, study = call_limited(f"the list of the runs in {results}", _listed, results, timeout_s=SILENCE_S)
    total, asked = Verified(**missing), StudyRuns(**study)
    done = 0
    for found in each_run([results / "runs" / run for run in runs], lambda directory: verify_run(directory, asked)):
        total.add(found)
        done += found.runs + found.runs_not_verified
        if seen is not None:
            seen(done, len(runs))
    total.add(verify_programs(results, total.programs))
    return total


def each_run(runs: Sequence[Path], check: Callable[[Path], Verified], silence_s: float = SILENCE_S) -> Iterator[Verified]:
    """Yield what `check` finds in the runs, of some of them together, by several children at once. No child is begun after one
    for which nothing moved for `silence_s`."""
    together = max(1, min(MAX_TOGETHER, len(runs) // (8 * CHILDREN)))
    waiting = deque(runs[start : start + together] for start in range(0, len(runs), together))
    going: list[tuple[LimitedCall, Sequence[Path]]] = []
    silent = False
    try:
        while waiting or going:
            while waiting and len(going) < CHILDREN and not silent:
                batch = waiting.popleft()
                going.append((LimitedCall(_named(batch), _verify_all, batch, check, timeout_s=silence_s, renewed=True), batch))
            if not going:
                yield Verified(runs_not_verified=sum(map(len, waiting)))
                return
            soonest = min(call.deadline for call, _ in going)
            select.select([call for call, _ in going], [], [], max(0.0, soonest - time.monotonic()))
            for child in [*going]:
                call, batch = child
                if call.done():
                    going.remove(child)
                    yield _result(call, len(batch))
                elif time.monotonic() >= call.deadline:
                    going.remove(child)
                    call.abandon()
                    silent = True
                    yield Verified(runs_not_verified=len(batch), findings=[f"{call.late()}; not verified"])
    finally:
        for call, _ in going:
            call.abandon()


def _named(runs: Sequence[Path]) -> str:
    return str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1].name}"


def _verify_all(runs: Sequence[Path], check: Callable[[Path], Verified]) -> dict[str, object]:
    total = Verified()
    for run in runs:
        moved()
        total.add(check(run))
    return asdict(total)


def _result(call: LimitedCall, num_runs: int) -> Verified:
    """Return what a child that has ended has found, or that it has died. Raises Defect for a bug of ours."""
    try:
        return Verified(**call.result())
    except StorageError as error:
        return Verified(runs=num_runs, findings=[f"{call.what}: not verified: {error}"])


def _listed(results: Path) -> tuple[list[str], dict[str, object], dict[str, object]]:
    """Return the runs, the findings about study.json, and what it asks for, as a child can send it."""
    collect.check_directory(results)
    there = sorted(name for name in names(str(results / "runs")) if is_name(name))
    asked, findings = read_study_runs(results)
    return there, asdict(Verified(runs_without_record=len(asked.runs.keys() - set(there)), findings=findings)), asdict(asked)


def verify_run(directory: Path, asked: StudyRuns) -> Verified:
    """Verify one run, of which `asked` may know the cell."""
    found = Verified(runs=1)
    places = (directory, directory / "attempts", *(directory / "attempts").glob("[1-9]*"))
    found.findings += [f"{place}: a link, and nobody of ours made one" for place in places if place.is_symlink()]
    if found.findings:
        return found
    contents: dict[int, bytes] = {}
    for number in attempt_directories(directory / "attempts"):
        content = _believed(found, directory / "attempts" / str(number) / RECORD, number)
        if content is not None:
            contents[number] = content
    for name in sorted(names(str(directory / "attempts"))):  # its hours are counted, its files are nobody's
        path = directory / "attempts" / name / RECORD
        if (beside := ASIDE.fullmatch(name)) and path.exists():
            _believed(found, path, int(beside[1]))
    records = {number: read_value(content) for number, content in contents.items()}
    for number, record in records.items():
        path = directory / "attempts" / str(number)
        found.findings += [f"{path / RECORD}: {text}" for text in differences_from_study(record, asked)]
        found.programs += list(program_digests(record))
        found.findings += list(_attempt(found, path, record, records))
    found.findings += _published(found, directory, contents, records)
    found.runs_without_record += not found.records
    return found


def _published(found: Verified, directory: Path, contents: Mapping[int, bytes], records: Mapping[int, OwnKeys]) -> Iterator[str]:
    """Compare the run's record with its attempts. Results are counted from 1, so one that is gone is noticed; an attempt that was
    prevented, or whose supervisor was killed, may have left nothing. Whoever holds the lease publishes what is not published."""
    path = directory / RECORD
    results = {number: record["result_number"] for number, record in records.items() if record["kind"] == "result"}
    newest = max(results, default=None)
    if path.exists() or path.is_symlink():
        published = _believed(found, path, None)
        if published is None:
            return
        if published not in contents.values():
            yield f"{path}: it is the record of no attempt of this run"
        elif newest is not None and published != contents[newest] and not (directory / "lease.json").exists():
            yield f"{path}: it is not that of attempt {newest}, the newest result"
    elif newest is not None and not (directory / "lease.json").exists():
        yield f"{path}: it is missing, and attempt {newest} is a result"
    known = set(results.values())
    if lost := [str(number) for number in range(1, min(max(known, default=1), MAX_RESULTS)) if number not in known]:
        yield f"{directory / 'attempts'}: of its results number {', '.join(lost[:10])} is missing"
    for number, record in records.items():
        earlier = record.get("resumed_from")
        if isinstance(earlier, dict) and earlier.get("attempt") not in records:
            yield f"{directory / 'attempts' / str(number)}: it went on from an attempt that is not there"


def _believed(found: Verified, path: Path, attempt: int | None) -> bytes | None:
    """Return the bytes of a record that its reader believes, else record a finding."""
    found.records += 1
    try:
        if path.is_symlink():
            raise RecordError(f"{path}: it is a link, and nobody of ours made one")
        _, content = record_at(path, path.parents[0 if attempt is None else 2].name, attempt)
    except RecordError as error:
        found.findings.append(str(error))
        return None
    found.not_sealed += seal.seal_state(content) == "unsealed"
    return content


def _attempt(found: Verified, directory: Path, record: OwnKeys, records: Mapping[int, OwnKeys]) -> Iterator[str]:
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
    except (KeyError, TypeError, ValueError, AttributeError, RecordError) as error:
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
            found.bytes += status_there.st_size
            if problem := _problem(directory / name, (status_there.st_size, size), digest):
                yield f"{directory / name}: {problem}"


def _problem(path: Path, sizes: tuple[int, Any], digest: Any) -> str | None:
    """Compare a file with its size and digest in the record. `sizes`: of the file, and in the record."""
    if sizes[0] != sizes[1]:
        return f"{sizes[0]} bytes, the record says {sizes[1]}"
    try:
        found = hash_file(path, on_piece=lambda _bytes: moved(), stored=True)
    except (OSError, DatasetError) as error:
        return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    return None if found.blake3 == digest else "its bytes are not those that were pushed (blake3 differs)"


# Kept files of the study's own programs, compared with the digests in the records.


def verify_programs(results: Path, digests: Iterable[str]) -> Verified:
    """Verify the kept files of each digest, each within SILENCE_S. After the first whose storage fails or is silent the others are only
    counted as left."""
    total = Verified()
    for digest in sorted(set(digests)):
        if total.programs_not_verified:
            total.programs_not_verified += 1
            continue
        place = kept_program(results, digest)
        try:
            problem = call_limited(f"the files of a program in {place}", why_not_kept, str(place), digest, timeout_s=SILENCE_S)
        except StorageError as error:
            total.programs_not_verified += 1
            problem = str(error)
        if problem is not None:
            total.findings.append(f"{place}: {problem}")
    return total


def program_digests(record: OwnKeys) -> Iterator[str]:
    """Yield the digest of the folder of the record's own program, where it has one; what is no digest is nobody's path."""
    digest = (record["provenance"] or {}).get("program_digest")
    if isinstance(digest, str) and provenance.DIGEST.fullmatch(digest):
        yield digest


def why_not_kept(place: str, digest: str) -> str | None:
    """Explain why the files in `place` are not those of `digest`; None where they are."""
    path = Path(place)
    if path.is_symlink() or path.parent.is_symlink():
        return "a link, and nobody of ours made one"
    if not path.is_dir():
        return "it is missing: the files that the program had in runs with this digest (an earlier version kept none)"
    try:
        found = look_at(path, executed=False).digest
    except StorageError:
        raise
    except SlipwayError as error:
        return str(error)
    return None if found == digest else f"its files are not those that ran: their digest is {found[:12]} now"
