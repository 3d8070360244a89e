"""The beginning of a run on network storage: its cell, its allocation, its lease. Runs in a short-lived child with a time limit."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from base.errors import RecordError
from base.logs import private_umask
from base.publish import remove_tree
from base.seal import read_sealed
from cluster import processes
from cluster.holding import holder_of
from cluster.schedulers import SCHEDULERS, get_scheduler
from cluster.types import Holder
from workflow.run import lease as leases
from workflow.run.attempt import RECORD
from workflow.run.chain import resumable
from workflow.run.deadline import budget_of
from workflow.run.outcome import RESULT
from workflow.run.plan import TAG, allocation_request, attempt_tag
from workflow.study.spread import SETS, node_sets


def prepare(results: str, run_id: str, wanted: int, supervisor: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Read study.json, take the allocation and the lease. Raises ConfigError, AllocationError, LeaseError, RecordError, StorageError.

    `wanted`: the number of the result that is asked for, 1 for the first.

    Returns study, cell, repeat, site, limits, allocation, attempt, token, tag, result_number, run_dir, `resumable` (attempts to go
    on from, of chain.resumable), and `done`: the number of an attempt
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
    request = allocation_request(cell, content["cells"], site, limits["walltime_s"], _node_set(content, run_id, environ))
    allocation = scheduler.allocate(request, environ, supervisor)
    run_dir = Path(results, "runs", run_id)
    holder = holder_of(supervisor, allocation.scheduler, allocation.job_id, allocation.restart_count)
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
        "tag": attempt_tag(run_id, mine.attempt, where_and_who(run_dir, mine.token)),
        "result_number": _num_results(run_dir) + 1,
        "run_dir": str(run_dir),
        "resumable": _resumable(run_dir, cell, site, limits),
        "done": None if dead is None else _unpublished(run_dir, dead.attempt, wanted),
    }


def _node_set(content: Mapping[str, Any], run_id: str, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Where the job's nodes are divided into sets, so that repeats are on different ones: this run's, and how many there are."""
    sets = environ.get(SETS, "")
    if not sets.isdecimal() or int(sets) < 2:
        return None
    taken = node_sets((entry["cell_id"] for entry in content["runs"]), int(sets))
    return next(index for entry, index in zip(content["runs"], taken, strict=True) if entry["run_id"] == run_id), int(sets)


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
            count += path.is_file() and read_sealed(path)["kind"] == RESULT
        except (RecordError, KeyError, TypeError):
            continue
    return count


def _resumable(run_dir: Path, cell: Mapping[str, Any], site: Mapping[str, Any], limits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The attempts to go on from: see chain.resumable. An unreadable record is no attempt."""
    numbers = sorted({number for number in _attempts(run_dir) if number}, reverse=True)
    return resumable(_records(run_dir, numbers), cell, budget_of(site, limits))


def _records(run_dir: Path, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    for number in numbers:
        path = run_dir / "attempts" / str(number) / RECORD
        try:
            if path.is_file():
                yield read_sealed(path)
        except RecordError:
            continue


def _unpublished(run_dir: Path, attempt: int, wanted: int) -> int | None:
    """`attempt` if it is on storage as a whole result, the wanted one or a later, that no record.json of the run tells of yet. One whose
    record is not what was written is no result."""
    path = run_dir / "attempts" / str(attempt) / RECORD
    if not path.is_file() or (run_dir / RECORD).exists():
        return None
    try:
        record = read_sealed(path)
    except RecordError:
        return None
    return attempt if record["kind"] == RESULT and record["result_number"] >= wanted else None


def _sweep(run_dir: Path, run_id: str, dead: leases.Lease) -> None:
    """What the dead holder left: half-pushed attempts on storage, processes of its attempt on this machine."""
    for part in (run_dir / "attempts").glob(".*.part-*"):
        remove_tree(part)
    if dead.holder.boot_id == processes.boot_id():
        theirs = attempt_tag(run_id, dead.attempt, where_and_who(run_dir, dead.token))
        left = processes.tagged(TAG, lambda tag: tag == theirs)
        processes.send(left, signal.SIGKILL)


def where_and_who(run_dir: Path, token: str) -> str:
    """Pure: for a tag: 16 letters that are the same in all attempts of this run directory and of no other, and the holding's token. The
    same cell can run for two studies on one node, and only the attempts of its own study are a run's earlier ones."""
    return f"{hashlib.sha256(str(run_dir).encode()).hexdigest()[:16]}{token[:8]}"


def holder_alive(holder: Holder) -> bool | None:
    """Whether the holder of a lease lives, by its scheduler; None where that scheduler is unknown here."""
    scheduler = SCHEDULERS.get(holder.scheduler)
    return None if scheduler is None else scheduler.holder_alive(holder)


def describe_holder(holder: Holder) -> str:
    """For the message that refuses a run."""
    scheduler = SCHEDULERS.get(holder.scheduler)
    return f"job {holder.job_id} of {holder.scheduler} on {holder.host}" if scheduler is None else scheduler.describe_holder(holder)
