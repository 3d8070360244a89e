"""Stage a dataset or a single file: a hit, or a copy that nobody else on this node makes at the same time."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.cache.eviction import sweep
from data_prep.cache.holder import describe
from data_prep.cache.layout import Cache, dataset_name, open_cache, usable
from data_prep.cache.lease import refuse_if_removing, write_lease
from data_prep.cache.lock import Lock
from data_prep.cache.stored import touch_used
from data_prep.staging.hit import find_hit
from data_prep.staging.options import Progress, StageOptions
from data_prep.staging.recheck import Entry, recheck
from data_prep.staging.source import open_dataset, open_single
from data_prep.staging.stager import Copied, Stager
from data_prep.staging.together import GroupStaging

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StagedFiles:
    """A whole, checked dataset, or a single file in the directory `root`, on this node. `copied_bytes` came now: `storage_bytes` were read
    from storage and `peer_bytes` sent by other nodes (a chunk that came twice counts twice there). `resumed_bytes` are from an interrupted
    copy; `lost_peers` says which nodes were given up or too slow, and why; `checked_bytes` were read from this node's disk and hashed,
    before this use or, of a copy, after they were written; `lease` is the id to release, None without a holder."""

    root: Path
    digest: str
    bytes: int
    copied_bytes: int
    storage_bytes: int
    peer_bytes: int
    lost_peers: Mapping[int, str]
    resumed_bytes: int
    checked_bytes: int
    hit: bool
    seconds: float
    lease: str | None


def stage(
    source: Path,
    cache_dir: Path,
    *,
    holder: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    progress: Progress | None = None,
    options: StageOptions | None = None,
) -> StagedFiles:
    """Bring the dataset `source`, `<name>-<digest12>`, into the cache and protect it for `holder` (see this_process; None: no lease).

    A kill at any moment leaves a whole dataset or a copy that the next call resumes. Raises NotEnoughSpace before the first byte,
    DigestMismatch when storage holds other bytes than the manifest promises, StorageError when it cannot be read, StagingError otherwise.
    """
    started = time.monotonic()
    options = options or StageOptions()
    file = open_single(source, options.patience_s, options.num_bytes) if options.single else None
    name = dataset_name(source) if file is None else file.name
    cache = open_cache(cache_dir, group=options.group)
    show = progress or _silent
    with usable(cache.root), Lock(cache.locks / f"{name}.lock", "stage", cache.file_mode) as lock:
        if not lock.acquire(options.stall_s, lambda other: _wait(other, show, options.group_staging)):
            refuse_if_removing(lock, name)
            logger.warning("%s has not moved for %g s while staging %s: reading around it", describe(lock.holder()), options.stall_s, name)
        found = _hit(cache, name, lock, options, show, int(started * 1e9))
        if lock.held:
            sweep(cache, name)
        if found is None:
            found = Stager(cache, file or open_dataset(source, options.patience_s), lock, max_bytes, options, show).run()
        touch_used(cache, name, found.bytes)
        lease = write_lease(cache, name, holder) if holder is not None else None
    show(found.bytes, found.bytes)
    seconds = time.monotonic() - started
    exchange = options.group_staging.exchange if options.group_staging is not None else None
    lost = {**exchange.slow, **exchange.lost} if exchange is not None else {}
    return StagedFiles(root=cache.datasets / name, seconds=seconds, lease=lease, lost_peers=lost, **vars(found))


def _hit(cache: Cache, name: str, lock: Lock, options: StageOptions, show: Progress, asked_ns: int) -> Copied | None:
    group_staging = options.group_staging

    def check(entry: Entry) -> int:
        checked = 0

        def on_bytes(num_bytes: int) -> None:
            nonlocal checked
            checked += num_bytes
            lock.beat(checked, entry.file_set.bytes)
            show(checked, entry.file_set.bytes)

        if group_staging is None:
            return recheck(entry, options.check_s, asked_ns, on_bytes)
        group_staging.open(entry.root, entry.file_set, None).announce()  # the others check what they get themselves
        return group_staging.during(lambda: recheck(entry, options.check_s, asked_ns, on_bytes))

    hit = find_hit(cache, name, lock, check)
    if hit is None:
        if group_staging is not None:
            group_staging.leave()
        return None
    return Copied(digest=hit[0].file_set.digest, bytes=hit[0].file_set.bytes, checked_bytes=hit[1], hit=True)


def _wait(other: Mapping[str, Any], show: Progress, group_staging: GroupStaging | None) -> None:
    show(other.get("done", 0), other.get("total", 0))
    if group_staging is not None:
        group_staging.waits()


def _silent(_done: int, _total: int) -> None:
    """The progress of who shows none."""
