"""List what is in a cache for people, and remove a dataset."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from base.errors import LeaseError, SlipwayError, StagingError
from cluster.types import CacheUser
from data_prep.cache.layout import HIDDEN, Cache, dataset_name, open_cache, part_of, usable
from data_prep.cache.lock import Lease, Lock, describe, live_leases, release_all
from data_prep.cache.stored import (
    allocated_bytes,
    changed_at,
    check_entry,
    dataset_of,
    entry_bytes,
    json_object,
    last_used,
    names,
    remove_entry,
)

PENDING = "pending.json"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of `slipway cache ls`. The kind is dataset, file (the archive of an image), part (a copy in progress or left by a kill) or
    result (not delivered yet)."""

    name: str
    kind: str
    bytes: int
    last_used: float  # seconds since 1970
    leases: tuple[Lease, ...] = ()
    damaged: str | None = None  # the reason
    target: str | None = None  # where an undelivered result belongs


def ls(cache_dir: Path, *, group: bool = False) -> list[Row]:
    """List everything that takes room, last used first. Sizes and manifests are compared; `slipway dataset verify` compares contents.
    `group` is explained at open_cache."""
    if not cache_dir.exists():
        return []
    cache = open_cache(cache_dir, group=group)
    rows = [_dataset_row(cache, name) for name in names(cache)]
    for path in sorted(cache.datasets.glob(".*")):
        if HIDDEN.fullmatch(path.name):
            rows.append(Row(name=path.name, kind="part", bytes=allocated_bytes(path), last_used=changed_at(path)))
    for path in sorted(cache.runs.glob(f"*/{PENDING}")):
        rows.append(
            Row(name=path.parent.name, kind="result", bytes=allocated_bytes(path.parent), last_used=changed_at(path), target=_target(path))
        )
    return sorted(rows, key=lambda row: -row.last_used)


def rm(cache_dir: Path, name: str, force: bool = False, *, group: bool = False) -> int:
    """Remove a staged dataset, or what is left of a copy; returns its bytes. Programs that have it open read on undisturbed. Raises
    LeaseError while it is in use (leases, unless `force`) or being staged, StagingError when it is not there or not ours."""
    cache = open_cache(cache_dir, group=group)
    name = dataset_name(Path(dataset_of(Path(name))))
    with usable(cache.root), Lock(cache, name, "remove") as lock:
        if not lock.try_acquire():
            raise LeaseError(
                f"dataset {name} is being worked on ({lock.holder().get('what')}) by {describe(lock.holder())}; try again later"
            )
        used_by = live_leases(cache, name)
        if used_by and not force:
            users = "; ".join(str(lease) for lease in used_by)
            raise LeaseError(f"dataset {name} is in use: {users}; wait for their end, or remove it anyway with --force")
        paths = [path for path in (cache.datasets / name, part_of(cache, name)) if path.exists()]
        if not paths:
            known = ", ".join(names(cache)) or "none"
            raise StagingError(f"dataset {name} is not in the cache {cache.root}; there: {known}")
        freed = sum(entry_bytes(cache, name) if path.name == name else allocated_bytes(path) for path in paths)
        for path in paths:
            remove_entry(cache, path)
        for lease in used_by:
            (cache.leases / f"{lease.id}.json").unlink(missing_ok=True)
    return freed


def remove_unused(cache_dir: Path, names: Iterable[str], holder: CacheUser, group: bool = False) -> None:
    """Give back what `holder` holds of these, and remove each unless somebody else uses it. Raises StagingError."""
    for name in names:
        release_all(cache_dir, holder, name)
        with contextlib.suppress(LeaseError):
            rm(cache_dir, name, group=group)


def _dataset_row(cache: Cache, name: str) -> Row:
    root = cache.datasets / name
    kind, damaged, num_bytes = "dataset", None, entry_bytes(cache, name)
    try:
        found = check_entry(root)
        kind, num_bytes = found.kind, found.bytes
    except SlipwayError as error:
        damaged = str(error)
    leases = tuple(live_leases(cache, name))
    return Row(name=name, kind=kind, bytes=num_bytes, last_used=last_used(cache, name), leases=leases, damaged=damaged)


def _target(path: Path) -> str | None:
    target = json_object(path).get("target")
    return target if isinstance(target, str) else None
