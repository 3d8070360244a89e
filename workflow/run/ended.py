"""What a run ended as whose result storage did not take: a note that is delivered with its files, and the result that is made of them.

Until all files of all its nodes are on storage the attempt is `prevented`, since its push was. Then it is the result that it would have
been: its record is built from the note and the events, as the supervisor would have built it. Under the run's lease; in a child with a time
limit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from base.errors import RecordError
from base.jsonfile import read_json
from base.publish import remove_tree
from base.seal import publish_sealed, read_sealed
from workflow.run.attempt import read_measured
from workflow.run.outcome import RESULT, Ending, RankEnd
from workflow.run.record import build_record
from workflow.run.results import ENDED, RECORD, attempt_numbers, results_of

logger = logging.getLogger(__name__)

SCHEMA: Final = "slipway.ended/1"
MAX_BYTES: Final = 64 << 20
LATE: Final = "storage did not take the result when the run ended; it was delivered later (slipway reap --push)"


def ended_note(facts: Mapping[str, Any], ending: Ending, times: Mapping[str, Any], nodes: Sequence[int], parameters: int) -> dict[str, Any]:
    """Pure: what record.build_record needs besides the files. `nodes`: positions of those whose files make the result; `parameters`: of
    the cell's model."""
    end = ending.rank_end
    return {
        "schema": SCHEMA,
        "facts": dict(facts),
        "times": dict(times),
        "nodes": list(nodes),
        "parameters": parameters,
        "ending": {"status": ending.status, "reason": ending.reason, "rank_end": None if end is None else end._asdict()},
    }


def complete_delivered(run_dir: Path) -> None:
    """Make results of the attempts whose files were delivered, all of them. Raises PushError, StorageError."""
    for number in reversed(attempt_numbers(run_dir)):
        directory = run_dir / "attempts" / str(number)
        if not (directory / ENDED).is_file():
            continue
        if not _is_result(directory):
            _complete(run_dir, directory)
        if _is_result(directory):
            for part in directory.parent.glob(f"{number}.node-*"):
                remove_tree(part)


def _complete(run_dir: Path, directory: Path) -> None:
    """A note that is not one of ours makes no result: the attempt stays what its record says."""
    from data_prep.push import push_files
    from data_prep.push.publish import read_back

    try:
        note = read_json(directory / ENDED, max_bytes=MAX_BYTES)
        parts = [directory.with_name(f"{directory.name}.node-{int(index)}") for index in note["nodes"] if int(index)]
        if note["schema"] != SCHEMA or 0 not in note["nodes"] or not all(part.is_dir() for part in parts):
            return
        for part in parts:
            push_files(part, directory)
        files = [{"path": path, "bytes": size, "blake3": digest} for path, (size, digest) in read_back(directory).items() if path != RECORD]
        end = note["ending"]["rank_end"]
        ending = Ending(
            status=note["ending"]["status"],
            reason=note["ending"]["reason"],
            rank_end=None if end is None else RankEnd(**{**end, "ranks": tuple(end["ranks"])}),
        )
        facts = {**note["facts"], "attempt": int(directory.name), "result_number": _next_number(run_dir)}
        facts["warnings"] = [*facts["warnings"], LATE]
        found = read_measured(str(directory), facts["cell"], int(note["parameters"]))
        if ending.status == "ok" and found["contradiction"] is not None:
            ending = Ending(status="error", reason=found["contradiction"])
        record = build_record(facts, ending, note["times"], found, files)
    except (RecordError, KeyError, TypeError, ValueError, AttributeError) as error:
        logger.warning("%s is no note that this version can read (%r): the attempt stays prevented", directory / ENDED, error)
        return
    if record["kind"] == RESULT:
        publish_sealed(directory / RECORD, record)


def _next_number(run_dir: Path) -> int:
    return max((result.number for result in results_of(run_dir)), default=0) + 1


def _is_result(directory: Path) -> bool:
    try:
        return bool(read_sealed(directory / RECORD)["kind"] == RESULT)
    except (RecordError, KeyError, TypeError):
        return False
