"""Results that waited on this node are delivered, and count as done where they are whole."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from base.errors import PushError, SlipwayError, StorageError
from base.limited import call_limited
from base.names import is_name
from cluster.holding import holder_of
from cluster.schedulers import holder_alive, local
from data_prep.push import Delivery, deliver_pending
from workflow.run.node.caches import refuse_distrusted
from workflow.run.node.limits import DELIVERY_STALL_S
from workflow.run.node.work_locks import remove_delivered
from workflow.run.node.workdir import of_run
from workflow.run.storage import lease as leases
from workflow.run.storage.late_record import complete_delivered
from workflow.run.storage.prepare import describe_holder, sweep_dead
from workflow.run.storage.results import attempt_numbers, publish_newest, results_of

_FILES: Final = re.compile(r"files(\.node-[1-9]\d{0,8})?")
_ATTEMPT: Final = re.compile(r"[1-9]\d{0,8}(\.node-[1-9]\d{0,8})?")


def deliver(cache: Path, storage: Path) -> list[Delivery]:
    """Everything of ours that waits in `cache` goes to `storage`; the results that are whole then are published."""
    results, published = storage / "results", dict[Path, str]()

    def record(target: Path) -> None:
        if target.is_relative_to(results):
            published[target.parents[1]] = _published(target.parents[1])

    found = deliver_pending(cache, partial(check_target, storage), remove=remove_delivered, record=record)
    return [
        replace(one, message=f"{one.message}; {published[one.target.parents[1]]}")
        if one.delivered and one.target.is_relative_to(results)
        else one
        for one in found
    ]


def deliver_run(cache: Path, run_dir: Path, group: bool) -> list[tuple[bool, str]]:
    """Deliver what waits in `cache` of the run whose directory on storage is `run_dir`. Return for each attempt whether it was delivered,
    and a line about it. What cannot be delivered stays. The run's supervisor holds its lease, and makes the results."""
    refuse_distrusted(cache, group=group)
    check = partial(check_target, run_dir.parents[3])
    found = deliver_pending(cache, check, remove=remove_delivered, only=of_run(cache, run_dir))
    return [(one.delivered, f"{one.run_dir.name} waited on this node: {one.message}") for one in found]


def check_target(storage: Path, target: Path) -> None:
    """Raises PushError, RecordError unless `target` is `results/<study>/runs/<run>/attempts/<n>` of `storage`, of a run of a study that is
    there, or `sessions/<session>/files`, of a session that is there, and no link leads elsewhere. A note names it, and where a note lies
    others may write."""
    if target.is_relative_to(storage / "sessions"):
        _check_session(storage / "sessions", target)
        return
    from workflow.study.resolved import find_run, read_resolved

    results = storage / "results"
    parts = target.relative_to(results).parts if target.is_relative_to(results) else ()
    if len(parts) != 5 or (parts[1], parts[3]) != ("runs", "attempts") or not _ATTEMPT.fullmatch(parts[4]) or not is_name(parts[0]):
        raise PushError(
            f"its note names {target}, which is no attempt of a run below {results}: it belongs to another site's storage (--site), "
            "or somebody else wrote the note"
        )
    find_run(read_resolved(results / parts[0]), parts[2])
    for place in [*reversed(target.parents)][-4:]:
        if place.is_symlink():
            raise PushError(f"{place} is a link: results go to their own study only")


def _check_session(sessions: Path, target: Path) -> None:
    parts = target.relative_to(sessions).parts
    if len(parts) != 2 or not is_name(parts[0]) or not _FILES.fullmatch(parts[1]):
        raise PushError(f"its note names {target}, which is not where a session below {sessions} has its files")
    place = target.parent
    if place.is_symlink() or not (place / "session.json").is_file() or place.stat().st_uid != os.geteuid():
        raise PushError(f"{place} is no session of yours: its files go to their own session only")


def publish_delivered(run_dir: Path, pid: int) -> str:
    """Under the run's lease, held by process `pid`: make results of what was delivered, and record.json that of the newest; what the run's
    newest result is, or why it has none. Raises LeaseError where somebody runs it."""
    holder = holder_of(pid, local.NAME, "", 0)
    numbers = attempt_numbers(run_dir)
    mine, dead = leases.acquire(
        run_dir, lambda dead: leases.new_lease(holder, max([0, *numbers, dead.attempt if dead else 0]) + 1), holder_alive, describe_holder
    )
    try:
        if dead is not None:
            sweep_dead(run_dir, run_dir.name, dead)
        reasons = complete_delivered(run_dir)
        found = results_of(run_dir, run_dir.parents[1].name)
        publish_newest(run_dir, found)
    finally:
        leases.release(run_dir, mine.token)
    if found:
        return f"the run's result: attempt {found[0].attempt}, status {found[0].status}"
    return "; ".join(reasons.values()) or "until all nodes have delivered it is no result"


def _published(run_dir: Path) -> str:
    try:
        said: str = call_limited(
            f"record of {run_dir.name}", publish_delivered, run_dir, os.getpid(), timeout_s=DELIVERY_STALL_S, renewed=True
        )
        return said
    except StorageError:
        raise  # the result waits on
    except SlipwayError as error:
        return f"its record is left to the next start of the run: {error}"
