"""Is the dataset here already, and still what it was? A damaged one is taken away, to be staged again."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from base.errors import DigestMismatch, SlipwayError
from data_prep.cache.layout import Cache
from data_prep.cache.lease import live_leases
from data_prep.cache.lock import Lock
from data_prep.cache.stored import check_entry, remove_entry
from data_prep.staging.recheck import Entry

logger = logging.getLogger(__name__)


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
    except SlipwayError as error:
        _remove(cache, name, lock, error)
        return None
    entry = Entry(cache=cache, root=root, file_set=file_set)
    try:
        return entry, check(entry)
    except DigestMismatch as error:
        _remove(cache, name, lock, error)
        return None


def _remove(cache: Cache, name: str, lock: Lock, why: SlipwayError) -> None:
    root = cache.datasets / name
    users = "; ".join(str(lease) for lease in live_leases(cache, name)) or "nobody"
    logger.warning("%s is damaged and staged again (in use by %s): %s", root, users, why)
    lock.doing("remove")
    with lock.busy():
        remove_entry(cache, root)
    lock.doing("stage")
