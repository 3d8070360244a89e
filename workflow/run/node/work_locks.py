"""Which work directories are at work: each has a lock beside it, which ends with its node program, however that ends.

A node that lost its power cleans up nothing, and the run goes on elsewhere: the next start of any run on that node, or `slipway reap`,
takes away what is nobody's. Whose a directory is, its name does not tell: two studies of one user may hold the same cell, and run it on one
node at the same time. So a directory is removed only by the process that holds its lock, and only where the lock is this user's own file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from base.lock import LockFile, has_name, try_lock
from base.removing import remove_leftover
from base.untrusted import NEVER_FOLLOW

PENDING: Final = "pending.json"


def hold(directory: Path) -> LockFile:
    """Take the lock of a work directory that is about to be made. It is removed when the directory is gone, or waits for storage: nobody is
    at work in it then."""
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
    each with None, or with why something of it stays: that keeps nobody from working there.

    Without `act` nothing is removed.
    """
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
    """Root may open the locks of everybody: they are none of its own."""
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _lock_of(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.lock")
