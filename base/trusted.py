"""Whether a directory of ours is one that nobody else can exchange or write to: it may lie below /tmp, where everybody makes names.

What is trusted: the user, root, and whoever made the directories that lead there, as far as not everybody can make names in them. So every
component of the path is looked at. Below a directory that everybody can write to, which must have the sticky bit, the next one, or the link
in its place, must be the user's or root's. The directory itself must be the user's (or root's, with the sticky bit) and closed to others;
one that is open to a group by the set-group-ID bit is accepted from another user where the caller says that the group is trusted.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

MOST_LINKS: Final = 40
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class Place(NamedTuple):
    """A directory at the end of its path, all links resolved."""

    path: Path
    status: os.stat_result


class Distrusted(OSError):
    """Somebody else may change what lies in the directory; `strerror` says why, and what to do."""


def trusted_directory(path: Path, *, group: bool = False) -> Path:
    """Make the directory `path` with mode 0700 where it is missing, and return it with all links resolved. The directories above are
    checked first, so that nothing is made where another user has planted a link. `group`: see why_distrusted. Raises Distrusted,
    OSError."""
    if not os.path.lexists(path):
        problem = why_distrusted(path)
        if problem is not None:
            raise Distrusted(errno.EPERM, problem)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    place, problem = _walked(path, group)
    problem = problem or _of_root(place, group)
    if problem is not None:
        raise Distrusted(errno.EPERM, problem)
    return place.path


def why_distrusted(path: Path, *, group: bool = False) -> str | None:
    """Return why the directory `path` cannot be trusted, with its owner, its mode and what to do, or None. `group`: members of a group
    that we are in may own it, where it is open to that group. Of a directory that is not made yet, the nearest one above it that exists
    is checked. Raises OSError."""
    if not os.path.lexists(path):
        there = path.absolute()
        while not os.path.lexists(there):
            there = there.parent
        return why_way_distrusted(there)
    place, problem = _walked(path, group)
    return problem or _of_root(place, group)


def why_way_distrusted(path: Path) -> str | None:
    """Return why the directories above one that we are about to make cannot be trusted, or None."""
    place, problem = _walked(path, group=False)
    if problem is None and place.status.st_mode & stat.S_IWOTH and not place.status.st_mode & stat.S_ISVTX:
        problem = f"{described(place.path, place.status)} can be written by everybody and has no sticky bit (chmod +t)"
    return problem


def is_group_open(status: os.stat_result) -> bool:
    """Return True if a group of ours works in it too, by mode: set-group-ID and group-writable, closed to all others."""
    mode = status.st_mode
    return bool(mode & stat.S_ISGID and mode & stat.S_IWGRP) and not mode & stat.S_IWOTH and _is_our_group(status)


def described(path: Path | str, status: os.stat_result) -> str:
    """Describe the path for messages, with its owner and its mode."""
    return f"{path} (of uid {status.st_uid}, gid {status.st_gid}, mode {stat.S_IMODE(status.st_mode):04o})"


def _walked(path: Path, group: bool) -> tuple[Place, str | None]:
    """Return the end of the path, and what is wrong with the first component that cannot be trusted."""
    parts = list(reversed(path.absolute().parts[1:]))
    here = Place(Path("/"), Path("/").stat())
    links = 0
    while parts:
        part = parts.pop()
        next_path = here.path.parent if part == ".." else here.path / part
        status = os.lstat(next_path)
        problem = None if part == ".." else _of_step(here, next_path, status, group and not parts)
        if problem is not None:
            return here, problem
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                return here, f"{next_path} is one of more than {MOST_LINKS} links, one behind the other"
            target = next_path.readlink()
            parts += reversed([word for word in target.parts if word != "/"])
            here = Place(Path("/"), Path("/").stat()) if target.is_absolute() else here
        else:
            here = Place(next_path, status)
    return here, None


def _of_step(here: Place, path: Path, status: os.stat_result, group: bool) -> str | None:
    if not here.status.st_mode & stat.S_IWOTH:
        return None
    if not here.status.st_mode & stat.S_ISVTX:
        what = "can be written by everybody and has no sticky bit (chmod +t)"
        return f"{described(here.path, here.status)} {what}, so that everybody can exchange {path}"
    if status.st_uid in (0, os.geteuid()) or (group and is_group_open(status)):
        return None
    return f"{described(path, status)} is somebody else's, made where everybody can make names"


def _of_root(place: Place, group: bool) -> str | None:
    status, who = place.status, described(place.path, place.status)
    if not stat.S_ISDIR(status.st_mode):
        return f"{who} is not a directory"
    ours = status.st_uid == os.geteuid()
    if is_group_open(status):
        return None if ours or status.st_uid == 0 or group else f"{who} is somebody else's, and the site file does not say `shared: group`"
    if not ours and status.st_uid != 0:
        return f"{who} is somebody else's"
    if status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX:
        return f"{who} can be written by others: chmod go-w {place.path}"
    return None


def _is_our_group(status: os.stat_result) -> bool:
    return status.st_gid in {os.getegid(), *os.getgroups()}
