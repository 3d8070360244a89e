"""Resume a run from an earlier attempt: which attempt, its checkpoint, and the training of both joined. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from containers.spec import CHECKPOINT
from workflow.run.record.events import MAX_KEPT, RankEvents
from workflow.run.record.model import Checkpoint, File, Performance, RunRecord, Training, WindowSeen
from workflow.run.record.rate import thinned
from workflow.run.record.walltime_budget import Budget
from workflow.study.cell import Cell

RESUMABLE_RESULT: Final = "timeout"
"""The one result that is resumed when it is retried: nothing was wrong with the training, it had too little time."""


OTHER_PROGRAM: Final = "trained with other files in the folder of the program than a later one"
"""The warning of a run whose attempts had different programs: a record has the digest of the last one's."""


class EarlierAttempt(Struct, frozen=True, kw_only=True):
    """An attempt from which another one can resume, with its checkpoint."""

    attempt: int
    step: int
    bytes: int
    """The size of the checkpoint."""
    blake3: str
    """The hash of the checkpoint."""
    program_digest: str | None = None
    """The digest of the folder of the program that trained, where it was one of the study."""
    several_programs: bool = False
    """True if that attempt was resumed from one of another program."""
    used_s: float
    """What was trained of the run's walltime up to here."""
    performance: Performance | None
    window_seen: WindowSeen | None = None
    training: Training | None


def resumable(records: Iterable[RunRecord], cell: Cell, budget: Budget) -> list[EarlierAttempt]:
    """Return the attempts to resume from, the best first.

    `records`: of the run's attempts, the newest first; `budget`: its used_s does not count. Only attempts since the last result count;
    that one too if it ran into its walltime, and there is more of it now. The retry of any other result begins anew.
    """
    found = []
    for record in records:
        earlier = _earlier(record, cell)
        fits = earlier is not None and budget.walltime_s - earlier.used_s >= budget.least_s
        if record.kind == "result" and not (record.status == RESUMABLE_RESULT and fits):
            break
        if earlier is not None and fits:
            found.append(earlier)
    return found


def _earlier(record: RunRecord, cell: Cell) -> EarlierAttempt | None:
    """Return the attempt as one to resume from, or None if it has no checkpoint that was pushed, or is of another cell."""
    file = next((file for file in record.files or () if file.path == CHECKPOINT), None)
    if record.cell != cell or record.checkpoint is None or record.checkpoint.step is None or file is None:
        return None
    digest = record.provenance.program_digest
    return EarlierAttempt(
        attempt=record.attempt,
        step=record.checkpoint.step,
        bytes=file.bytes,
        blake3=file.blake3,
        program_digest=digest if isinstance(digest, str) else None,
        several_programs=any(OTHER_PROGRAM in warning for warning in record.warnings or ()),
        used_s=round((record.resumed_from.used_s if record.resumed_from else 0.0) + (record.steps_s.train or 0.0), 6),
        performance=record.performance,
        window_seen=record.window_seen,
        training=record.training,
    )


def checkpoint_of(events: Mapping[int, RankEvents]) -> Checkpoint | None:
    """Return the last resumable checkpoint that rank 0 reported."""
    resumable = [event for event in (events[0].checkpoints if 0 in events else []) if event.resumable]
    if not resumable or resumable[-1].step is None or resumable[-1].bytes is None:
        return None
    return Checkpoint(step=resumable[-1].step, bytes=resumable[-1].bytes)


def pushed_checkpoint(checkpoint: Checkpoint | None, files: Iterable[File]) -> Checkpoint | None:
    """Return the checkpoint if it is among the files that were pushed."""
    there = checkpoint is not None and any(file.path == CHECKPOINT and file.bytes == checkpoint.bytes for file in files)
    return checkpoint if there else None


def join_training(now: Training | None, earlier: Training | None, step: int) -> Training | None:
    """Add the losses before `step`, and the evaluations until then, of the attempt that this one resumed from."""
    if now is None or earlier is None:
        return now
    losses = (*(entry for entry in earlier.losses or () if entry[0] < step), *(now.losses or ()))
    begin = (*(entry for entry in earlier.first_losses or () if entry[0] < step), *(now.first_losses or ()))
    own = [replace(one, training_s=_sum(one.training_s, earlier.trained_s)) for one in now.evaluations or ()]
    before = [one for one in earlier.evaluations or () if one.step <= step]
    evaluations = {(one.split, one.step): one for one in (*before, *own)}  # one that was made again counts once
    return replace(
        now,
        evaluations=tuple(evaluations.values())[:MAX_KEPT] or now.evaluations,
        trained_s=_sum(now.trained_s, earlier.trained_s),
        first_loss=now.first_loss if earlier.first_loss is None else earlier.first_loss,
        first_losses=begin,
        final_loss=earlier.final_loss if now.final_loss is None else now.final_loss,
        losses=thinned(losses),
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
