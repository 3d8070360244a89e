"""Manage the work directory of an attempt on one node's disk: `out` and `own` are pushed, or kept if storage is full, the rest is removed.

<cache>/runs/<run_id>-a<n>-<token>/   out/ (what the program writes: events, parameters, checkpoint)  beat  cell.json
                                      lib/ (slipway_reader, slipway_program, slipway_events.py and its like)
                                      own/ (what only we write: logs/, cell.json, a record that could not be pushed)
                                      resume/ (stop, and the checkpoint this attempt resumes from)
                                      run.json (whose this is: the run's directory on storage, the attempt)
Only `out` can be written to in a container, and `own` is not in it at all: nothing of ours is written where a link may lie.
for a container: program/ (the framework's folder), lib/ with copies, control/ (of engine and watchdog)
for a program of the study: program/ (a copy of its folder)
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as dataclass_replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from base.calls import call_limited
from base.errors import PushError, RecordError, SlipwayError, StagingError, StorageError
from base.humanize import expanded_path, is_name
from base.jsonfile import publish_json, read_json
from base.lock import LockFile, has_name, try_lock
from base.process import CODE_ROOT
from base.publish import publish, remove_leftover
from base.seal import sealed_text
from base.untrusted import NEVER_FOLLOW, trusted_directory
from cluster.holder import holder_of
from cluster.schedulers import local
from containers import program_folder, spec
from data_prep.push import Delivery, deliver_pending
from workflow.run.link.commands import Pending, Plan
from workflow.run.node import caches, limits
from workflow.run.plan import CellDocument
from workflow.run.record.machine_load import file_name
from workflow.run.storage import lease as leases
from workflow.run.storage.attempt import complete_delivered
from workflow.run.storage.prepare import take_run
from workflow.run.storage.results import ENDED, RECORD, publish_newest, results_of

if TYPE_CHECKING:
    from data_prep.push import Naming


# Locks of work directories. Each has a lock file beside it, which is free when its node program has ended.
#
# A node that lost its power cleans up nothing, and the run goes on elsewhere: the next start of any run on that node, or `slipway reap`,
# takes away what is nobody's. Whose a directory is, its name does not tell: two studies of one user may hold the same cell, and run it on
# one node at the same time. So a directory is removed only by the process that holds its lock, and only where the lock is this user's own
# file.


PENDING: Final = "pending.json"


def hold(directory: Path) -> LockFile:
    """Take the lock of a work directory that is about to be made. It goes when the directory is gone or waits for storage."""
    lock = LockFile(_lock_of(directory))
    lock.take()
    return lock


def remove_delivered(directory: Path, remove: Callable[[Path], str | None] = remove_leftover) -> None:
    """Remove a work directory that waited for storage. Its lock stays until all of it is gone: what a kill leaves is swept."""
    lock = hold(directory)
    (directory / PENDING).unlink(missing_ok=True)
    remove_held(directory, lock, remove)


def remove_held(directory: Path, lock: LockFile, remove: Callable[[Path], str | None] = remove_leftover) -> None:
    """Remove a work directory whose lock we have. The lock's file stays where something of the directory does, for the next sweep."""
    if remove(directory) is None:
        lock.remove()
    else:
        lock.close()


def sweep(runs: Path, remove: Callable[[Path], str | None] = remove_leftover, *, act: bool = True) -> dict[str, str | None]:
    """Remove the work directories of ours in `runs` in which nobody is at work, but for those that wait for storage. Return their names,
    each with None, or with why something of it stays: that keeps nobody from working there. Without `act` nothing is removed."""
    swept: dict[str, str | None] = {}
    directories = {_lock_of(path): path for path in runs.glob("[!.]*") if path.is_dir()}
    for path in sorted(runs.glob(".*.lock")):
        directory = directories.get(path)
        try:
            descriptor = os.open(path, os.O_RDWR | NEVER_FOLLOW)
        except OSError:
            continue  # gone meanwhile, another user's, or no lock at all
        try:
            if not (_is_ours(descriptor) and try_lock(descriptor) and has_name(descriptor, path)):
                continue
            problem = None
            if directory is not None and not (directory / PENDING).exists():
                problem = swept[directory.name] = remove(directory) if act else None
            if act and problem is None:
                remove_leftover(path)
        finally:
            os.close(descriptor)
    return swept


def _is_ours(descriptor: int) -> bool:
    """Return True for a regular file of this user: root may open the locks of everybody."""
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _lock_of(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.lock")


logger = logging.getLogger(__name__)

OWNER: Final = "run.json"
"""The file that names the owner of the directory: {run_dir, attempt}."""
WATCHDOG: Final = CODE_ROOT / "containers" / "lib" / "slipway_watchdog.py"
LIBRARY: Final = {
    "slipway_reader": CODE_ROOT / "data_prep" / "reader",
    **{path.name: path for path in sorted(WATCHDOG.parent.glob("slipway_*")) if path != WATCHDOG},
}
"""What programs find of ours on their path, by its name there."""


def of_run(cache: Path, run_dir: Path, attempt: int | None = None) -> list[Path]:
    """List the work directories in `cache` of the run whose directory on storage is `run_dir`: of one attempt, or of all."""
    found = []
    for path in sorted((cache / "runs").glob(f"*/{OWNER}")):
        with contextlib.suppress(RecordError, KeyError, TypeError):
            owner = read_json(path, max_bytes=1 << 16)
            if owner["run_dir"] == str(run_dir) and attempt in (None, owner["attempt"]):
                found.append(path.parent)
    return found


def library_of(more: Sequence[str]) -> dict[str, Path]:
    """Return what a program finds on its path, by its name there: LIBRARY, and the folders of its framework's `library`."""
    return {Path(folder).name: Path(folder) for folder in more} | LIBRARY


def copy_library(directory: Path, more: Sequence[str] = ()) -> None:
    """Copy what programs import of ours into `directory`."""
    for name, source in library_of(more).items():
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, directory / name)


def with_own_cache(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """Return the plan with the path of the cache on this node. Raises StagingError if a variable in `cache.path` is not set here."""
    if plan.cache_place is None:
        return plan
    try:
        cache, ranks = str(expanded_path(plan.cache, environ)), plan.ranks
        if ranks is not None and ranks.image is not None:
            own = str(expanded_path(ranks.image.cache, environ))
            ranks = replace(ranks, image=replace(ranks.image, cache=own))
        return replace(plan, cache=cache, ranks=ranks)
    except ValueError as error:
        raise StagingError(
            f"{plan.cache_place}: cache.path: {error}; let the scheduler or `setup` of the site file set it on every node, or write a path "
            "without variables"
        ) from error


def cache_failed(error: OSError, path: Path) -> str:
    """Explain what happened to the node's cache, and what to do."""
    if isinstance(error, FileNotFoundError):
        why = "somebody removed it while the run was at work, such as a cleaner of old files: keep it off the cache"
    else:
        why = "the node's disk fails or is full: look at the node's kernel log and at the room there"
    return f"{path} in this node's cache cannot be used any more ({error.strerror}): {why}"


class WorkDirectory:
    """One attempt's files here. All functions touch the node's own disk only."""

    def __init__(self, cache: Path, tag: str) -> None:
        self.path = cache / "runs" / tag
        self.out = self.path / "out"
        self.own = self.path / "own"
        self.logs = self.own / "logs"
        self.beat = self.path / "beat"
        self.resume = self.path / "resume"
        self.program = self.path / "program"
        self._lock: LockFile | None = None

    def create(self, run_dir: str, cell: CellDocument | None, more: Sequence[str] = ()) -> None:
        """Make it, after removing what dead attempts have left here: those whose lock is free. `run_dir`, the run's directory on storage,
        is noted in it: the one thing that tells whose it is. `cell`: None where a dataset alone is staged. `more`: `library` of the
        framework."""
        trusted_directory(self.path.parent, group=True)  # the cache itself was looked at when the dataset came
        for name, problem in sweep(self.path.parent).items():
            if problem is None:
                logger.info("removed %s, which a dead attempt has left", name)
        self._lock = hold(self.path)
        self.path.mkdir()
        publish_json(self.path / OWNER, {"run_dir": run_dir, "attempt": None if cell is None else cell.attempt})
        self.out.mkdir()
        self.logs.mkdir(parents=True)
        library = self.path / "lib"
        library.mkdir()
        for name, source in library_of(more).items():
            (library / name).symlink_to(source)
        self.beat.touch()
        self.resume.mkdir()
        if cell is not None:
            (self.path / "cell.json").write_text(json.dumps(cell.to_json(), indent=1, sort_keys=True) + "\n")

    def paths(self, data: str | None, program: str) -> spec.Paths:
        return spec.Paths(
            cell=str(self.path / "cell.json"),
            data=data,
            lib=str(self.path / "lib"),
            beat=str(self.beat),
            out=str(self.out),
            resume=str(self.resume),
            program=program,
            control=str(self.path / "control"),
        )

    def bring_library(self, more: Sequence[str]) -> None:
        """Copy what a container runs of ours: root, which mounts, may have no access to the checkout. Runs in a child."""
        library = self.path / "lib"
        for name in library_of(more):
            (library / name).unlink()
        copy_library(library, more)
        shutil.copyfile(WATCHDOG, library / WATCHDOG.name)

    def bring_program(self, folder: str, digest: str | None, *, own: bool) -> None:
        """Copy the framework's folder; of a program of the study (`own`) the one that has this digest, or make an empty directory if it has
        no folder. That copy may not be written to. Runs in a child with a time limit, like `bring_library`. Raises ConfigError,
        StagingError, StorageError."""
        if not own:
            shutil.copytree(folder, self.program, ignore=shutil.ignore_patterns("__pycache__"))
            return
        program_folder.copy(Path(folder) if folder else None, digest, self.program)
        for place, _, _ in os.walk(self.program, topdown=False):
            Path(place).chmod(0o555)

    def renew_heartbeat(self) -> None:
        """Update the heartbeat file: whoever watches it ends the container when it gets old."""
        os.utime(self.beat)

    def collect(self, index: int, log: str, load: bytes) -> None:
        """Write down what else is pushed from this node, as far as there is room. `load`: what its watchers have seen."""
        try:
            if index == 0:
                shutil.copyfile(self.path / "cell.json", self.own / "cell.json")
            (self.logs / f"node-{index}.log").write_text(log)
            if load:
                (self.own / file_name(index)).write_bytes(load)
        except OSError as error:
            logger.error("%s", cache_failed(error, self.own))

    def exists(self) -> bool:
        """Return True if `create` was called: `out` is up to the program."""
        return self.path.is_dir()

    def keep(self, pending: Pending, naming: Naming) -> None:
        """Mark it as a result that waits for storage. Where this disk is full as well the result is lost, and the run is made again."""
        from data_prep.push import keep_pending

        try:
            if pending.record is not None:
                publish(self.own / RECORD, sealed_text(pending.record))
            if pending.ended is not None:
                publish_json(self.own / ENDED, pending.ended)
            if not self.out.is_dir() or self.out.is_symlink():
                self._make_out()
            keep_pending(self.path, Path(pending.target), pending.reason, own=self.own.name, naming=naming)
        except OSError as error:
            logger.error("the result of this attempt is lost, and the same command makes the run again: %s", cache_failed(error, self.path))
            return
        if self._lock is not None:
            self._lock.remove()
            self._lock = None

    def _make_out(self) -> None:
        """Make `out` anew if the program has removed or exchanged it: only a directory is delivered."""
        with contextlib.suppress(OSError):
            self.out.unlink(missing_ok=True)
            self.out.mkdir()

    def remove(self) -> None:
        if self._lock is not None:
            remove_held(self.path, self._lock)
            self._lock = None


# Delivery of results that waited on this node.


_FILES: Final = re.compile(r"files(\.node-[1-9]\d{0,8})?")
_ATTEMPT: Final = re.compile(r"[1-9]\d{0,8}(\.node-[1-9]\d{0,8})?")


def deliver(cache: Path, storage: Path) -> list[Delivery]:
    """Deliver everything of ours that waits in `cache` to `storage`, and publish the results that are whole then."""
    results, published = storage / "results", dict[Path, str]()

    def record(target: Path) -> None:
        if target.is_relative_to(results):
            published[target.parents[1]] = _published(target.parents[1])

    found = deliver_pending(cache, partial(check_target, storage), remove=remove_delivered, record=record)
    return [
        dataclass_replace(one, message=f"{one.message}; {published[one.target.parents[1]]}")
        if one.delivered and one.target.is_relative_to(results)
        else one
        for one in found
    ]


def deliver_run(cache: Path, run_dir: Path, group: bool) -> list[tuple[bool, str]]:
    """Deliver what waits in `cache` of the run whose directory on storage is `run_dir`. Return for each attempt whether it was delivered,
    and a line about it. What cannot be delivered stays. The run's supervisor holds its lease, and makes the results."""
    caches.refuse_distrusted(cache, group=group)
    check = partial(check_target, run_dir.parents[3])
    found = deliver_pending(cache, check, remove=remove_delivered, only=of_run(cache, run_dir))
    return [(one.delivered, f"{one.run_dir.name} waited on this node: {one.message}") for one in found]


def check_target(storage: Path, target: Path) -> None:
    """Raise PushError, RecordError unless `target` is `results/<study>/runs/<run>/attempts/<n>` of `storage`, of a run of a study that is
    there, or `sessions/<session>/files`, of a session that is there, and no link leads elsewhere. A note names it, and where a note lies
    others may write."""
    if target.is_relative_to(storage / "sessions"):
        _check_session(storage / "sessions", target)
        return
    from workflow.study.publishing import find_run, read_resolved

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
    """Make results of what was delivered, and record.json that of the newest, under the run's lease, held by process `pid`. Return what the
    run's newest result is, or why it has none. Raises LeaseError if somebody runs it."""
    mine = take_run(run_dir, holder_of(pid, local.NAME, "", 0))
    try:
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
            f"record of {run_dir.name}", publish_delivered, run_dir, os.getpid(), timeout_s=limits.DELIVERY_STALL_S, renewed=True
        )
        return said
    except StorageError:
        raise  # the result waits on
    except SlipwayError as error:
        return f"its record is left to the next start of the run: {error}"
