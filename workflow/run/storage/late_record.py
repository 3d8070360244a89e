"""A run whose files storage did not take when it ended: the note that is delivered with them later, and the record that is made of note
and files.

Until all files of all its nodes are on storage the attempt is `prevented`, since its push was. Then it is the result that it would have
been: its record is built from the note and the events, as the supervisor would have built it. A file counts only if it is what its node
delivered. An attempt that was prevented anyway stays so, and its record lists its files. Under the run's lease; in a child with a time
limit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from base.errors import PushError, RecordError
from base.jsonfile import read_json
from base.removing import remove_leftover
from base.seal import publish_sealed, read_sealed
from base.typed import read_as
from workflow.run.record.ended_note import EndedNote, EndingNote
from workflow.run.record.outcome import RESULT, Ending, RankEnd
from workflow.run.record.run_record import build_record
from workflow.run.record.size import fitting
from workflow.run.record.steps_asked import StepsAsked
from workflow.run.storage.attempt import read_measured
from workflow.run.storage.results import ENDED, RECORD, attempt_numbers, refuse_failing_storage, results_of
from workflow.study.cell import Cell

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 64 << 20
MOST_SHOWN: Final = 8
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
        if _is_result(directory):
            said.pop(number, None)
            for part in _parts(directory):
                remove_leftover(part)
    return said


def _completed(run_dir: Path, directory: Path) -> str:
    """A note that is not one of ours makes no result: the attempt stays what its record says. Why it is no result."""
    try:
        note = read_as(EndedNote, read_json(directory / ENDED, max_bytes=MAX_BYTES), directory / ENDED)
        cell, run = _run_of(run_dir, note["nodes"])
        delivered, files = _gather(directory, note["nodes"])
        is_result = Ending(status=note["ending"]["status"]).kind == RESULT
        missing = sorted(set(note["nodes"]) - delivered) if is_result else []
        record = _record(directory, note, cell, run, not missing, files)
    except (RecordError, PushError, OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        logger.warning("%s: no record can be made of what was delivered (%s): the attempt stays prevented", directory, error)
        return f"it makes no result: {error}"
    publish_sealed(directory / RECORD, record)
    for part in _parts(directory):
        if int(part.name.rpartition("-")[2]) in delivered:
            remove_leftover(part)
    if missing:
        shown = ", ".join(map(str, missing[:MOST_SHOWN]))
        return f"files of other nodes are missing (node {shown}): deliver there too; until then it is no result"
    return f"attempt {directory.name} was prevented ({record['status']}), its files are on storage"


def _gather(directory: Path, nodes: Sequence[int]) -> tuple[set[int], list[dict[str, Any]]]:
    """The files of the nodes that have delivered, together in `directory`, and which nodes these are. Raises RecordError for a node that
    has no such position, PushError where a file is not what its node delivered."""
    from data_prep.push import push_files
    from data_prep.push.delivered import list_name, read_list
    from data_prep.push.publish import compare_files

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
    return delivered, [file for file in files if file["path"] != RECORD]


def _run_of(run_dir: Path, nodes: Sequence[int]) -> tuple[Cell, dict[str, Any]]:
    """The cell, and what the record has of the run, as the study says. Raises RecordError where `nodes` are not of it."""
    from workflow.study.resolved import find_run, read_resolved

    study = read_resolved(run_dir.parents[1])
    run = find_run(study, run_dir.name)
    if list(nodes) != sorted(set(nodes)) or nodes[0] != 0 or nodes[-1] >= run.cell.nodes:
        raise RecordError(f"its note names the nodes {list(nodes)[:MOST_SHOWN]}, and the run has {run.cell.nodes}, from 0 on")
    number = max((result.number for result in results_of(run_dir, study.study)), default=0) + 1
    own = {"study": study.study, "run_id": run_dir.name, "repeat": run.repeat, "result_number": number}
    return run.cell, {**own, "cell": run.cell.to_json()}


def _record(
    directory: Path, note: EndedNote, cell: Cell, run: Mapping[str, Any], whole: bool, files: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the attempt is now, if everything that reads records believes it. Raises RecordError, NotBelieved."""
    from workflow.run.record.model import validate_record

    facts = {**note["facts"], **run, "attempt": int(directory.name), "warnings": [*note["facts"]["warnings"], LATE]}
    steps = StepsAsked(*note["steps"]) if "steps" in note else None
    device, status = note["facts"]["allocation"]["device"], note["ending"]["status"]
    found = read_measured(str(directory), cell, note["parameters"], steps, device, status)
    record = dict(
        fitting(build_record(facts, _ending(directory, note["ending"], whole, found["contradiction"]), note["times"], found, files))
    )
    validate_record(record)
    return record


def _ending(directory: Path, said: EndingNote, whole: bool, contradiction: str | None) -> Ending:
    """That of the run; while files are missing what its record says, which is prevented."""
    end: Any = said["rank_end"]
    rank_end = None if end is None else RankEnd(**{**end, "ranks": tuple(end["ranks"])})
    if not whole:
        record = read_sealed(directory / RECORD)
        return Ending(status=record["status"], reason=record["status_reason"], rank_end=rank_end)
    if said["status"] == "ok" and contradiction is not None:
        return Ending(status="error", reason=contradiction)
    return Ending(status=said["status"], reason=said["reason"], rank_end=rank_end)


def _parts(directory: Path) -> list[Path]:
    """Those of other nodes, as they were delivered."""
    return [path for path in directory.parent.glob(f"{directory.name}.node-*") if path.name.rpartition("-")[2].isdecimal()]


def _is_result(directory: Path) -> bool:
    return _said(directory).get("kind") == RESULT


def _is_settled(directory: Path) -> bool:
    """Whether its record needs no other look: a result; prevented, with its files listed, and nothing was delivered since."""
    record = _said(directory)
    return record.get("kind") == RESULT or (bool(record.get("files")) and not _parts(directory))


def _said(directory: Path) -> dict[str, Any]:
    try:
        record = read_sealed(directory / RECORD)
    except RecordError as error:
        refuse_failing_storage(error)
        return {}
    return record if isinstance(record, dict) else {}
