"""Is the dataset here already, and still what it was? A damaged one is taken away, to be staged again."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from base.errors import DigestMismatch, SlipwayError, StagingError
from base.logs import printable
from base.units import some
from data_prep.cache.layout import Cache
from data_prep.cache.lease import live_leases
from data_prep.cache.lock import Lock
from data_prep.cache.stored import check_entry, remove_entry
from data_prep.cache.unlisted import remove_unlisted
from data_prep.file_set import FileSet
from data_prep.staging.recheck import Entry

logger = logging.getLogger(__name__)

_SHOWN: Final = 5


def find_hit(cache: Cache, name: str, lock: Lock, check: Callable[[Entry], int]) -> tuple[Entry, int] | None:
    """The published dataset and what `check` says of its content, the bytes it hashed; None if there is none, also after a damaged one was
    removed. `check` raises DigestMismatch for a damaged one.

    Raises StagingError when a damaged one cannot be removed, because it is somebody else's.
    """
    root = cache.datasets / name
    if not os.path.lexists(root):
        return None
    try:
        file_set = check_entry(root)
        if _take_unlisted_away(root, file_set):
            check_entry(root)  # a link in the place of a directory led to files until now
    except SlipwayError as error:
        _remove(cache, name, lock, error)
        return None
    entry = Entry(cache=cache, root=root, file_set=file_set)
    try:
        return entry, check(entry)
    except DigestMismatch as error:
        _remove(cache, name, lock, error)
        return None


def _take_unlisted_away(root: Path, file_set: FileSet) -> bool:
    """Whether programs have put something among the files of a tree; the files stay: another run may be reading them."""
    try:
        removed = [str(path.relative_to(root)) for path in remove_unlisted(root, file_set)]
    except OSError as error:
        raise StagingError(f"what was put among its files cannot be removed: {error.filename}: {error.strerror}") from error
    if removed:
        logger.warning("%s: a program has put %s among its files, which was removed", root, printable(some(removed, _SHOWN)))
    return bool(removed)


def _remove(cache: Cache, name: str, lock: Lock, why: SlipwayError) -> None:
    root = cache.datasets / name
    users = "; ".join(str(lease) for lease in live_leases(cache, name)) or "nobody"
    logger.warning("%s is damaged and staged again (in use by %s): %s", root, users, why)
    lock.doing("remove")
    with lock.busy():
        remove_entry(cache, root)
    lock.doing("stage")
