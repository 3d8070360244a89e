"""Find what the profile runs of a study tell: `profile.json`, made once of each trace, beside the record of its run."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from base.errors import DatasetError, RecordError
from base.jsonfile import json_text, read_content
from base.publish import publish
from base.sanitize import printable
from data_prep.hashing import hash_file
from workflow.report.profile.profile import Profile, profile_json, profile_of
from workflow.report.profile.trace import read_trace
from workflow.run.record.model import NotBelieved
from workflow.run.record.reading import find_record, names, record_of
from workflow.study.cell import Cell, profile_run

PROFILE_FILE: Final = "profile.json"
TRACE_FILE: Final = "trace.json.gz"
EXCHANGE_FILE: Final = "exchange.json"
MAX_BYTES: Final = 16 << 20
MAX_EXCHANGE_BYTES: Final = 1 << 20
Seconds = Annotated[float, Meta(ge=0, le=1e8)]
Difference = Annotated[float, Meta(ge=-1e8, le=1e8)]
Size = Annotated[int, Meta(ge=0, le=1 << 60)]
Word = Annotated[str, Meta(max_length=200)]


class NcclChoice(Struct, frozen=True, kw_only=True):
    """How often NCCL took an algorithm with a protocol, and the most bytes that it took it for."""

    times: Size
    most_bytes: Size


class NcclLog(Struct, frozen=True, kw_only=True):
    """What NCCL's own log tells of its all-reduces and its ways from rank to rank."""

    algorithms: Annotated[dict[Word, NcclChoice], Meta(max_length=64)]
    transports: Annotated[tuple[Word, ...], Meta(max_length=64)]


class Exchange(Struct, frozen=True, kw_only=True):
    """What DistributedDataParallel told of the steps with its log, as means over ranks and steps; of no step nothing but their number."""

    schema: Literal["slipway.exchange/1"]
    steps: Size
    ranks: Size
    step_s: Seconds | None = None
    before_s: Seconds | None = None
    forward_s: Seconds | None = None
    backward_s: Seconds | None = None
    exchange_s: Seconds | None = None
    overlap_s: Seconds | None = None
    exposed_s: Seconds | None = None
    skew_s: Seconds | None = None
    optimizer_s: Seconds | None = None
    other_s: Difference | None = None
    closing_ratio: Seconds | None = None
    bucket_bytes: Annotated[tuple[Size, ...], Meta(max_length=10_000)] = ()
    backend: Word = ""
    comm_hook: Word | None = None
    nccl: NcclLog | None = None


class RunProfile(Struct, frozen=True, kw_only=True):
    """The profile of a cell. `trace_blake3`: which trace it was made of."""

    run_id: str
    trace_blake3: str
    profile: Profile
    exchange: Exchange | None = None
    problem: str | None = None
    """What could not be read beside the trace."""


class _Beside(Struct, frozen=True, kw_only=True):
    """The keys of profile.json that are not of the trace."""

    run_id: str
    trace_blake3: str
    exchange: Exchange | None = None
    problem: str | None = None


def profiles_in(results: Path, cells: Iterable[Cell]) -> Iterator[tuple[Cell, RunProfile | str]]:
    """Yield each measured cell of which a profile run has a record, with what that tells, or why it tells nothing."""
    there = set(names(str(results / "runs")))
    for cell in cells:
        run_id = profile_run(cell).run_id
        found = profile_of_run(results / "runs" / run_id) if run_id in there else None
        if found is not None:
            yield cell, found


def profile_of_run(run_dir: Path, *, anew: bool = False) -> RunProfile | str | None:
    """Return what the counting attempt of a profile run tells, or why it tells nothing; None without a record. It is read from profile.json
    where that is of its trace, else, or `anew`, from the trace."""
    found = find_record(str(run_dir.parent), run_dir.name)
    if found.content is None:
        return None
    try:
        record = record_of(found.content, run_dir.name)
    except NotBelieved as error:
        return printable(f"its record is not believed: {error}")
    if record.status != "ok":
        return printable(f"{record.status}: {record.status_reason or ''}")
    trace = next((file for file in record.files or () if file.path == TRACE_FILE), None)
    if trace is None:
        return "; ".join(["its program left no trace", *(printable(one) for one in record.warnings or () if "profile" in one)])
    known = None if anew else _known(run_dir / PROFILE_FILE)
    if known is not None and (known.run_id, known.trace_blake3) == (record.run_id, trace.blake3):
        return known
    try:
        return _made(run_dir / "attempts" / str(record.attempt), record.run_id, trace.blake3)
    except RecordError as error:
        return printable(str(error))


def write_profiles(results: Path, cells: Iterable[Cell]) -> None:
    """Write profile.json beside the record of each profile run of `cells`, where it is not there, or of another trace. Who may only read
    there writes none."""
    for cell, found in profiles_in(results, cells):
        path = results / "runs" / profile_run(cell).run_id / PROFILE_FILE
        if isinstance(found, RunProfile) and _known(path) != found and os.access(path.parent, os.W_OK):
            with suppress(OSError):  # it saves work alone, and storage may be full
                publish(path, json_text(document(found)))


def why_wrong(run_dir: Path) -> str | None:
    """Return what is wrong with the profile.json of a run; None where there is none, or it is what the trace gives."""
    path = run_dir / PROFILE_FILE
    if not path.exists() and not path.is_symlink():
        return None
    known, made = _known(path), profile_of_run(run_dir, anew=True)
    if known is not None and known == made:
        return None
    if known is not None and isinstance(made, str):
        return f"it cannot be made again to compare ({made}): keep it, since it may be all that is left of the profile"
    return "it is not what the trace of its run gives by this version: remove it, and `slipway tables` makes it anew"


def document(found: RunProfile) -> dict[str, Any]:
    """Return the content of profile.json: what `slipway profile --trace FILE --json` prints, and what the run tells beside it."""
    beside: dict[str, Any] = msgspec.to_builtins(
        _Beside(run_id=found.run_id, trace_blake3=found.trace_blake3, exchange=found.exchange, problem=found.problem)
    )
    return {**profile_json(found.profile), **beside}


def _known(path: Path) -> RunProfile | None:
    """Return what profile.json says; None where there is none, or one that this version does not read."""
    try:
        content = read_content(path, max_bytes=MAX_BYTES)
        beside = msgspec.json.decode(content, type=_Beside)
        profile = msgspec.json.decode(content, type=Profile)
    except (RecordError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return RunProfile(
        run_id=beside.run_id, trace_blake3=beside.trace_blake3, profile=profile, exchange=beside.exchange, problem=beside.problem
    )


@functools.lru_cache(maxsize=64)
def _made(attempt: Path, run_id: str, trace_blake3: str) -> RunProfile:
    """Read the trace of an attempt. Raises RecordError where it is not the one that the record names, or no trace."""
    path = attempt / TRACE_FILE
    try:
        digest = hash_file(path).blake3
    except (OSError, DatasetError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    if digest != trace_blake3:
        raise RecordError(f"{path} is not what its record names: `slipway verify` tells more")
    exchange, problem = _exchange(attempt / EXCHANGE_FILE)
    found = profile_of(read_trace(path))
    return RunProfile(run_id=run_id, trace_blake3=trace_blake3, profile=found, exchange=exchange, problem=problem)


def _exchange(path: Path) -> tuple[Exchange | None, str | None]:
    """Return what a program wrote of the exchange, or why that is not believed."""
    if not path.exists():
        return None, None
    try:
        return msgspec.json.decode(read_content(path, max_bytes=MAX_EXCHANGE_BYTES), type=Exchange), None
    except (RecordError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, printable(f"{EXCHANGE_FILE}: {error}")
