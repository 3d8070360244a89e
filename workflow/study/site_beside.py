"""The site file beside a study, which is taken without being named: only where nobody else can have put it there, or can exchange it."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from base.trusted import described, why_distrusted, why_way_distrusted
from cluster.installation import site_files, sites_directories

BESIDE: Final = "site.yaml"
ADVICE: Final = "name the site: --site NAME_OR_PATH, such as --site local"


def site_beside(
    study: Path, choice: str | None, environ: Mapping[str, str], directories: Callable[[], Sequence[Path]] = sites_directories
) -> Path | None:
    """The file `site.yaml` beside a study file, where it is the study's site: nobody chose another one, by name or by a `default.yaml`.

    Raises ConfigError where something of that name lies there that is no plain file of ours alone. A site file says what is executed
    (`setup`), and is read more than once on its way to the nodes: so file and directory must be such that no other user can write to them.
    """
    beside = study.parent / BESIDE
    if choice or environ.get("SLIPWAY_SITE") or beside == study or "default" in site_files(directories):
        return None
    try:
        problem = _problem(beside, os.lstat(beside))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"{beside}, beside the study, cannot be looked at: {said}; {ADVICE}") from error
    if problem is not None:
        raise ConfigError(f"{problem}; a site file says what is executed, so that one is not taken unasked: {ADVICE}, or --site {beside}")
    return beside


def _problem(beside: Path, status: os.stat_result) -> str | None:
    """Why the file is not ours alone."""
    if not stat.S_ISREG(status.st_mode):
        return f"{beside}, beside the study, is not a regular file"
    if status.st_uid not in (0, os.geteuid()) or _is_writable_by_others(status):
        return f"{described(beside, status)}, beside the study, is not yours alone"
    place = beside.parent.stat()
    if _is_writable_by_others(place):
        return f"{described(beside.parent, place)}, in which the study lies, can be written by others"
    return (why_way_distrusted if place.st_mode & stat.S_IWGRP else why_distrusted)(beside.parent)


def _is_writable_by_others(status: os.stat_result) -> bool:
    mode = status.st_mode
    return bool(mode & stat.S_IWOTH) or (bool(mode & stat.S_IWGRP) and not _is_of_us_alone(status))


def _is_of_us_alone(status: os.stat_result) -> bool:
    """Whether it is ours, and its group is our own: the one of our name, which has no other members."""
    try:
        group, user = grp.getgrgid(status.st_gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    own = status.st_uid == os.geteuid() and status.st_gid == user.pw_gid and group.gr_name == user.pw_name
    return own and set(group.gr_mem) <= {user.pw_name}
