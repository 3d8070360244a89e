"""Our directory for locks on this machine: the same one for all runs of this user, below /tmp, so it must be ours alone.

Its name is known, so that anybody can make it before us: then it is another one with letters that nobody can know beforehand. What is ours
is found by its owner, and which one counts stands in it. A directory of ours in /tmp stays until we, or a cleaner, remove it, since /tmp
has the sticky bit; so nobody else can make two runs of one user look for their locks in two places.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from base.errors import AllocationError
from base.lock import has_name, try_lock
from base.untrusted import described, why_way_distrusted
from cluster.limits import LOCK_PLACE_PAUSE_S

RUNTIME_DIRECTORIES: Final = ("/tmp/slipway-{uid}", "/var/tmp/slipway-{uid}")  # noqa: S108 - made with mode 0700 and checked
"""The first whose place has the sticky bit: nobody but root can change that. Some containers have a /tmp without it."""
MARK: Final = "in-use"
TRIES: Final = 100
_DISAGREE: Final = "what is made there vanishes or stays locked; look what clears it, or end the process that holds it (`fuser`)"


def runtime_directory(*patterns: str) -> Path:
    """Return the directory, and create it if necessary. Raises AllocationError if others could enter it."""
    problems = []
    for pattern in patterns or RUNTIME_DIRECTORIES:
        first = Path(pattern.format(uid=os.geteuid()))
        try:
            problem = why_way_distrusted(first.parent)
            if problem is None:
                found = _agreed(first)
                if found is not None:
                    return found
                problem = f"{first.parent}: {_DISAGREE}"
        except OSError as error:
            problem = f"{error.strerror}: {error.filename}"
        problems.append(problem)
    raise AllocationError(f"there is no place for the locks of runs on this machine: {'; '.join(problems)}")


def _agreed(first: Path) -> Path | None:
    """Return None if processes do not agree on one directory."""
    for _ in range(TRIES):
        ours = _ours(first)
        marked = _marked(ours)
        if marked:
            return marked[0]
        if not ours:
            _make(first)
            ours = _ours(first)
        if not _mark_one(first, ours):
            time.sleep(LOCK_PLACE_PAUSE_S)
    return None


def _mark_one(first: Path, ours: Sequence[Path]) -> bool:
    """Mark the directory that counts, if there is no mark yet. Returns False to look again.
    Who marks has locked all that existed after it made its own. The one made first is among them for everybody, so only one does so."""
    with contextlib.ExitStack() as held:
        for path in sorted(ours):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
                held.callback(os.close, descriptor)
            except FileNotFoundError:
                return False
            if not try_lock(descriptor) or not has_name(descriptor, path):
                return False
        now = _ours(first)
        if now and not _marked(now):
            (now[0] / MARK).touch()
            for other in now[1:]:
                with contextlib.suppress(OSError):
                    other.rmdir()
        return bool(now)


def _marked(ours: Sequence[Path]) -> list[Path]:
    return [path for path in ours if (path / MARK).exists()]


def _ours(first: Path) -> list[Path]:
    """Return the directories of this user, `first` before the others. Raises AllocationError for a directory that others can enter."""
    found = []
    for path in (first, *sorted(first.parent.glob(f"{first.name}-*"))):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if status.st_uid != os.geteuid():
            continue
        if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
            raise AllocationError(f"{described(path, status)} must be a directory of yours with mode 0700, and is not: remove it")
        found.append(path)
    return found


def _make(first: Path) -> None:
    try:
        first.mkdir(0o700)
    except FileExistsError:
        first.with_name(f"{first.name}-{secrets.token_hex(8)}").mkdir(0o700)
