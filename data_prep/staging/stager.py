"""One copy of a set of files into the cache, from the look for room to the rename, alone or together with other nodes."""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass

from base.errors import Cancelled, DigestMismatch, NotEnoughSpace, SlipwayError, StagingError
from base.refusals import DISK_FULL
from data_prep.cache.layout import Cache
from data_prep.cache.lock import Lock
from data_prep.cache.space import Need, make_room, not_enough
from data_prep.space import free_bytes
from data_prep.staging.copy import MAX_CHUNK_BYTES, ChunkCopy
from data_prep.staging.gather import Gather, Gathered
from data_prep.staging.journal import Chunk
from data_prep.staging.options import Progress, StageOptions
from data_prep.staging.part import Part
from data_prep.staging.recheck import Entry, note_checked
from data_prep.staging.source import Source
from data_prep.staging.table import ChunkTable
from data_prep.staging.together import GroupStaging

logger = logging.getLogger(__name__)

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What one use of a dataset came to: a copy, or a hit."""

    digest: str
    bytes: int
    copied_bytes: int = 0
    storage_bytes: int = 0
    peer_bytes: int = 0
    resumed_bytes: int = 0
    checked_bytes: int = 0
    hit: bool = False


class _Overtaken(Exception):
    """Somebody else, who read around us while we were frozen, has published the same."""


class Stager:
    """One copy, from the look for room to the rename."""

    def __init__(self, cache: Cache, source: Source, lock: Lock, max_bytes: int | None, options: StageOptions, progress: Progress) -> None:
        self.cache, self.source, self.lock, self.max_bytes, self.options, self.progress = cache, source, lock, max_bytes, options, progress
        self.target = cache.datasets / source.name
        self.group_staging = options.group_staging if options.group_staging is not None and not options.group_staging.has_left else None
        self.done = self.resumed = 0
        self.came = Gathered(storage_bytes=0, peer_bytes=0)

    def run(self) -> Copied:
        if any(file.chunk_bytes > MAX_CHUNK_BYTES for file in self.source.file_set.files):
            raise StagingError(f"{self.source.root}: chunks of more than {MAX_CHUNK_BYTES} bytes: this is not a manifest of ours")
        try:
            part = Part(self.cache, self.source, self.lock.held)
        except OSError as error:
            raise self._disk_failed(error) from error
        try:
            came = self._alone(part) if self.group_staging is None else self._together(part, self.group_staging)
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:  # says nothing of the disk
                raise StagingError(
                    f"no more files can be opened while {self.source.name} is copied: {error.strerror}; the unfinished copy is kept, "
                    "the next one resumes it; raise the limit of open files (ulimit -n)"
                ) from error
            part.remove()
            raise self._disk_failed(error) from error
        except DigestMismatch:
            if self.options.single:  # its list may be a forged one, and the next list makes another copy; a dataset's copy is resumed
                part.remove()
            raise
        except _Overtaken:
            part.remove()
            came = self.came
        finally:
            part.close()
        return Copied(
            digest=self.source.file_set.digest,
            bytes=self.source.file_set.bytes,
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

    def _together(self, part: Part, group_staging: GroupStaging) -> Gathered:
        """The missing chunks, from storage or from the others, who are served from the first moment on, whatever the disk has to do."""
        table = ChunkTable(self.source.file_set.files)
        exchange = group_staging.open(part.path, self.source.file_set, table.marks(part.journal.done))
        exchange.announce()
        for chunk in group_staging.during(lambda: self._prepare(part)):
            exchange.swarm.drop(table.number(chunk))
        gather = Gather(self.source, part.path, part.journal, exchange, self.options.copy)
        try:
            gather.run(self._advance, self._show)
            group_staging.during(lambda: self._publish(part))
        finally:
            self.came = gather.came
        return self.came

    def _prepare(self, part: Part) -> set[Chunk]:
        """Room for it, and a look at what an interrupted copy left; returns the chunks that are not what they were."""
        self._reserve(part)
        wrong = part.rehash(self._advance)
        self.done = self.resumed = part.trusted_bytes()
        self._advance(0)
        return wrong

    def _publish(self, part: Part) -> None:
        if part.publish(self.target):
            note_checked(Entry(cache=self.cache, root=self.target, file_set=self.source.file_set))

    def _reserve(self, part: Part) -> None:
        """Make room and take it at once, one stager of this node at a time: what is allocated is nobody else's."""
        need = Need(
            name=self.source.name, bytes=part.missing_bytes(), inodes=2 * len(self.source.file_set.files) + 8, max_bytes=self.max_bytes
        )
        with Lock(self.cache.locks / "space.lock", "space", self.cache.file_mode) as lock:
            lock.acquire(self.options.stall_s)
            with lock.busy(), self.lock.busy():
                self._make_room(part, need)

    def _make_room(self, part: Part, need: Need) -> None:
        try:
            for gone in make_room(self.cache, need):
                logger.info("evicted %s from %s", gone, self.cache.root)
        except NotEnoughSpace:
            if not part.journal.done:
                part.remove()
            raise
        part.allocate()

    def _advance(self, num_bytes: int) -> None:
        self.done += num_bytes
        self.lock.beat(self.done, self.source.file_set.bytes)
        self._show()

    def _show(self) -> None:
        """Without a beat: whoever needs the same on this node reads around a copy that waits for other nodes for long."""
        try:
            self.progress(self.done, self.source.file_set.bytes)
        except OSError as error:  # not one of the cache's disk
            raise Cancelled(f"progress cannot be shown any more: {error.strerror}; the unfinished copy is kept") from error
        if self.target.exists():
            raise _Overtaken

    def _disk_failed(self, error: OSError) -> SlipwayError:
        need = Need(name=self.source.name, bytes=self.source.file_set.bytes, inodes=0, max_bytes=self.max_bytes)
        if error.errno in DISK_FULL:
            return not_enough(self.cache, need, f"the disk became full while copying ({error.strerror})")
        return StagingError(
            f"the disk of the cache {self.cache.root} failed while {self.source.name} was copied: {error.strerror}; the unfinished copy "
            f"was removed ({free_bytes(self.cache.root)} bytes free); see the kernel's log, or set another cache.path"
        )
