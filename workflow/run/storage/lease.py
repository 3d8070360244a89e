"""Allow one writer per run, by `lease.json` in the run's directory on network storage, and stop a writer who lost it.

A lease is a file that is there whole or not at all, made by one writer only. It is taken over from a holder known to be dead, by one
taker only: whoever makes `.lease-after-<token of the dead>` in the same way holds the run, and then writes lease.json anew. So the holder
is found by following that chain from lease.json, and a taker that dies between the two files is just the next dead holder.

Where the file system has no hard links, a writer that is killed just when it makes a lease leaves an empty file that a person must remove:
`slipway doctor` warns of such storage.

All functions touch network storage: call them in a child with a time limit.
"""

import contextlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

from base import jsonfile, publish, system, typed
from base.errors import LeaseError, RunHeld, StorageError
from cluster.types import Holder

NAME: Final = "lease.json"
TRIES: Final = 20
PART_S: Final = 60.0
"""The age beyond which a file that has not got its name has no writer any more."""
MAX_BYTES: Final = 1 << 16
Token = Annotated[str, typed.Check("a token", lambda value: re.fullmatch(r"[\w-]{1,64}", value, re.ASCII) is not None)]

Alive = Callable[[Holder], bool | None]
Describe = Callable[[Holder], str]


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Who may write the run, as which attempt, since when (unix time). `token` names this holding; it is no secret."""

    token: Token
    attempt: typed.Count
    since: typed.Moment
    holder: Holder

    def to_json(self) -> dict[str, object]:
        own = {"schema": "slipway.lease/1", "token": self.token, "attempt": self.attempt, "since": self.since}
        return {**own, **asdict(self.holder)}


def new_lease(holder: Holder, attempt: int) -> Lease:
    """Make a lease with a new token."""
    return Lease(token=secrets.token_hex(8), attempt=attempt, since=time.time(), holder=holder)


def read_lease(run_dir: Path) -> Lease | None:
    """Return the lease at the end of the chain, None if the run is free. Raises StorageError, LeaseError for a file that is none."""
    chain = _chain(run_dir)
    return chain[-1] if chain else None


def _chain(run_dir: Path) -> list[Lease]:
    found: list[Lease] = []
    lease = _read(run_dir / NAME)
    while lease is not None:
        found.append(lease)
        if len(found) > TRIES:
            raise LeaseError(
                f"{run_dir}: more than {TRIES} holders of the run died one after the other while they took it over; "
                f"if no supervisor of this run is alive, remove {run_dir / NAME}"
            )
        lease = _read(run_dir / _successor(lease.token))
    return found


def acquire(run_dir: Path, wanted: Callable[[Lease | None], Lease], alive: Alive, describe: Describe) -> tuple[Lease, Lease | None]:
    """Take the run: our lease, and the dead one before it. `wanted(dead)` makes our lease. Raises RunHeld when its holder lives, LeaseError
    when it may live, StorageError where storage takes no lease."""
    try:
        return _acquire(run_dir, wanted, alive, describe)
    except OSError as error:
        full = error.errno in system.DISK_FULL
        what = "free room or quota there" if full else "look after the storage"
        raise StorageError(
            f"{run_dir.name} cannot be started: its lease cannot be written: {error.strerror}: {error.filename or run_dir}; {what}, "
            "then the same command again"
        ) from error


def _acquire(run_dir: Path, wanted: Callable[[Lease | None], Lease], alive: Alive, describe: Describe) -> tuple[Lease, Lease | None]:
    run_dir.mkdir(parents=True, exist_ok=True)
    for _ in range(TRIES):
        found = read_lease(run_dir)
        if found is None:
            lease = wanted(None)
            if publish.publish_new(run_dir / NAME, _content(lease)):
                return lease, None
            continue
        lives = alive(found.holder)
        if lives is not False:
            raise (RunHeld if lives else LeaseError)(_refusal(run_dir, found, lives, describe))
        lease = wanted(found)
        if _succeed(run_dir, found, lease):
            return lease, found
    raise LeaseError(f"{run_dir / NAME} changes hands all the time: another supervisor of this run starts again and again")


def _succeed(run_dir: Path, dead: Lease, lease: Lease) -> bool:
    """Try to become the holder after `dead`."""
    mark = run_dir / _successor(dead.token)
    if not publish.publish_new(mark, _content(lease)):
        return False
    chain = [holder.token for holder in _chain(run_dir)]
    if lease.token not in chain:
        mark.unlink(missing_ok=True)  # the run was given back meanwhile: our mark follows nothing
        return False
    if chain[-1] != lease.token:
        return False  # somebody believes us dead already
    publish.publish(run_dir / NAME, _content(lease))
    return True


def is_held(run_dir: Path, alive: Alive) -> bool:
    """Return True if the run has a holder that may live. Raises StorageError, LeaseError for a file that is none."""
    found = read_lease(run_dir)
    return found is not None and alive(found.holder) is not False


def holds(run_dir: Path, token: str) -> bool:
    """Return True if the lease is still the one with `token`. To be called right before anything is published."""
    lease = read_lease(run_dir)
    return lease is not None and lease.token == token


def release(run_dir: Path, token: str) -> bool:
    """Give the run back; False, and nothing is done, if it is not ours any more."""
    if not holds(run_dir, token):
        return False
    for mark in run_dir.glob(".lease-after-*"):
        mark.unlink(missing_ok=True)
    (run_dir / NAME).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the run is free: what stays beside it is no error
        _remove_parts(run_dir)
    return True


def _remove_parts(run_dir: Path) -> None:
    """Remove what starts wrote that were killed before it had its name."""
    parts = list(run_dir.glob(".*.part-*"))
    now = system.now_at(run_dir) if parts else 0.0
    for part in parts:
        if now - part.lstat().st_mtime > PART_S:
            part.unlink()


def _successor(token: str) -> str:
    return f".lease-after-{token}"


def _content(lease: Lease) -> bytes:
    return jsonfile.canonical_json(lease.to_json()) + b"\n"


def _read(path: Path) -> Lease | None:
    try:
        value = jsonfile.read_json(path, LeaseError, MAX_BYTES)
        return typed.read_as(Lease, {**value, "holder": value} if isinstance(value, dict) else value, path, LeaseError)
    except LeaseError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        if isinstance(error.__cause__, OSError):
            raise StorageError(str(error)) from error
        raise LeaseError(
            f"{path} is empty or torn: start again in a moment; if it stays so and no supervisor of this run is alive, remove it"
        ) from error


def _refusal(run_dir: Path, lease: Lease, alive: bool | None, describe: Describe) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(lease.since))
    who = f"attempt {lease.attempt} of this run, since {since}: {describe(lease.holder)}"
    if alive:
        return f"{run_dir.name} is running already, {who}"
    return f"{run_dir.name} may be running, {who}. Whether it lives cannot be seen from here; if it does not, remove {run_dir / NAME}"
