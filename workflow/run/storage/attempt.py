"""All that a run does on network storage. Every function runs in a short-lived child with a time limit, takes and returns plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from base.errors import LeaseError
from base.publish import move_directory, part_path, remove_tree
from base.seal import publish_checked, publish_sealed, read_sealed_bytes
from workflow.run.record.events import read_events
from workflow.run.record.machine_load import loads
from workflow.run.record.ok_check import other_device
from workflow.run.record.outcome import RESULT
from workflow.run.record.run_record import measured
from workflow.run.record.size import fitting
from workflow.run.record.steps_asked import StepsAsked, most_steps
from workflow.run.storage import lease as leases
from workflow.run.storage.prepared import PreparedRun
from workflow.run.storage.results import RECORD
from workflow.study.cell import Cell


def make_part(run_dir: str, attempt: int) -> str:
    """A fresh directory beside the attempt's own name, into which the nodes push. Raises OSError."""
    directory = Path(run_dir, "attempts")
    directory.mkdir(parents=True, exist_ok=True)
    part = part_path(directory / str(attempt))
    part.mkdir()
    return str(part)


def read_measured(directory: str, cell: Cell, parameters: int | None, steps: StepsAsked | None, device: str, status: str) -> dict[str, Any]:
    """What the pushed files say: see record.measured, and machine_load.loads under `loads`. `parameters`: of the cell's model, None where
    it is none of ours; `steps`: what was asked of each rank; `device`: of the allocation; `status`: how the attempt ended. Only of one that
    ended well there is a rate that a busy machine can have moved, and a preempted one has no time to read what was seen on many nodes in
    a day."""
    events = read_events(Path(directory), cell.world_size, most=most_steps(cell.to_json(), steps))
    model = None if parameters is None else (cell.model, parameters)
    found = measured(events, cell.world_size, cell.global_batch_size, cell.mode, model, steps)
    return {
        **found,
        "contradiction": found["contradiction"] or other_device(events, device),
        "loads": [[index, load] for index, load in loads(Path(directory), events, cell.to_json()).items()] if status == "ok" else [],
    }


def publish_attempt(run: PreparedRun, part: str, files: Sequence[Mapping[str, Any]], make_record: Callable[[], Mapping[str, Any]]) -> None:
    """The pushed attempt under its name, then, for a result, the run's record.json, last. Raises PushError, StorageError, LeaseError.

    The record is made here, as late as can be, so that its times are those of its publishing. Without the lease,
    nothing is published: the attempt is moved aside, for people. May be called again after a failure.
    """
    from data_prep.push import publish_attempt as publish_files

    run_dir, number = Path(run.run_dir), run.attempt
    target = run_dir / "attempts" / str(number)
    there = Path(part).is_dir()
    record = fitting(make_record())
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
        publish_files(Path(part), list(files), target)
    if record["kind"] == RESULT:
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
