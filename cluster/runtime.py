"""Find our directory for locks on this machine: the same one for all runs of this user, in a place where others can make names too.

Its name is known, so that anybody can make it before us: then the next place counts. A directory of ours stays until we, or a cleaner,
remove it, since the places have the sticky bit. It counts also when the name before it is free again, so nobody else can make two runs of
one user look for their locks in two places.
"""

import os
import stat
from pathlib import Path
from typing import Final

from base.errors import AllocationError
from base.untrusted import described, why_way_distrusted

RUNTIME_DIRECTORIES: Final = ("/tmp/slipway-{uid}", "/var/tmp/slipway-{uid}")  # noqa: S108 - made with mode 0700 and checked
"""The first whose place has the sticky bit: nobody but root can change that. Some containers have a /tmp without it."""


def runtime_directory(*patterns: str) -> Path:
    """Return the directory, and create it if necessary. Raises AllocationError if others could enter it."""
    problems, places = [], []
    for pattern in patterns or RUNTIME_DIRECTORIES:
        place = Path(pattern.format(uid=os.geteuid()))
        try:
            problem = why_way_distrusted(place.parent)
        except OSError as error:
            problem = f"{error.strerror}: {error.filename}"
        if problem is None:
            places.append(place)
        else:
            problems.append(problem)
    for place in places:
        if _is_ours(place):
            return place
    for place in places:
        try:
            place.mkdir(0o700)
        except FileExistsError:
            if not _is_ours(place):  # another start of ours may have made it
                problems.append(f"{place} is another user's")
                continue
        except OSError as error:
            problems.append(f"{error.strerror}: {place}")
            continue
        return place
    raise AllocationError(f"there is no place for the locks of runs on this machine: {'; '.join(problems)}")


def _is_ours(path: Path) -> bool:
    """Return True if that is a directory of this user alone. Raises AllocationError if it is this user's, and others can enter it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    if status.st_uid != os.geteuid():
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise AllocationError(f"{described(path, status)} must be a directory of yours with mode 0700, and is not: remove it")
    return True
