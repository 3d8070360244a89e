"""Remove a directory tree that somebody else may have made, and may still write to."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from base.account import user_name

logger = logging.getLogger(__name__)

TRIES: Final = 3
"""Somebody may add to it meanwhile, and some servers lose their place in a directory that shrinks."""
MOST_SHOWN: Final = 4096
"""Characters of the path of what stays."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass
class _Level:
    """A directory on the way down: its name in the one above, which file it is, and the directories in it that are still to be emptied."""

    name: str
    identity: tuple[int, int]
    left: list[str] = field(default_factory=list)


def remove_tree(path: Path) -> None:
    """Remove a directory tree, also one whose directories are read-only; of a link only the link. What vanished does not matter. No link
    is followed, not even one that takes a directory's place meanwhile, and a tree may be of any depth: two directories are open at a
    time. Raises OSError for the first thing that stays; all else is gone then."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        for left in reversed(range(TRIES)):
            problems = _emptied(str(path))
            if not left and problems:
                raise problems[0]
            try:
                path.rmdir()
            except OSError as error:
                if not left or error.errno != errno.ENOTEMPTY:
                    raise
            else:
                return


def remove_leftover(path: Path) -> str | None:
    """Remove what nobody needs any more. Return None, or a sentence that names what stays and how it is removed. That is a warning in the
    log and no error, because the next one's work must not depend on it."""
    try:
        remove_tree(path)
    except OSError as error:
        problem = why_left(path, error)
        logger.warning("%s", problem)
        return problem
    return None


def why_left(path: Path, error: OSError) -> str:
    """Return a sentence that names what of `path` could not be removed, why, and what to type."""
    found = os.fsdecode(error.filename or path)
    left = shlex.quote(found).replace("\n", "\\n").replace("\t", "\\t")  # a program may have named it
    try:
        owner = os.lstat(found).st_uid
    except OSError:
        owner = os.geteuid()
    why, remove = str(error.strerror), f"rm -r {shlex.quote(str(path))}"
    if owner != os.geteuid():
        return f"{left} cannot be removed ({why}): it belongs to {user_name(owner)}, who can remove it, as root can: {remove}"
    if error.errno == errno.EPERM:
        unlock = f"chattr -R -f -ia {shlex.quote(str(path))}"
        return f"{left} cannot be removed ({why}): `lsattr` shows the attribute that forbids it; as root: {unlock}; {remove}"
    return f"{left} cannot be removed ({why}): when that is mended: {remove}"


def _emptied(path: str) -> list[OSError]:
    """Empty the directory, and return what could not be removed, each with its path."""
    problems: list[OSError] = []
    current = _enter(path, None)
    try:
        levels = [_Level(path, _identity(current))]
        _unlink_files(current, levels, problems)
        while levels[-1].left or len(levels) > 1:
            if levels[-1].left:
                name = levels[-1].left.pop()
                try:
                    deeper = _enter(name, current)
                except OSError as error:
                    _note(error, levels, name, problems)
                    continue
                os.close(current)
                current = deeper
                levels.append(_Level(name, _identity(current)))
                _unlink_files(current, levels, problems)
            else:
                done = levels.pop()
                above = os.open("..", _DIRECTORY, dir_fd=current)
                os.close(current)
                current = above
                if _identity(current) != levels[-1].identity:
                    raise OSError(errno.ESTALE, "it was moved while it was removed", path)
                try:
                    os.rmdir(done.name, dir_fd=current)
                except OSError as error:
                    _note(error, levels, done.name, problems)
    finally:
        os.close(current)
    return problems


def _enter(name: str, above: int | None) -> int:
    """Open the directory and make it ours to empty. Raises OSError."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o700 != 0o700:
            with contextlib.suppress(OSError):  # another user's: then it may be empty, or ours to empty all the same
                os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(".", _DIRECTORY, dir_fd=handle)
    finally:
        os.close(handle)


def _unlink_files(descriptor: int, levels: list[_Level], problems: list[OSError]) -> None:
    with os.scandir(descriptor) as found:
        for entry in found:
            try:
                if entry.is_dir(follow_symlinks=False):
                    levels[-1].left.append(entry.name)
                else:
                    os.unlink(entry.name, dir_fd=descriptor)
            except OSError as error:
                _note(error, levels, entry.name, problems)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _note(error: OSError, levels: list[_Level], name: str, problems: list[OSError]) -> None:
    """Keep the first error only: a program may have made very many files, very deep."""
    if error.errno != errno.ENOENT and not problems:
        problems.append(OSError(error.errno, error.strerror, "/".join([*(level.name for level in levels), name])[:MOST_SHOWN]))
