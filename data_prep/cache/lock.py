"""Lock a dataset on this node, so that one process at a time stages, leases or removes it.

The lock is flock, which ends with the process, however it ends. The holder writes its work and its progress into the lock file. A lease is
a small file of a user of a dataset, which keeps it from eviction.
"""

import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base.errors import LeaseError
from base.jsonfile import canonical_json, json_line, parse_json
from base.lock import LockFile
from base.publish import publish, remove_leftover
from base.sanitize import text, whole
from cluster.holder import holder_of, lives
from cluster.types import CacheUser, Holder
from data_prep.cache.layout import Cache, dataset_name
from data_prep.cache.stored import json_object
from data_prep.limits import LOCK_LOOK_S

# Users


MAX_PID = 2**31 - 1


def this_process() -> CacheUser:
    """Describe this process as a user that is no job."""
    return as_user(holder_of(os.getpid(), "", "", 0), None)


def as_user(holder: Holder, run_id: str | None) -> CacheUser:
    """Describe a holder as a user."""
    return {
        "run_id": run_id,
        "pid": holder.pid,
        "start_time": holder.pid_start,
        "boot_id": holder.boot_id,
        "pid_namespace": holder.pid_namespace,
        "uid": os.geteuid(),
        "job_id": holder.job_id or None,
        "scheduler": holder.scheduler or None,
    }


def is_alive(user: Mapping[str, Any]) -> bool:
    """Return True if the user may still be at work. Doubt counts as alive, and people have `--force`."""
    pid, start = whole(user.get("pid"), 1, MAX_PID), user.get("start_time")
    if pid is None:
        return True
    started = start if isinstance(start, int) else None
    return lives(pid, started, user.get("boot_id"), user.get("pid_namespace"), same_machine=True) is not False


def describe(holder: Mapping[str, object]) -> str:
    """Describe a user for messages by run, job and process, as far as known."""
    said = {key: text(value, 100) for key, value in holder.items() if value is not None}
    words = [
        f"run {said['run_id']}" if said.get("run_id") else "",
        f"{said.get('scheduler') or 'job'} {said['job_id']}" if said.get("job_id") else "",
        f"pid {said['pid']}" if said.get("pid") else "",
        f"uid {said['uid']}" if said.get("uid") not in (None, str(os.geteuid())) else "",
    ]
    return ", ".join(word for word in words if word) or "an unknown holder"


logger = logging.getLogger(__name__)

_MIN_LETTERS = 512
"""The least length of a note in characters, filled with blanks, so that the file keeps its size."""


class Lock:
    """The lock of a dataset, as a context manager that gives it up. Its file says who has it, for what (stage or remove), and how far the
    work is."""

    def __init__(self, cache: Cache, name: str, what: str) -> None:
        self._file = LockFile(cache.locks / f"{name}.lock", cache.file_mode)
        self._said: CacheUser = {**this_process(), "what": what, "done": 0, "total": 0}
        self._said_at = 0.0

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def try_acquire(self) -> bool:
        if not self._file.try_take():
            return False
        self._write()
        return True

    def acquire(self, on_wait: Callable[[dict[str, object]], None]) -> None:
        """Wait for the lock; `on_wait` gets what its holder wrote, again and again."""
        while not self.try_acquire():
            on_wait(self.holder())
            time.sleep(LOCK_LOOK_S)

    def show(self, done: int, total: int) -> None:
        """Show those who wait how far we are, a few times a second. A failure is only logged, since the work itself goes on."""
        if time.monotonic() - self._said_at < LOCK_LOOK_S:
            return
        self._said |= {"done": done, "total": total}
        try:
            self._write()
        except OSError as error:
            self._said_at = math.inf
            logger.warning("who waits for %s cannot be shown any more how far it is: %s", self._file.path, error.strerror)

    def holder(self) -> dict[str, object]:
        """Read what the holder wrote last: {"pid", ..., "what", "done", "total"}, or {} if that cannot be read now."""
        try:
            found = parse_json(self._file.read_holder().encode(), self._file.path, LeaseError)
        except LeaseError:
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self) -> None:
        self._said_at = time.monotonic()
        self._file.write_holder(json_line(self._said).decode().ljust(_MIN_LETTERS))


# Leases


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A lease on a dataset. `id` is `<dataset>/<token>`; `holder` is the description of its user."""

    id: str
    dataset: str
    holder: Mapping[str, object]

    def __str__(self) -> str:
        return describe(self.holder)


def release(cache_dir: Path, lease_id: str) -> None:
    """Give a lease back. A lease that is gone already is fine: whoever saw its holder dead dropped it."""
    dataset, _, token = lease_id.partition("/")
    if not token.isalnum():
        raise LeaseError(f"{lease_id!r} is not an id of a lease: expected <dataset>/<token>")
    (Path(cache_dir) / "leases" / dataset_name(Path(dataset)) / f"{token}.json").unlink(missing_ok=True)


def release_all(cache_dir: Path, holder: CacheUser, dataset: str | None = None) -> None:
    """Give back what `holder` holds of a dataset, or of anything (None), also what it was never told of: a stager that is killed may have
    written a lease and not said so. Those of the dead go with them."""
    cache = Cache(root=Path(cache_dir), shared=False)
    names = [path.name for path in cache.leases.glob("*")] if dataset is None else [dataset_name(Path(dataset))]
    for lease in (lease for name in names for lease in live_leases(cache, name)):
        if lease.holder == holder:
            release(cache.root, lease.id)


def write_lease(cache: Cache, name: str, holder: CacheUser) -> str:
    """Write a lease. The caller holds the lock of the dataset."""
    token = secrets.token_hex(8)
    directory = cache.make_directory(cache.leases / name)
    path = directory / f"{token}.json"
    publish(path, canonical_json(holder), cache.file_mode)
    path.chmod(cache.file_mode)
    return f"{name}/{token}"


def live_leases(cache: Cache, name: str) -> list[Lease]:
    """List the leases whose holder lives, or may live, and remove the others where possible. An unreadable lease counts as live, since only
    its holder knows its content."""
    found = []
    for path in sorted((cache.leases / name).glob("[0-9a-f]*.json")):
        if not path.exists():
            continue
        holder = json_object(path)
        if is_alive(holder):
            found.append(Lease(id=f"{name}/{path.stem}", dataset=name, holder=holder))
        else:
            remove_leftover(path)
    return found
