"""Make room for a copy before its first byte is written: remove datasets that nobody uses, and refuse the copy if the disk is
too full. A disk that becomes full during the copy is met in staging/stage.py."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from base.errors import NotEnoughSpace, StagingError
from base.humanize import format_size
from data_prep.cache.layout import HIDDEN, Cache, part_of
from data_prep.cache.lock import Lock, live_leases
from data_prep.cache.stored import allocated_bytes, changed_at, dataset_of, entry_bytes, last_used, names, remove_entry
from data_prep.free_space import free_bytes, free_inodes

# Free room in a cache: unfinished copies that nobody needs go first, then the datasets that were used least recently.


logger = logging.getLogger(__name__)


def evict(cache: Cache, need_bytes: int, keep: str | None = None) -> list[str]:
    """Remove what nobody uses, left-over copies first, then least recently used, until `need_bytes` are freed. Returns the names removed.
    What is leased, locked, not ours, or named `keep` stays, and what cannot be removed. Frees less where there is no more."""
    removed = []
    for path, num_bytes in evictable(cache, keep):
        if need_bytes <= 0:
            break
        name = dataset_of(path)
        with Lock(cache, name, "remove") as lock:
            if path.exists() and lock.try_acquire() and not live_leases(cache, name) and _is_removed(cache, path):
                removed.append(path.name)
                need_bytes -= num_bytes
    return removed


def evictable(cache: Cache, keep: str | None = None) -> Iterator[tuple[Path, int]]:
    """List candidates and their bytes in the order of eviction, as far as can be seen without their locks."""
    for path in sorted(cache.datasets.glob(".*"), key=lambda path: (".gone-" not in path.name, changed_at(path))):
        match = HIDDEN.fullmatch(path.name)
        if match is None or match[1] == keep or not os.access(path, os.W_OK):
            continue
        if match[2] == "gone" or not _is_locked(cache, match[1]):
            yield path, allocated_bytes(path)
    for name in sorted(names(cache), key=lambda name: last_used(cache, name)):
        path = cache.datasets / name
        if name != keep and os.access(path, os.W_OK) and not live_leases(cache, name) and not _is_locked(cache, name):
            yield path, entry_bytes(cache, name)


def sweep(cache: Cache, name: str) -> None:
    """Remove what is left over of one dataset beside it. The caller holds its lock, so that nobody works on a copy; with the dataset
    published that one is of no use either."""
    for path in cache.datasets.glob(f".{name}.*"):
        is_of_it = dataset_of(path) == name
        if is_of_it and os.access(path, os.W_OK) and (path != part_of(cache, name) or (cache.datasets / name).exists()):
            _is_removed(cache, path)


def _is_removed(cache: Cache, path: Path) -> bool:
    """Remove an entry that nobody needs; where that cannot be done, log why and return False."""
    try:
        remove_entry(cache, path)
    except StagingError as error:
        logger.warning("%s", error)
        return False
    return True


def _is_locked(cache: Cache, name: str) -> bool:
    with Lock(cache, name, "remove") as lock:
        return not lock.try_acquire()


@dataclass(frozen=True, kw_only=True)
class Need:
    """The room that a copy still needs. `max_bytes` is the limit of all datasets in the cache, or None."""

    name: str
    bytes: int
    inodes: int
    max_bytes: int | None = None


def make_room(cache: Cache, need: Need) -> list[str]:
    """Evict until `need` fits; nothing goes unless that is enough. Returns what went. The caller holds the lock on space. Raises
    NotEnoughSpace saying what is needed, what is free, who holds what, and what to do."""
    missing = _missing_bytes(cache, need)
    removed: list[str] = []
    if missing > 0 and sum(num_bytes for _, num_bytes in evictable(cache, need.name)) >= missing:
        removed = evict(cache, missing, keep=need.name)
        missing = _missing_bytes(cache, need)
    if missing > 0:
        raise not_enough(cache, need, f"{format_size(missing)} more are needed")
    inodes = free_inodes(cache.root)
    if inodes is not None and need.inodes > inodes:
        raise not_enough(cache, need, f"{need.inodes} inodes are needed, {inodes} are free (df -i)")
    return removed


def not_enough(cache: Cache, need: Need, what: str) -> NotEnoughSpace:
    """Make the error for missing room, with everything that people need to decide."""
    limit = (
        f"; cache.max_bytes is {format_size(need.max_bytes)}, taken {format_size(_taken(cache, need))}"
        if need.max_bytes is not None
        else ""
    )
    held = []
    for name in names(cache):
        users = "; ".join(str(lease) for lease in live_leases(cache, name))
        if users:
            held.append(f"  {name}, {format_size(entry_bytes(cache, name))}, in use by {users}")
    return NotEnoughSpace(
        f"{need.name} does not fit into the cache {cache.root}: {what}; it takes {format_size(need.bytes)}, "
        f"free on that disk {format_size(free_bytes(cache.root))}{limit}\n"
        + (
            "in use, so not evicted:\n" + "\n".join(held) + "\n"
            if held
            else "nothing in the cache is in use, and what could go is too little\n"
        )
        + "wait for the runs that use them, free room on the disk, or set cache.path or cache.max_bytes of the site file"
    )


def _missing_bytes(cache: Cache, need: Need) -> int:
    missing = need.bytes - free_bytes(cache.root)
    if need.max_bytes is not None:
        missing = max(missing, _taken(cache, need) + need.bytes - need.max_bytes)
    return missing


def _taken(cache: Cache, need: Need) -> int:
    hidden = sum(allocated_bytes(path) for path in cache.datasets.glob(".*"))
    return hidden + sum(entry_bytes(cache, name) for name in names(cache) if name != need.name)
