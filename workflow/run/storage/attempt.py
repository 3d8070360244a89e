"""Begin, resume, push and record an attempt on network storage. Each function runs in a child with a time limit, and takes
and returns plain values."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from base import humanize, jsonfile, untrusted
from base.errors import DigestMismatch, LeaseError, PushError, RecordError, StagingError, StorageError
from base.publish import move_directory, part_path, remove_leftover, remove_tree
from base.seal import publish_checked, publish_sealed, read_sealed, read_sealed_bytes
from containers.spec import CHECKPOINT, PARAMETERS
from workflow.run.record import machine_load, reading
from workflow.run.record.events import RequestedSteps, most_steps, read_events
from workflow.run.record.model import File, NewRecord, OwnKeys
from workflow.run.record.outcome import RESULT, Ending, other_device
from workflow.run.record.run_record import EndedNote, Measurements, RunFacts, build_record, measured, noted_ending
from workflow.run.storage import lease as leases
from workflow.run.storage.results import ENDED, RECORD, PreparedRun, attempt_numbers, refuse_failing_storage, results_of
from workflow.study.cell import NO_EXCHANGE, Cell

if TYPE_CHECKING:
    from data_prep.push.copy import Naming, PushedFile
    from data_prep.staging.copy import Rate


def make_part(run_dir: str, attempt: int) -> str:
    """Make a hidden directory beside the attempt's own name, into which the nodes push. Raises OSError."""
    directory = Path(run_dir, "attempts")
    directory.mkdir(parents=True, exist_ok=True)
    part = part_path(directory / str(attempt))
    part.mkdir()
    return str(part)


def read_measured(
    directory: str, cell: Cell, parameters: int | None, steps: RequestedSteps | None, device: str, status: str
) -> Measurements:
    """Compute the numbers in the pushed files. `parameters`: of the cell's model, None where it is none of ours; `steps`: requested of each
    rank; `status`: how the attempt ended. The load of nodes is read only where it ended well: only then there is a rate that a busy machine
    can have moved, and a preempted attempt has no time to read what was seen on many nodes in a day."""
    events = read_events(Path(directory), cell.world_size, most=most_steps(cell, steps))
    model = None if parameters is None else (cell.model, parameters)
    found = measured(events, cell.world_size, cell.global_batch_size, cell.mode, model, steps, one_network=cell.comm_hook != NO_EXCHANGE)
    return replace(
        found,
        contradiction=found.contradiction or other_device(events, device),
        loads=tuple(machine_load.loads(Path(directory), events, cell).items()) if status == "ok" else (),
    )


def publish_result(run: PreparedRun, part: str, files: Sequence[File], make_record: Callable[[], NewRecord]) -> None:
    """Publish the pushed attempt under its name, then, for a result, the run's record.json, last. Raises PushError, StorageError,
    LeaseError. The record is made here, as late as can be, so that its times are those of its publishing. Without the lease nothing is
    published: the attempt is moved aside. May be called again after a failure."""
    from data_prep.push import publish_checked_files

    run_dir, number = Path(run.run_dir), run.attempt
    target = run_dir / "attempts" / str(number)
    there = Path(part).is_dir()
    new = make_record()
    record = new.to_json()
    if not leases.holds(run_dir, run.token):
        aside = target.with_name(f"{number}.lost-{run.token[:8]}")
        if there:
            publish_sealed(Path(part, RECORD), record)
            move_directory(Path(part), aside)
        raise LeaseError(
            f"{run_dir.name}: attempt {number} lost its lease to another supervisor, so it publishes nothing; it lies in {aside}"
        )
    if there:
        publish_sealed(Path(part, RECORD), record)
        publish_checked_files(Path(part), msgspec.to_builtins(files), target)
    if new.record.kind == RESULT:
        if not leases.holds(run_dir, run.token):
            raise LeaseError(
                f"{run_dir.name}: the lease was lost while attempt {number} was published; the run's record is left to its holder"
            )
        publish_checked(run_dir / RECORD, read_sealed_bytes(target / RECORD))
    leases.release(run_dir, run.token)


def remove_part(part: str) -> None:
    """Take a half-pushed attempt away from storage: the whole of it waits on the nodes."""
    remove_tree(Path(part))


def give_up(run: PreparedRun) -> None:
    """Give the run back: nothing was made of it."""
    leases.release(Path(run.run_dir), run.token)


# Checkpoints and files of parameters, copied from storage to a node.


READ_BYTES = 4 << 20


def fetch_file(source: str, target: str, num_bytes: int, digest: str, bytes_per_s: float | None = None) -> None:
    """Copy the file from storage with at most `bytes_per_s` and check its hash. An incomplete copy is removed.

    Raises:
        DigestMismatch: the file is gone, or is not the expected one.
        StagingError: this node cannot write the copy.
        StorageError: storage fails.
    """
    from data_prep.staging.copy import Rate

    try:
        found = _copy(source, target, num_bytes, Rate(bytes_per_s))
    except FileNotFoundError as error:
        raise DigestMismatch(f"the file {source} is not there any more") from error
    except untrusted.Unusable as error:
        raise DigestMismatch(f"the file {source} is no file any more: {error.strerror}") from error
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(target).unlink()
        if error.filename == target or error.filename is None:
            raise StagingError(f"the file {source} cannot be copied to {target}: {error.strerror}") from error
        raise StorageError(f"the file {source} cannot be read: {error.strerror}") from error
    if found != (num_bytes, digest):
        Path(target).unlink(missing_ok=True)
        raise DigestMismatch(
            f"the file {source} is damaged or was changed: found {humanize.format_size(found[0])} with hash {found[1][:12]}, "
            f"expected {humanize.format_size(num_bytes)} with {digest[:12]}"
        )


def _copy(source: str, target: str, most: int, rate: Rate) -> tuple[int, Any]:
    """Return bytes and hash of what was copied: all, or a little more than `most`."""
    from blake3 import blake3

    hasher, count = blake3(), 0
    with os.fdopen(untrusted.open_file(Path(source)), "rb", buffering=0) as file, open(target, "wb") as copy:
        while count <= most and (block := _read(file.fileno(), source)):
            rate.take(len(block))
            hasher.update(block)
            copy.write(block)
            count += len(block)
    return count, hasher.hexdigest()


def _read(descriptor: int, source: str) -> bytes:
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError as error:
        error.filename = source
        raise


# Late records. A run whose files storage did not take leaves a note on its nodes, from which its record is built when they are delivered.
#
# Until all files of all its nodes are on storage the attempt is `prevented`, since its push was. Then it is the result that it would have
# been: its record is built from the note and the events, as the supervisor would have built it. A file counts only if it is what its node
# delivered. An attempt that was prevented anyway stays so, and its record lists its files. Under the run's lease; in a child with a time
# limit.


logger = logging.getLogger(__name__)

MAX_BYTES: Final = 64 << 20
MAX_SHOWN: Final = 8
ANY_BYTES: Final = 1 << 62
"""Logs were cut when they were delivered."""
LATE: Final = "storage did not take the result when the run ended; it was delivered later (`slipway reap --push`)"


def complete_delivered(run_dir: Path) -> dict[int, str]:
    """Make results of the attempts whose files were delivered, all of them; of the others the records that tell which files are there.
    For each attempt that was looked at and is no result: why. Raises PushError, StorageError where storage does not take it."""
    said = {}
    for number in reversed(attempt_numbers(run_dir)):
        directory = run_dir / "attempts" / str(number)
        if not (directory / ENDED).is_file():
            continue
        if not _is_settled(directory):
            said[number] = _completed(run_dir, directory)
        if _record_of(directory).get("kind") == RESULT:
            said.pop(number, None)
            for part in _parts(directory):
                remove_leftover(part)
    return said


def _completed(run_dir: Path, directory: Path) -> str:
    """Write the record of a delivered attempt. Return why it is no result; with a note that is not ours its record stays as it is."""
    try:
        note = msgspec.convert(jsonfile.read_json(directory / ENDED, max_bytes=MAX_BYTES), EndedNote)
        facts = _facts_of(run_dir, note)
        delivered, files = _gather(directory, note.nodes)
        is_result = Ending(status=note.ending.status).kind == RESULT
        missing = sorted(set(note.nodes) - delivered) if is_result else []
        record = _record(directory, note, facts, not missing, files)
    except (RecordError, PushError, OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        logger.warning("%s: no record can be made of what was delivered (%s): the attempt stays prevented", directory, error)
        return f"it makes no result: {error}"
    publish_sealed(directory / RECORD, record)
    for part in _parts(directory):
        if int(part.name.rpartition("-")[2]) in delivered:
            remove_leftover(part)
    if missing:
        shown = ", ".join(map(str, missing[:MAX_SHOWN]))
        return f"files of other nodes are missing (node {shown}): deliver there too; until then it is no result"
    return f"attempt {directory.name} was prevented ({record['status']}), its files are on storage"


def _gather(directory: Path, nodes: Sequence[int]) -> tuple[set[int], list[File]]:
    """Put the files of the nodes that have delivered together in `directory`. Return these nodes and the files. Raises RecordError for a
    node that has no such position, PushError if a file is not what its node delivered."""
    from data_prep.push import push_files
    from data_prep.push.copy import compare_files, list_name, read_list

    files, delivered = read_list(directory, directory.name), {0}
    for index in nodes[1:]:
        part = directory.with_name(f"{directory.name}.node-{index}")
        if (part / list_name(part.name)).is_file():
            logger.info("attempt %s: the files that node %d delivered are put beside the others", directory.name, index)
            compare_files(part, read_list(part, part.name))
            push_files(part, directory, log_bytes=ANY_BYTES)
        if (directory / list_name(part.name)).is_file():
            files += read_list(directory, part.name)
            delivered.add(index)
    compare_files(directory, files)
    return delivered, [msgspec.convert(file, File) for file in files if file["path"] != RECORD]


def _facts_of(run_dir: Path, note: EndedNote) -> RunFacts:
    """Return the facts of the note, with what the study says of the run. Raises RecordError where its nodes are not of the run."""
    from workflow.study.publishing import find_run, read_resolved

    study, nodes = read_resolved(run_dir.parents[1]), list(note.nodes)
    run = find_run(study, run_dir.name)
    if nodes != sorted(set(nodes)) or nodes[0] != 0 or nodes[-1] >= run.cell.nodes:
        raise RecordError(f"its note names the nodes {nodes[:MAX_SHOWN]}, and the run has {run.cell.nodes}, from 0 on")
    return replace(
        note.facts,
        study=study.study,
        run_id=run_dir.name,
        repeat=run.repeat,
        cell=run.cell,
        result_number=max((result.number for result in results_of(run_dir, study.study)), default=0) + 1,
        warnings=(*note.facts.warnings, LATE),
    )


def _record(directory: Path, note: EndedNote, facts: RunFacts, whole: bool, files: Sequence[File]) -> OwnKeys:
    """Return the record that the attempt has now, if everything that reads records believes it. Raises RecordError."""
    facts = replace(facts, attempt=int(directory.name))
    found = read_measured(str(directory), facts.cell, note.parameters, note.steps, facts.allocation.device, note.ending.status)
    ending = noted_ending(note.ending)
    if not whole:  # until then it is prevented, as its record says
        was = read_sealed(directory / RECORD)
        ending = dataclasses.replace(ending, status=was["status"], reason=was["status_reason"])
    elif ending.status == "ok" and found.contradiction is not None:
        ending = Ending(status="error", reason=found.contradiction)
    record = build_record(facts, ending, note.times, found, files).to_json()
    reading.decoded(json.dumps(record).encode())
    return record


def _parts(directory: Path) -> list[Path]:
    return [path for path in directory.parent.glob(f"{directory.name}.node-*") if path.name.rpartition("-")[2].isdecimal()]


def _is_settled(directory: Path) -> bool:
    """Return True if the record is final: a result, or prevented, with its files listed, and nothing was delivered since."""
    record = _record_of(directory)
    return record.get("kind") == RESULT or (bool(record.get("files")) and not _parts(directory))


def _record_of(directory: Path) -> OwnKeys:
    try:
        record = read_sealed(directory / RECORD)
    except RecordError as error:
        refuse_failing_storage(error)
        return {}
    return record if isinstance(record, dict) else {}


# Pushing the files of one node.


MIN_FILES: Final = 100
"""How many files a node may push, however many nodes share the number that a record takes."""


def names_on_storage(ranks: Sequence[int], index: int) -> Naming:
    """Return how the files of node `index`, with its `ranks`, are named on storage. Rank 0 also writes parameters and checkpoint."""
    from data_prep.push import Naming

    events = tuple(f"events-{rank}.jsonl" for rank in ranks)
    return Naming((*events, PARAMETERS, CHECKPOINT)) if index == 0 else Naming(events, f"of-node-{index}")


def push_node_files(places: tuple[str, str, str], names: Naming, nodes: int) -> list[PushedFile]:
    """Copy what the program wrote, and what we wrote, to storage, and return path, bytes, hash of every file. Runs in a child. `places`:
    both, and the target; `nodes`: how many share the number of files that a record takes."""
    from data_prep.push import MAX_FILES, push_files

    out, own, part = map(Path, places)
    most = max(MIN_FILES, MAX_FILES // nodes)
    return push_files(out, part, own_dir=own, naming=names, most=most)
