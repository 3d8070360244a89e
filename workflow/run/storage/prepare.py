"""Begin a run on network storage: its cell, its allocation, its lease. Runs in a short-lived child with a time limit."""

import hashlib
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from base import errors, logs, publish
from cluster import processes
from cluster.holder import holder_of
from cluster.schedulers import SCHEDULERS, describe_holder, get_scheduler, holder_alive, is_job_of
from cluster.types import Holder
from workflow.run.plan import TAG, allocation_request, attempt_tag
from workflow.run.record.resume import resumable
from workflow.run.record.walltime_budget import budget_of
from workflow.run.storage import attempt, description
from workflow.run.storage import lease as leases
from workflow.run.storage.results import PreparedRun, attempt_numbers, nodes_to_avoid, publish_newest, records, results_of
from workflow.study.cell import SETS, node_sets
from workflow.study.paths import run_dir
from workflow.study.publishing import ResolvedStudy, find_run, read_resolved
from workflow.study.site import refuse_other_scheduler


def prepare(results: str, run_id: str, after: int, supervisor: int, environ: Mapping[str, str]) -> PreparedRun:
    """Read study.json, take the allocation and the lease. Raises ConfigError, AllocationError, LeaseError,
    RecordError, StorageError. `after`: a result later than this number is asked for; 0: any. Where storage has one already, its record is
    published, unless it is, the lease is given back, and nothing is to be trained. Whoever comes too late, or twice, or after Snakemake has
    lost the record, ends here."""
    study = read_resolved(Path(results))
    run, site, limits = find_run(study, run_id), study.site, study.limits
    logs.private_umask(site.shared == "group")
    scheduler = get_scheduler(site.scheduler)
    if not is_job_of(site.scheduler, environ):
        refuse_other_scheduler(site, environ)
    run_dir = Path(results, "runs", run_id)
    avoid = nodes_to_avoid(run_dir, time.time())
    request = allocation_request(run.cell, study.cells, site, _node_set(study, run_id, environ), avoid)
    allocation = scheduler.allocate(request, environ, supervisor)
    holder = holder_of(supervisor, allocation.scheduler, allocation.job_id, allocation.restart_count)
    mine = take_run(run_dir, holder)
    prepared = PreparedRun(
        study=study.study,
        run_id=run_id,
        cell=run.cell,
        dataset_build=description.build_of(study, run.cell),
        repeat=run.repeat,
        site=site,
        limits=limits,
        allocation=allocation,
        attempt=mine.attempt,
        token=mine.token,
        tag=attempt_tag(run_id, mine.attempt, tag_suffix(run_dir, mine.token)),
        result_number=after + 1,
        run_dir=str(run_dir),
        resumable=(),
        done=None,
    )
    found = with_results(prepared)
    if found.done is not None:
        leases.release(run_dir, mine.token)
    return found


def with_results(run: PreparedRun) -> PreparedRun:
    """Make results of the attempts that were delivered, and publish the newest result. Return `run` with what is there now: `done`, where
    it is a result of the number `run.result_number` or a later one. Raises PushError, RecordError, StorageError."""
    run_dir = Path(run.run_dir)
    attempt.complete_delivered(run_dir)
    found = results_of(run_dir, run.study)
    publish_newest(run_dir, found)
    return replace(
        run,
        result_number=max((result.number for result in found), default=0) + 1,
        resumable=tuple(resumable(records(run_dir, attempt_numbers(run_dir)), run.cell, budget_of(run.site, run.limits))),
        done=found[0] if found and found[0].number >= run.result_number else None,
    )


def _node_set(study: ResolvedStudy, run_id: str, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return which of how many sets of the job's nodes this run has, if repeats are on different ones."""
    sets = environ.get(SETS, "")
    if not sets.isdecimal() or int(sets) < 2:
        return None
    taken = node_sets((entry.cell_id for entry in study.runs), int(sets))
    return next(index for entry, index in zip(study.runs, taken, strict=True) if entry.run_id == run_id), int(sets)


def take_run(run_dir: Path, holder: Holder) -> leases.Lease:
    """Take the run for its next attempt, and remove what a dead holder left: half-pushed attempts on storage, and processes of its attempt
    on this machine. Raises LeaseError, StorageError."""

    def next_lease(dead: leases.Lease | None) -> leases.Lease:
        return leases.new_lease(holder, max([0, *attempt_numbers(run_dir), dead.attempt if dead else 0]) + 1)

    mine, dead = leases.acquire(run_dir, next_lease, holder_alive, describe_holder)
    try:
        for part in () if dead is None else (run_dir / "attempts").glob(".*.part-*"):
            publish.remove_leftover(part)
        if dead is not None and dead.holder.boot_id == processes.boot_id():
            theirs = attempt_tag(run_dir.name, dead.attempt, tag_suffix(run_dir, dead.token))
            processes.send(processes.tagged(TAG, lambda tag: tag == theirs), signal.SIGKILL)
    except BaseException:
        leases.release(run_dir, mine.token)
        raise
    return mine


def tag_suffix(run_dir: Path, token: str) -> str:
    """Return the last part of a tag: 16 digits of the run directory's hash, and 8 of the lease's token. The same cell can run for two
    studies on one node, and only the attempts of its own study are a run's earlier ones."""
    return f"{hashlib.sha256(str(run_dir).encode()).hexdigest()[:16]}{token[:8]}"


# Who has a run now, in words: for people who ask why it has no result. In a child with a time limit, since storage may hang.


HOLDERS_S: Final = 8.0
"""The time limit for the answer of each scheduler about all holders."""


def lease_of(directory: Path) -> leases.Lease | None:
    """Return the lease of a run that somebody holds. One that cannot be read is nobody's: who starts the run says what is wrong."""
    try:
        return leases.read_lease(directory)
    except errors.SlipwayError:
        return None


def holder_words(lease: leases.Lease, alive: bool | None) -> str:
    """Describe the holder, and how to end it. One of which it is not known whether it lives counts as alive, as for a supervisor."""
    return f"attempt {lease.attempt}: {describe_holder(lease.holder)}" + ("" if alive else "; whether it lives cannot be seen from here")


def held_runs(results: str, runs: Iterable[str]) -> dict[str, str]:
    """Describe the holders of those `runs` that somebody holds now, with one question to each scheduler."""
    held = {name: lease for name in runs if (lease := lease_of(run_dir(Path(results), name))) is not None}
    by_scheduler: defaultdict[str, list[str]] = defaultdict(list)
    for name, lease in held.items():
        by_scheduler[lease.holder.scheduler].append(name)
    alive: dict[str, bool | None] = {}
    for word, names in by_scheduler.items():
        holders = [held[name].holder for name in names]
        answers = get_scheduler(word).holders_alive(holders, HOLDERS_S) if word in SCHEDULERS else (None,) * len(names)
        alive.update(zip(names, answers, strict=True))
    return {name: holder_words(lease, alive[name]) for name, lease in held.items() if alive[name] is not False}
