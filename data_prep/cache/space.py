"""Make room for a copy before its first byte is written, by eviction where needed."""

from __future__ import annotations

from dataclasses import dataclass

from base.errors import NotEnoughSpace
from base.units import format_size
from data_prep.cache.eviction import evict, evictable
from data_prep.cache.layout import Cache
from data_prep.cache.lease import live_leases
from data_prep.cache.stored import allocated_bytes, entry_bytes, names
from data_prep.space import free_bytes, free_inodes


@dataclass(frozen=True, kw_only=True)
class Need:
    """The room that a copy still needs. `max_bytes` is the limit of all datasets in the cache, or None."""

    name: str
    bytes: int
    inodes: int
    max_bytes: int | None = None


def make_room(cache: Cache, need: Need) -> list[str]:
    """Evict until `need` fits; nothing goes unless that is enough. Returns what went. The caller holds the lock on space.

    Raises NotEnoughSpace saying what is needed, what is free, who holds what, and what to do.
    """
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
    """Sum the bytes of all datasets and copies in the cache, with the one that `need` is about."""
    hidden = sum(allocated_bytes(path) for path in cache.datasets.glob(".*"))
    return hidden + sum(entry_bytes(cache, name) for name in names(cache) if name != need.name)
