"""The work directory of one attempt on one node, in the node-local cache: `out` and `own` are pushed, the rest goes away with them.

<cache>/runs/<run_id>-a<n>-<token>/   out/ (what the program writes: events, parameters, checkpoint)  beat  cell.json
                                      lib/ (slipway_reader, slipway_program, slipway_events.py and its like)
                                      own/ (what only we write: logs/, cell.json, a record that could not be pushed)
                                      resume/ (stop, and the checkpoint this attempt resumes from)
                                      room/ (blocks of the disk for the notes of a result that waits for storage)
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
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from base.errors import RecordError, StagingError
from base.jsonfile import json_text, publish_json, read_json
from base.lock import LockFile
from base.publish import publish_in, reserve
from base.rooms import ROOMS
from base.seal import sealed_text
from base.trusted import trusted_directory
from base.untrusted import directory, entries
from base.userpath import expanded_path
from containers.program_folder import changes, copy
from containers.spec import Paths
from workflow.run.link.orders import Pending, Plan
from workflow.run.node.work_locks import PENDING, hold, remove_held, sweep
from workflow.run.plan import CellDocument
from workflow.run.record.watcher_file import file_name
from workflow.run.storage.results import ENDED, RECORD

if TYPE_CHECKING:
    from data_prep.push import Naming

logger = logging.getLogger(__name__)

MOST_LOOKED_AT: Final = 20_000
OWNER: Final = "run.json"
"""Whose the directory is: {run_dir, attempt}."""
RECORD_BYTES: Final = 256 << 10
NODE_BYTES: Final = 16 << 10
"""Of a record: in all, and more for each node, which has its ranks' files and what was seen of its machine and GPUs in it."""
PENDING_BYTES: Final = 64 << 10
"""Of a note with long paths and many ranks."""
LIBRARY: Final = {
    **{f"slipway_{name}.py": ROOMS / "containers" / "lib" / f"slipway_{name}.py" for name in ("huggingface", "lightning", "keras")},
    "slipway_reader": ROOMS / "data_prep" / "reader",
    "slipway_program": ROOMS / "containers" / "lib" / "slipway_program",
    **{name: ROOMS / "containers" / "lib" / name for name in ("slipway_events.py", "slipway_log.py", "slipway_mpi.py", "slipway_steps.py")},
    **{f"slipway_{name}.py": ROOMS / "containers" / "lib" / f"slipway_{name}.py" for name in ("session", "proxy", "terminal")},
}
"""What programs find of ours on their path, by its name there."""
WATCHDOG: Final = ROOMS / "containers" / "lib" / "slipway_watchdog.py"


def room_bytes(nodes: int) -> dict[str, int]:
    """Note of a result that waits for storage -> what is reserved for it. That of ended.py holds most of what the record does."""
    record = RECORD_BYTES + nodes * NODE_BYTES
    return {RECORD: record, ENDED: record, PENDING: PENDING_BYTES}


def of_run(cache: Path, run_dir: Path, attempt: int | None = None) -> list[Path]:
    """The work directories in `cache` of the run whose directory on storage is `run_dir`: of one attempt, or of all."""
    found = []
    for path in sorted((cache / "runs").glob(f"*/{OWNER}")):
        with contextlib.suppress(RecordError, KeyError, TypeError):
            owner = read_json(path, max_bytes=1 << 16)
            if owner["run_dir"] == str(run_dir) and attempt in (None, owner["attempt"]):
                found.append(path.parent)
    return found


def copy_library(directory: Path) -> None:
    """What programs find of ours, into `directory`."""
    for name, source in LIBRARY.items():
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, directory / name)


def with_own_cache(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """The plan of an attempt with the cache as it is called on this node: `cache.path` of the site file may hold variables of the job.
    Raises StagingError where one is not set here."""
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
    """What happened to the node's cache, and what to do."""
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
        self.room = self.path / "room"
        self.program_files: Mapping[str, str] = {}
        """Those of a program of the study, once they are here."""
        self._lock: LockFile | None = None

    def create(self, run_dir: str, cell: CellDocument | None) -> None:
        """Make it, after removing what dead attempts have left here: those whose lock is free. `run_dir`, the run's directory on storage,
        is noted in it: the one thing that tells whose it is. `cell`: None where a dataset alone is staged."""
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
        for name, source in LIBRARY.items():
            (library / name).symlink_to(source)
        self.beat.touch()
        self.resume.mkdir()
        self.room.mkdir()
        if cell is not None:
            for name, num_bytes in room_bytes(cell.nodes).items():
                reserve(self.room / name, num_bytes)
            (self.path / "cell.json").write_text(json.dumps(cell.to_json(), indent=1, sort_keys=True) + "\n")

    def paths(self, data: str | None, program: str) -> Paths:
        """As the container's specification wants them."""
        return Paths(
            cell=str(self.path / "cell.json"),
            data=data,
            lib=str(self.path / "lib"),
            beat=str(self.beat),
            out=str(self.out),
            resume=str(self.resume),
            program=program,
            control=str(self.path / "control"),
        )

    def bring_library(self) -> None:
        """For a container: copies of what it runs of ours, here. The checkout may lie where root, which mounts, may not look. Reads from
        wherever the checkout is, so it is to be called in a child with a time limit."""
        library = self.path / "lib"
        for name in LIBRARY:
            (library / name).unlink()
        copy_library(library)
        shutil.copyfile(WATCHDOG, library / WATCHDOG.name)

    def bring_program(self, folder: str, digest: str | None, *, own: bool) -> dict[str, str]:
        """A copy of the framework's folder; of a program of the study (`own`) the one that has this digest, and an empty directory where it
        has no folder. Into such a one nothing may be written; its files are told, for `changed_program`. To be called in a child with a
        time limit, like `bring_library`. Raises ConfigError, StagingError, StorageError."""
        if not own:
            shutil.copytree(folder, self.program, ignore=shutil.ignore_patterns("__pycache__"))
            return {}
        files = copy(Path(folder) if folder else None, digest, self.program)
        for place, _, _ in os.walk(self.program, topdown=False):
            Path(place).chmod(0o555)
        return files

    def changed_program(self) -> list[str]:
        """Files of the program's copy here that the program has changed all the same: as root, or after it gave itself the right to."""
        return changes(self.program, self.program_files) if self.program_files else []

    def say_alive(self) -> None:
        """The beat file: whoever watches it ends the container when it gets old."""
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

    def strangers(self) -> list[str]:
        """What in `out` is not ours, as `path of uid N`: something in a container ran as another. It is not pushed. Of very many files the
        nearest are looked at."""
        try:
            with directory(self.out) as out:
                owners = [(entry.path, entry.status.st_uid) for entry in entries(out, MOST_LOOKED_AT)]
        except OSError as error:
            logger.error("%s cannot be looked into: %s", self.out, error.strerror)
            return []
        return sorted(f"{self.out.name}/{path} of uid {owner}" for path, owner in owners if owner != os.geteuid())

    def exists(self) -> bool:
        """Whether `create` was called. What has become of `out` is up to the program."""
        return self.path.is_dir()

    def keep(self, pending: Pending, naming: Naming) -> None:
        """Mark it as a result that waits for storage. Written into the room that was reserved: the disk may be full as well."""
        from data_prep.push import keep_pending

        notes = {RECORD: (pending.record, sealed_text), ENDED: (pending.ended, json_text)}
        for name, (note, text) in notes.items():
            try:
                if note is not None:
                    publish_in(self.room / name, self.own / name, text(note))
            except OSError as error:  # longer than its room: the files are kept without it
                logger.error("%s", cache_failed(error, self.own / name))
        if not self.out.is_dir() or self.out.is_symlink():
            self._make_out()
        keep_pending(self.path, Path(pending.target), pending.reason, own=self.own.name, room=self.room / PENDING, naming=naming)
        if self._lock is not None:
            self._lock.remove()
            self._lock = None

    def _make_out(self) -> None:
        """A program has removed `out`, or exchanged it: only a directory is delivered, be it an empty one, with what is ours beside it."""
        with contextlib.suppress(OSError):
            self.out.unlink(missing_ok=True)
            self.out.mkdir()

    def remove(self) -> None:
        """Take it away."""
        if self._lock is not None:
            remove_held(self.path, self._lock)
            self._lock = None
