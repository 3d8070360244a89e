"""The files of the study's own programs, kept beside its results: `<results>/programs/<digest>/`, one copy of each state of a folder.

A table of last year can be traced to the code that made it only where that code is still there: people go on editing their folders.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

from base.errors import ConfigError, StorageError
from base.publish import part_path, publish_directory, remove_tree
from base.storage_clock import now_at
from containers.program_folder import copy, look_at
from workflow.run.plan import Framework
from workflow.study.paths import kept_program

logger = logging.getLogger(__name__)
DEAD_S: Final = 3600.0
"""After how long a copy that is not finished is nobody's: the call that makes one ends within minutes."""


def keep_program(results: Path, framework: Framework) -> None:
    """Copy the folder of `framework` there, unless its state is there already, whole; nothing where it has none. A damaged copy, or
    something else in its place, is made anew. Raises StagingError where the folder is not of that digest any more, ConfigError,
    StorageError."""
    if framework.digest is None:
        return
    target = kept_program(results, framework.digest)
    if _is_whole(target, framework.digest):
        return
    part = part_path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_dead_parts(target.parent)
        copy(Path(framework.folder), framework.digest, part)
        if os.path.lexists(target) and not _is_whole(target, framework.digest):
            logger.warning("%s does not hold the files that its name says: it is made anew", target)
            remove_tree(target)
        publish_directory(part, target)  # another run of the study may have been first
    except OSError as error:
        raise StorageError(
            f"the files of the program {framework.name!r} are kept beside the results, and {error.filename or target} cannot be written: "
            f"{error.strerror}"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            remove_tree(part)


def _is_whole(target: Path, digest: str) -> bool:
    """Whether the copy is there and holds what its name says. Folders of programs are small, so all is read."""
    if target.is_symlink() or not target.is_dir():
        return False
    try:
        return look_at(target, executed=False).digest == digest
    except (ConfigError, OSError):
        return False


def _remove_dead_parts(directory: Path) -> None:
    """Of supervisors that were killed, by the storage's own clock."""
    now = now_at(directory)
    for part in directory.glob(".*.part-*"):
        with contextlib.suppress(OSError):
            if now - part.lstat().st_mtime > DEAD_S:
                remove_tree(part)
