"""Read what the profile runs of a study tell: the trace of each, and beside it what DistributedDataParallel told of the exchange."""

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from base.errors import DatasetError, RecordError
from base.jsonfile import read_content
from base.sanitize import printable, text
from data_prep.hashing import hash_file
from workflow.report.profile.profile import Profile, profile_of
from workflow.report.profile.trace import read_trace
from workflow.run.record.reading import find_record, names, record_of
from workflow.study.cell import Cell, profile_run

TRACE_FILE: Final = "trace.json.gz"
EXCHANGE_FILE: Final = "exchange.json"
MAX_EXCHANGE_BYTES: Final = 1 << 20
ONEDNN_FILE: Final = "onednn.log"
MAX_ONEDNN_BYTES: Final = 4 << 20
MAX_WORD: Final = 200
T = TypeVar("T")
Exchange = dict[str, float | str | list[int] | None]
"""What DistributedDataParallel told of the steps with its log, as the program wrote it (docs/explanation/what-bounds-a-step.md)."""


class RunProfile(Struct, frozen=True, kw_only=True):
    """The profile of a cell."""

    profile: Profile
    exchange: Exchange | None = None
    onednn: dict[str, dict[str, str]] = {}
    """Convolution as oneDNN's log describes it -> forward_training, backward_data, backward_weights -> the implementation that it took."""
    problem: str | None = None
    """What could not be read beside the trace."""


def profiles_in(results: Path, cells: Iterable[Cell]) -> Iterator[tuple[Cell, RunProfile | str]]:
    """Yield each measured cell of which a profile run has a record, with what that tells, or why it tells nothing."""
    there = set(names(str(results / "runs")))
    for cell in cells:
        run_id = profile_run(cell).run_id
        found = profile_of_run(results / "runs" / run_id) if run_id in there else None
        if found is not None:
            yield cell, found


def profile_of_run(run_dir: Path) -> RunProfile | str | None:
    """Return what the counting attempt of a profile run tells, or why it tells nothing; None without a record."""
    found = find_record(str(run_dir.parent), run_dir.name)
    if found.content is None:
        return None
    try:
        record = record_of(found.content, run_dir.name)
    except RecordError as error:
        return printable(f"its record is not believed: {error}")
    if record.status != "ok":
        return printable(f"{record.status}: {record.status_reason or ''}")
    trace = next((file for file in record.files or () if file.path == TRACE_FILE), None)
    if trace is None:
        return "; ".join(["its program left no trace", *(printable(one) for one in record.warnings or () if "profile" in one)])
    try:
        return _read(run_dir / "attempts" / str(record.attempt), trace.blake3)
    except RecordError as error:
        return printable(str(error))


@functools.cache
def _read(attempt: Path, trace_blake3: str) -> RunProfile:
    """Read the trace of an attempt. Raises RecordError where it is not the one that the record names, or no trace."""
    path = attempt / TRACE_FILE
    try:
        digest = hash_file(path).blake3
    except (OSError, DatasetError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    if digest != trace_blake3:
        raise RecordError(f"{path} is not what its record names: `slipway verify` says more")
    exchange, first = _beside(attempt / EXCHANGE_FILE, MAX_EXCHANGE_BYTES, msgspec.json.Decoder(Exchange).decode)
    onednn, second = _beside(attempt / ONEDNN_FILE, MAX_ONEDNN_BYTES, implementations)
    problem = "; ".join(filter(None, (first, second))) or None
    return RunProfile(profile=profile_of(read_trace(path)), exchange=exchange, onednn=onednn or {}, problem=problem)


def _beside(path: Path, max_bytes: int, read: Callable[[bytes], T]) -> tuple[T | None, str | None]:
    """Return what a program wrote into a file beside its trace, or why that is not believed."""
    if not path.exists():
        return None, None
    try:
        return read(read_content(path, max_bytes=max_bytes)), None
    except (RecordError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, printable(f"{path.name}: {error}")


def implementations(log: bytes) -> dict[str, dict[str, str]]:
    """Return of each convolution in a log of oneDNN the implementation of each pass, the first where there are several."""
    found: dict[str, dict[str, str]] = {}
    for line in log.decode(errors="replace").splitlines():
        words = line.split(",")
        if "exec" in words and "convolution" in words[:-4]:
            place = words.index("convolution")
            implementation, direction, name = (text(word, MAX_WORD) for word in (words[place + 1], words[place + 2], words[-2]))
            found.setdefault(name, {}).setdefault(direction, implementation)
    return found
