"""Stage a dataset: a hit, or a copy that nobody else on this node makes at the same time."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from base.errors import Cancelled, NotEnoughSpace, SlipwayError, StagingError
from data_prep.cache.eviction import sweep
from data_prep.cache.holder import JobAlive, describe
from data_prep.cache.layout import Cache, dataset_name, open_cache, usable
from data_prep.cache.lease import refuse_if_removing, write_lease
from data_prep.cache.lock import Lock
from data_prep.cache.space import Need, free_bytes, make_room, not_enough
from data_prep.cache.stored import touch_used
from data_prep.staging.copy import MAX_CHUNK_BYTES, ChunkCopy, CopyOptions
from data_prep.staging.gather import Gather, Gathered
from data_prep.staging.hit import find_hit
from data_prep.staging.journal import Chunk
from data_prep.staging.meeting import Meeting
from data_prep.staging.part import Part
from data_prep.staging.recheck import CHECK_S, Entry, note_checked, recheck
from data_prep.staging.source import Source
from data_prep.staging.table import ChunkTable

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """How patient, and how to copy.

    `stall_s`: a stager of the same dataset that does not move for so long is read around; `patience_s`: how long a file that storage
    does not show yet is looked for; `check_s`: how long a dataset that is here already may be hashed, None: all of it; `job_alive`:
    judges leases that name a job and no process; `meeting`: the nodes that stage the same dataset at the same time, None for this one
    alone; the caller serves them afterwards; `group`: see open_cache.
    """

    stall_s: float = 60.0
    patience_s: float = 60.0
    check_s: float | None = CHECK_S
    group: bool = False
    job_alive: JobAlive | None = None
    meeting: Meeting | None = None
    copy: CopyOptions = field(default_factory=CopyOptions)


@dataclass(frozen=True, kw_only=True)
class StagedDataset:
    """A whole, checked dataset on this node. `copied_bytes` came now: `storage_bytes` were read from storage and `peer_bytes` sent by other
    nodes (a chunk that came twice counts twice there). `resumed_bytes` are from an interrupted copy; `lost_peers` says which nodes were
    given up or too slow, and why; `checked_bytes` were read from this node's disk and hashed, before this use or, of a copy, after they
    were written; `lease` is the id to release, None without a holder."""

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


@dataclass(frozen=True, kw_only=True)
class _Copied:
    digest: str
    bytes: int
    copied_bytes: int = 0
    storage_bytes: int = 0
    peer_bytes: int = 0
    resumed_bytes: int = 0
    checked_bytes: int = 0
    hit: bool = False


def stage(
    source_dir: Path,
    cache_dir: Path,
    *,
    holder: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    progress: Progress | None = None,
    options: StageOptions | None = None,
) -> StagedDataset:
    """Bring the dataset `source_dir`, `<name>-<digest12>`, into the cache and protect it for `holder` (see this_process; None: no lease).

    A kill at any moment leaves a whole dataset or a copy that the next call goes on with. Raises NotEnoughSpace before the first byte,
    DigestMismatch when storage holds other bytes than the manifest promises, StorageError when it cannot be read, StagingError otherwise.
    """
    started = time.monotonic()
    options = options or StageOptions()
    name = dataset_name(source_dir)
    cache = open_cache(cache_dir, group=options.group)
    show = progress or _silent
    with usable(cache.root), Lock(cache.locks / f"{name}.lock", "stage", cache.file_mode) as lock:
        if not lock.acquire(options.stall_s, lambda other: _wait(other, show, options.meeting)):
            refuse_if_removing(lock, name)
            logger.warning("%s has not moved for %g s while staging %s: reading around it", describe(lock.holder()), options.stall_s, name)
        found = _hit(cache, name, lock, options, show, int(started * 1e9))
        if lock.held:
            sweep(cache, name)
        if found is None:
            found = _Stager(cache, Source(source_dir, options.patience_s), lock, max_bytes, options, show).run()
        touch_used(cache, name, found.bytes)
        lease = write_lease(cache, name, holder) if holder is not None else None
    show(found.bytes, found.bytes)
    seconds = time.monotonic() - started
    exchange = options.meeting.exchange if options.meeting is not None else None
    lost = {**exchange.slow, **exchange.lost} if exchange is not None else {}
    return StagedDataset(root=cache.datasets / name, seconds=seconds, lease=lease, lost_peers=lost, **vars(found))


def _hit(cache: Cache, name: str, lock: Lock, options: StageOptions, show: Progress, asked_ns: int) -> _Copied | None:
    meeting = options.meeting

    def check(entry: Entry) -> int:
        checked = 0

        def on_bytes(num_bytes: int) -> None:
            nonlocal checked
            checked += num_bytes
            lock.beat(checked, entry.manifest.bytes)
            show(checked, entry.manifest.bytes)

        if meeting is None:
            return recheck(entry, options.check_s, asked_ns, on_bytes)
        meeting.open(entry.root, entry.manifest, entry.digest, None).announce()  # the others check what they get themselves
        return meeting.during(lambda: recheck(entry, options.check_s, asked_ns, on_bytes))

    hit = find_hit(cache, name, lock, check)
    if hit is None:
        if meeting is not None:
            meeting.leave()
        return None
    return _Copied(digest=hit[0].digest, bytes=hit[0].manifest.bytes, checked_bytes=hit[1], hit=True)


def _wait(other: Mapping[str, Any], show: Progress, meeting: Meeting | None) -> None:
    show(other.get("done", 0), other.get("total", 0))
    if meeting is not None:
        meeting.waits()


def _silent(_done: int, _total: int) -> None:
    """The progress of who shows none."""


class _Overtaken(Exception):
    """Somebody else, who read around us while we were frozen, has published the dataset."""


class _Stager:
    """One copy, from the look for room to the rename."""

    def __init__(self, cache: Cache, source: Source, lock: Lock, max_bytes: int | None, options: StageOptions, progress: Progress) -> None:
        self.cache, self.source, self.lock, self.max_bytes, self.options, self.progress = cache, source, lock, max_bytes, options, progress
        self.target = cache.datasets / source.name
        self.meeting = options.meeting if options.meeting is not None and not options.meeting.has_left else None
        self.done = self.resumed = 0
        self.came = Gathered(storage_bytes=0, peer_bytes=0)

    def run(self) -> _Copied:
        if any(shard.chunk_bytes > MAX_CHUNK_BYTES for shard in self.source.manifest.shards):
            raise StagingError(f"{self.source.root}: chunks of more than {MAX_CHUNK_BYTES} bytes: this is no manifest of ours")
        try:
            part = Part(self.cache, self.source, self.lock.held)
        except OSError as error:
            raise self._disk_failed(error) from error
        try:
            came = self._alone(part) if self.meeting is None else self._together(part, self.meeting)
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:  # says nothing of the disk
                raise StagingError(
                    f"no more files can be opened while {self.source.name} is copied: {error.strerror}; the unfinished copy is kept, "
                    "the next one goes on with it; raise the limit of open files (ulimit -n)"
                ) from error
            part.remove()
            raise self._disk_failed(error) from error
        except _Overtaken:
            part.remove()
            came = self.came
        finally:
            part.close()
        return _Copied(
            digest=self.source.digest,
            bytes=self.source.manifest.bytes,
            copied_bytes=self.done - self.resumed,
            storage_bytes=came.storage_bytes,
            peer_bytes=came.peer_bytes,
            resumed_bytes=self.resumed,
            checked_bytes=self.done,
        )

    def _alone(self, part: Part) -> Gathered:
        """The missing chunks from storage; then the dataset has its name."""
        self._prepare(part)
        copied = ChunkCopy(self.source, part.path, part.journal, self.options.copy, self._advance).run()
        self._publish(part)
        return Gathered(storage_bytes=copied, peer_bytes=0)

    def _together(self, part: Part, meeting: Meeting) -> Gathered:
        """The missing chunks, from storage or from the others, who are served from the first moment on, whatever the disk has to do."""
        table = ChunkTable(self.source.manifest.shards)
        exchange = meeting.open(part.path, self.source.manifest, self.source.digest, table.marks(part.journal.done))
        exchange.announce()
        for chunk in meeting.during(lambda: self._prepare(part)):
            exchange.swarm.drop(table.number(chunk))
        gather = Gather(self.source, part.path, part.journal, exchange, self.options.copy)
        try:
            gather.run(self._advance)
            meeting.during(lambda: self._publish(part))
        finally:
            self.came = gather.came
        return self.came

    def _prepare(self, part: Part) -> set[Chunk]:
        """Room for it, and a look at what an interrupted copy left; returns the chunks that are not what they were."""
        self._reserve(part)
        wrong = part.rehash(lambda _num_bytes: self._advance(0))
        self.done = self.resumed = part.trusted_bytes()
        self._advance(0)
        return wrong

    def _publish(self, part: Part) -> None:
        if part.publish(self.target):
            note_checked(Entry(cache=self.cache, root=self.target, manifest=self.source.manifest, digest=self.source.digest))

    def _reserve(self, part: Part) -> None:
        """Make room and take it at once, one stager of this node at a time: what is allocated is nobody else's."""
        need = Need(
            name=self.source.name, bytes=part.missing_bytes(), inodes=2 * len(self.source.manifest.shards) + 8, max_bytes=self.max_bytes
        )
        with Lock(self.cache.locks / "space.lock", "space", self.cache.file_mode) as lock:
            lock.acquire(self.options.stall_s)
            try:
                for gone in make_room(self.cache, need, self.options.job_alive):
                    logger.info("evicted %s from %s", gone, self.cache.root)
            except NotEnoughSpace:
                if not part.journal.done:
                    part.remove()
                raise
            part.allocate()

    def _advance(self, num_bytes: int) -> None:
        self.done += num_bytes
        self.lock.beat(self.done, self.source.manifest.bytes)
        try:
            self.progress(self.done, self.source.manifest.bytes)
        except OSError as error:  # not one of the cache's disk
            raise Cancelled(f"progress cannot be shown any more: {error.strerror}; the unfinished copy is kept") from error
        if self.target.exists():
            raise _Overtaken

    def _disk_failed(self, error: OSError) -> SlipwayError:
        need = Need(name=self.source.name, bytes=self.source.manifest.bytes, inodes=0, max_bytes=self.max_bytes)
        if error.errno in _FULL:
            return not_enough(self.cache, need, f"the disk became full while copying ({error.strerror})", self.options.job_alive)
        return StagingError(
            f"the disk of the cache {self.cache.root} failed while {self.source.name} was copied: {error.strerror}; the unfinished copy "
            f"was removed ({free_bytes(self.cache.root)} bytes free); see the kernel's log, or set another cache.path"
        )
