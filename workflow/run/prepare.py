"""The beginning of a run on network storage: its cell, its allocation, its lease. Runs in a short-lived child with a time limit."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from base.errors import RecordError
from base.jsonfile import read_json
from base.logs import private_umask
from base.publish import remove_tree
from cluster import processes
from cluster.schedulers import SCHEDULERS, get_scheduler
from cluster.types import Holder
from workflow.run import lease as leases
from workflow.run.attempt import RECORD
from workflow.run.outcome import RESULT
from workflow.run.plan import TAG, allocation_request, attempt_tag


def prepare(results: str, run_id: str, wanted: int, supervisor: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Read study.json, take the allocation and the lease. Raises ConfigError, AllocationError, LeaseError, RecordError, StorageError.

    `wanted`: the number of the result that is asked for, 1 for the first.

    Returns study, cell, repeat, site, limits, allocation, attempt, token, tag, result_number, run_dir, and `done`: the number of an attempt
    that was pushed whole by a holder who died before he could publish it as the run's result.
    """
    from workflow.study.resolved import find_run, read_resolved

    content = read_resolved(Path(results))
    run = find_run(content, run_id)
    cell, site = run.cell.to_json(), content["site"]
    private_umask(site["shared"] == "group")
    scheduler = get_scheduler(site["scheduler"])
    if not scheduler.detect(environ):
        from workflow.study.site import Site, refuse_foreign_scheduler

        refuse_foreign_scheduler(Site.from_json(site), environ)
    limits = content["limits"]
    request = allocation_request(cell, content["cells"], site, limits["walltime_s"])
    allocation = scheduler.allocate(request, environ, supervisor)
    run_dir = Path(results, "runs", run_id)
    holder = leases.holder_of(supervisor, allocation.scheduler, allocation.job_id, allocation.restart_count)
    mine, dead = leases.acquire(run_dir, lambda found: _next_lease(run_dir, holder, found), holder_alive, describe_holder)
    if dead is not None:
        _sweep(run_dir, run_id, dead)
    return {
        "study": content["study"],
        "run_id": run_id,
        "cell": cell,
        "repeat": run.repeat,
        "site": site,
        "limits": limits,
        "allocation": allocation.to_json(),
        "attempt": mine.attempt,
        "token": mine.token,
        "tag": attempt_tag(run_id, mine.attempt, mine.token),
        "result_number": _num_results(run_dir) + 1,
        "run_dir": str(run_dir),
        "done": None if dead is None else _unpublished(run_dir, dead.attempt, wanted),
    }


def _next_lease(run_dir: Path, holder: Holder, dead: leases.Lease | None) -> leases.Lease:
    numbers = [*_attempts(run_dir), dead.attempt if dead else 0]
    return leases.new_lease(holder, max(numbers) + 1)


def _attempts(run_dir: Path) -> list[int]:
    """Numbers of the attempts on storage, those that lost their lease included."""
    directory = run_dir / "attempts"
    if not directory.is_dir():
        return [0]
    found = [entry.name.split(".")[0] for entry in directory.iterdir() if not entry.name.startswith(".")]
    return [0, *(int(name) for name in found if name.isdigit())]


def _num_results(run_dir: Path) -> int:
    """How many attempts are results; an unreadable record is none."""
    count = 0
    for number in set(_attempts(run_dir)):
        path = run_dir / "attempts" / str(number) / RECORD
        try:
            count += path.is_file() and read_json(path)["kind"] == RESULT
        except (RecordError, KeyError, TypeError):
            continue
    return count


def _unpublished(run_dir: Path, attempt: int, wanted: int) -> int | None:
    """`attempt` if it is on storage as a whole result, the wanted one or a later, that no record.json of the run tells of yet."""
    path = run_dir / "attempts" / str(attempt) / RECORD
    if not path.is_file() or (run_dir / RECORD).exists():
        return None
    record = read_json(path)
    return attempt if record["kind"] == RESULT and record["result_number"] >= wanted else None


def _sweep(run_dir: Path, run_id: str, dead: leases.Lease) -> None:
    """What the dead holder left: half-pushed attempts on storage, processes of its attempt on this machine."""
    for part in (run_dir / "attempts").glob(".*.part-*"):
        remove_tree(part)
    if dead.holder.boot_id == processes.boot_id():
        left = processes.tagged(TAG, attempt_tag(run_id, dead.attempt, dead.token))
        processes.send(left, signal.SIGKILL)


def holder_alive(holder: Holder) -> bool | None:
    """Whether the holder of a lease lives, by its scheduler; None where that scheduler is unknown here."""
    scheduler = SCHEDULERS.get(holder.scheduler)
    return None if scheduler is None else scheduler.holder_alive(holder)


def describe_holder(holder: Holder) -> str:
    """For the message that refuses a run."""
    scheduler = SCHEDULERS.get(holder.scheduler)
    return f"job {holder.job_id} of {holder.scheduler} on {holder.host}" if scheduler is None else scheduler.describe_holder(holder)
