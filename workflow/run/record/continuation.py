"""Several attempts that are one training: which checkpoint the next one resumes from, what its record takes from the one before. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, NotRequired, TypedDict

from base.chunks import chunks_name
from base.errors import RecordError
from base.typed import Count, Digest, FromOne, Like, Seconds, read_as
from containers.spec import CHECKPOINT
from workflow.run.record.deadline import Budget
from workflow.run.record.events import RankEvents
from workflow.run.record.performance import thinned
from workflow.study.cell import Cell

RESUMABLE_RESULT: Final = "timeout"
"""The one result that is resumed when it is retried: nothing was wrong with the training, it had too little time."""


OTHER_PROGRAM: Final = "trained with other files in the folder of the program than a later one"
"""In the warning of a run whose attempts had different programs: a record has the digest of the last one's."""


class _File(TypedDict):
    path: str
    bytes: Count
    blake3: Digest


class _Checkpoint(TypedDict):
    step: Count


class _Steps(TypedDict):
    train: Seconds | None


class _Before(TypedDict):
    used_s: Seconds


class _Training(TypedDict):
    losses: list[tuple[int, float]]
    first_losses: NotRequired[list[tuple[int, float]] | None]
    first_loss: float | None
    final_loss: float | None


class _Attempt(TypedDict):
    """What must stand in a record from which another attempt goes on."""

    attempt: FromOne
    cell: Cell
    files: list[_File]
    checkpoint: NotRequired[_Checkpoint | None]
    steps_s: _Steps
    resumed_from: NotRequired[_Before | None]
    provenance: NotRequired[dict[str, Any] | None]
    warnings: NotRequired[list[str]]
    performance: dict[str, Any] | None
    window_seen: NotRequired[dict[str, Any] | None]
    training: Annotated[dict[str, Any], Like(_Training)] | None


@dataclass(frozen=True, kw_only=True)
class EarlierAttempt:
    """An attempt from which another one can resume, with its checkpoint."""

    attempt: int
    step: int
    bytes: int
    """Of the checkpoint."""
    blake3: str
    """Of the checkpoint."""
    listed: bool
    """Whether the list of its chunks is beside it: not so of a version before."""
    program_digest: str | None = None
    """Of the files in the folder of the program that trained, where it was one of the study."""
    several_programs: bool = False
    """Whether that attempt was resumed from one of another program."""
    used_s: float
    """What was trained of the run's walltime up to here."""
    performance: dict[str, Any] | None
    window_seen: dict[str, Any] | None = None
    training: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON can carry."""
        return asdict(self)


def resumable(records: Iterable[Mapping[str, Any]], cell: Cell, budget: Budget) -> list[EarlierAttempt]:
    """The attempts to resume from, the best first. `records`: of the run's attempts, the newest first; `budget`: used_s does not count.

    Only attempts since the last result; that one too if it ran into its walltime, and there is more of it now. The retry of any other
    result begins anew.
    """
    found = []
    for record in records:
        offer = _offer(record, cell)
        fits = offer is not None and budget.walltime_s - offer.used_s >= budget.least_s
        if isinstance(record, dict) and record.get("kind") == "result" and not (record.get("status") == RESUMABLE_RESULT and fits):
            break
        if offer is not None and fits:
            found.append(offer)
    return found


def _offer(record: Mapping[str, Any], cell: Cell) -> EarlierAttempt | None:
    """What the attempt offers, None: it has no checkpoint that was pushed, or it is not a record."""
    try:
        found = read_as(_Attempt, record, "a record")
    except RecordError:
        return None
    checkpoint, before = found.get("checkpoint"), found.get("resumed_from")
    file = next((file for file in found["files"] if file["path"] == CHECKPOINT), None)
    if found["cell"] != cell or checkpoint is None or file is None:
        return None
    return EarlierAttempt(
        attempt=found["attempt"],
        step=checkpoint["step"],
        bytes=file["bytes"],
        blake3=file["blake3"],
        listed=any(other["path"] == chunks_name(CHECKPOINT) for other in found["files"]),
        program_digest=(found.get("provenance") or {}).get("program_digest"),
        several_programs=any(OTHER_PROGRAM in warning for warning in found.get("warnings", ())),
        used_s=round((before["used_s"] if before else 0.0) + (found["steps_s"]["train"] or 0.0), 6),
        performance=found["performance"],
        window_seen=found.get("window_seen"),
        training=found["training"],
    )


def checkpoint_of(events: Mapping[int, RankEvents]) -> dict[str, int] | None:
    """{step, bytes} of the last checkpoint that rank 0 told of and that a run can resume from."""
    said = [event for event in (events[0].checkpoints if 0 in events else []) if event.get("resumable") is True]
    step, size = (said[-1].get(key) for key in ("step", "bytes")) if said else (None, None)
    return None if step is None or size is None else {"step": step, "bytes": size}


def pushed_checkpoint(found: Mapping[str, Any], files: Iterable[Mapping[str, Any]]) -> dict[str, int] | None:
    """The checkpoint of `checkpoint_of`, where it is among the files that were pushed."""
    checkpoint: dict[str, int] | None = found.get("checkpoint")
    there = checkpoint is not None and any(file["path"] == CHECKPOINT and file["bytes"] == checkpoint["bytes"] for file in files)
    return checkpoint if there else None


def resumed_from(earlier: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """As the record has it."""
    return None if earlier is None else {key: earlier[key] for key in ("attempt", "step", "used_s")}


def joined(found: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the events of this attempt say, with what only the attempt it went on from can: `found` and the result have the keys of
    record.measured. The window is this attempt's; that of the earlier one counts only where this one had no step left to measure."""
    if earlier is None:
        return dict(found)
    return {
        **found,
        "performance": found.get("performance") or earlier["performance"],
        "training": _joined_training(found.get("training"), earlier["training"], earlier["step"]),
    }


def _joined_training(now: Any, before: Any, step: int) -> Any:
    if now is None or before is None:
        return now
    losses = [*(entry for entry in before["losses"] if entry[0] < step), *now["losses"]]
    final = now["final_loss"] if now["final_loss"] is not None else before["final_loss"]
    first = before["first_loss"] if before["first_loss"] is not None else now["first_loss"]
    begin = [*(entry for entry in before.get("first_losses") or () if entry[0] < step), *(now.get("first_losses") or ())]
    return {**now, "first_loss": first, "first_losses": begin, "final_loss": final, "losses": thinned(losses)}
