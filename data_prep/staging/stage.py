"""Stage a dataset or a single file: check the copy that is here, or make one; a copy that fails, as on a full disk, is removed."""

import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from base.errors import Cancelled, DigestMismatch, NotEnoughSpace, SlipwayError, StagingError
from base.lock import LockFile
from base.publish import publish_directory, remove_tree
from base.sanitize import whole
from base.system import DISK_FULL
from base.untrusted import described
from cluster.types import CacheUser
from data_prep import free_space, hashing, limits, manifest
from data_prep.cache.eviction import Need, make_room, not_enough, sweep
from data_prep.cache.layout import Cache, dataset_name, open_cache, part_of, usable
from data_prep.cache.lock import Lock, describe, write_lease
from data_prep.cache.stored import touch_used
from data_prep.file_set import JOURNAL_NAME, FileSet
from data_prep.manifest import Progress, silent
from data_prep.staging.cache_check import OF_THIS_PROCESS, Entry, find_hit, note_checked, recheck
from data_prep.staging.chunk_journal import ChunkTable, Journal
from data_prep.staging.copy import DIRECT_FROM_BYTES, MAX_CHUNK_BYTES, CopyOptions, Source, open_dataset, open_single
from data_prep.staging.exchange import Exchange, PeerGroup
from data_prep.staging.files import BLOCK, allocate, opened
from data_prep.staging.gather import Gather

logger = logging.getLogger(__name__)


T = TypeVar("T")


class GroupStaging:
    """The part of one node in the staging of a group, as a context manager around `stage` and `serve`. It lasts from the message
    `listening` until all nodes have the files: a node serves others after its own copy is complete. A node alone is a group of one."""

    def __init__(self, peer_group: PeerGroup) -> None:
        self.peer_group = peer_group
        self.exchange: Exchange | None = None
        self._directory: int | None = None
        self._file_set: FileSet | None = None
        self._is_copy = False
        self._has_waited = False
        self.is_stopped = False

    def __enter__(self) -> "GroupStaging":
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def _close(self) -> None:
        if self.exchange is not None:
            self.exchange.close()
        if self._directory is not None:
            self._forget_pages()
            os.close(self._directory)
        self.exchange = self._directory = None

    def waits(self) -> None:
        """Report that another process on this node stages the same files, so that the other nodes do not wait for this one."""
        if not self._has_waited:
            self._has_waited = True
            self.peer_group.say({"waiting": True})

    def open(self, root: Path, file_set: FileSet, have: Iterable[int] | None) -> Exchange:
        """Join with the chunks `have` of the files in `root`, which may be renamed later; None: all of a whole dataset."""
        table = ChunkTable(file_set.files)
        marks = table.marks(range(table.num_chunks) if have is None else have)
        self._file_set, self._is_copy = file_set, have is not None
        self._directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.exchange = Exchange(self.peer_group, file_set.digest, table, marks, self._open_file)
        if self.peer_group.nodes > 1:
            self.exchange.announce()
        return self.exchange

    def leave(self) -> None:
        """Leave the group, and serve nobody: the copy on this node turned out to be damaged."""
        if self.exchange is not None:
            self._close()
            self.peer_group = PeerGroup(num_sharers=self.peer_group.nodes)

    def during(self, what: Callable[[], T]) -> T:
        """Run something slow in a thread, and pass chunks to others meanwhile. An error of that ends the thread at its next progress."""
        exchange = self.exchange
        assert exchange is not None
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(what)
            future.add_done_callback(lambda _future: exchange.wake())
            try:
                while not future.done():
                    exchange.turn(limits.EXCHANGE_TURN_S)
            except BaseException:
                self.is_stopped = True
                raise
            return future.result()

    def serve(self) -> None:
        """Pass on what is here until everybody has it. Raises Cancelled when whoever started us has gone."""
        if self.exchange is not None and self.peer_group.nodes > 1:
            self.exchange.serve()

    def _open_file(self, number: int) -> int:
        assert self._file_set is not None
        path = self._file_set.files[number].path
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._directory)

    def _forget_pages(self) -> None:
        """Drop a large copy from the page cache, so that the first epoch does not depend on how many nodes staged it."""
        if self._file_set is None or not self._is_copy or self._file_set.bytes < DIRECT_FROM_BYTES:
            return
        for number in range(len(self._file_set.files)):
            try:
                descriptor = self._open_file(number)
            except OSError:
                continue
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """The options of staging.

    A file that storage does not show yet is looked for during `patience_s`. A dataset that is here already is hashed for `check_s`, or
    whole with None. `group_staging` is the group that stages the same dataset at the same time, which the caller serves afterwards; None
    means this node alone. `group` is explained at open_cache. With `single` the source is one file with the list of its chunk hashes beside
    it.
    """

    patience_s: float = 60.0
    check_s: float | None = limits.RECHECK_S
    group: bool = False
    single: bool = False
    group_staging: GroupStaging | None = None
    copy: CopyOptions = field(default_factory=CopyOptions)


class Part:
    """The directory of an unfinished copy. The dataset's lock must be held."""

    def __init__(self, cache: Cache, source: Source) -> None:
        self.source = source
        self.path = part_of(cache, source.name)
        self.path.mkdir(exist_ok=True)
        status = self.path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise StagingError(f"{described(self.path, status)} lies where {source.name} is copied to; remove it")
        self.path.chmod(0o2750 if cache.shared else 0o700)
        table = ChunkTable(source.file_set.files)
        self.journal = Journal(self.path, table.num_chunks)
        whole = [self._is_whole(file) for file in table.files]
        self.journal.done = {chunk for chunk in self.journal.done if whole[table.where(chunk)[0]]}

    def close(self) -> None:
        self.journal.close()

    def missing_bytes(self) -> int:
        """Count the bytes that the disk must still give. Allocated blocks are given already."""
        taken = 0
        for file in self.source.file_set.files:
            try:
                taken += min((self.path / file.path).lstat().st_blocks * 512, file.bytes)
            except FileNotFoundError:
                continue
        return self.source.file_set.bytes - taken + len(self.source.file_set.content) + len(self.source.file_set.files) * 2 * BLOCK

    def allocate(self) -> None:
        """Create every file in its full size. Raises OSError without room."""
        mode = stat.S_IMODE(self.path.stat().st_mode)
        for folder in sorted({folder for file in self.source.file_set.files for folder in Path(file.path).parents[:-1]}):
            (self.path / folder).mkdir(exist_ok=True)
            (self.path / folder).chmod(mode)
        for file in self.source.file_set.files:
            path = self.path / file.path
            if path.is_file():
                path.chmod(0o600)  # killed just before it was published
            with opened(path, os.O_RDWR | os.O_CREAT, direct=False) as descriptor:
                allocate(descriptor, file.bytes)

    def publish(self, target: Path) -> bool:
        """Add the manifest, make everything read-only and durable, and rename to `target`. False if that is there already."""
        (self.path / manifest.FILE_NAME).unlink(missing_ok=True)
        descriptor = os.open(self.path / manifest.FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.source.file_set.content)
        for name in [manifest.FILE_NAME, *(file.path for file in self.source.file_set.files)]:
            (self.path / name).chmod(0o444)
        published = publish_directory(self.path, target)
        if published:
            (target / JOURNAL_NAME).unlink(missing_ok=True)
        return published

    def remove(self) -> None:
        """Give the room back: after an error of the node's disk nothing in it is trusted, and what was not synced is never synced again."""
        remove_tree(self.path)

    def _is_whole(self, file: hashing.ChunkedFile) -> bool:
        """Return True if the file has its full size, without which the journal says nothing about it."""
        try:
            status = (self.path / file.path).lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == file.bytes


@dataclass(frozen=True, kw_only=True)
class StagedFiles:
    """A whole, checked dataset on this node, or a single file in the directory `root`.

    Of the `copied_bytes` of this use, `storage_bytes` were read from storage and `peer_bytes` sent by other nodes; a chunk that came twice
    counts twice. `resumed_bytes` are from an interrupted copy. `lost_peers` names nodes that were given up or too slow, with the reason.
    `checked_bytes` were read from this node's disk and hashed, before a hit or after a copy. `lease` is the id to release, None without a
    holder.
    """

    root: Path
    digest: str
    bytes: int
    copied_bytes: int = 0
    storage_bytes: int = 0
    peer_bytes: int = 0
    lost_peers: Mapping[int, str] = field(default_factory=dict)
    resumed_bytes: int = 0
    checked_bytes: int = 0
    hit: bool = False
    seconds: float = 0.0
    lease: str | None = None


class Stager:
    """A copy of a set of files into the cache, from the check for free space to the rename, alone or in a group."""

    def __init__(self, cache: Cache, source: Source, lock: Lock, max_bytes: int | None, options: StageOptions, progress: Progress) -> None:
        assert options.group_staging is not None
        self.cache, self.source, self.lock, self.max_bytes, self.options, self.progress = cache, source, lock, max_bytes, options, progress
        self.target = cache.datasets / source.name
        self.group = options.group_staging
        self.done = self.resumed = self.storage_bytes = self.peer_bytes = 0

    def run(self) -> StagedFiles:
        if any(file.chunk_bytes > MAX_CHUNK_BYTES for file in self.source.file_set.files):
            raise StagingError(f"{self.source.root}: chunks of more than {MAX_CHUNK_BYTES} bytes: this is not a manifest of ours")
        try:
            part = Part(self.cache, self.source)
        except OSError as error:
            raise self._disk_failed(error) from error
        try:
            self._copy(part)
        except OSError as error:
            if error.errno in OF_THIS_PROCESS:
                raise self._refused(str(error.strerror)) from error
            part.remove()
            raise self._disk_failed(error) from error
        except (MemoryError, RuntimeError) as error:  # the latter where no thread can be started
            raise self._refused(str(error) or "no memory is left") from error
        except DigestMismatch:
            if self.options.single:  # its list may be a forged one, and the next list makes another copy; a dataset's copy is resumed
                part.remove()
            raise
        finally:
            part.close()
        return StagedFiles(
            root=self.target,
            digest=self.source.file_set.digest,
            bytes=self.source.file_set.bytes,
            copied_bytes=self.done - self.resumed,
            storage_bytes=self.storage_bytes,
            peer_bytes=self.peer_bytes,
            resumed_bytes=self.resumed,
            checked_bytes=self.done,
        )

    def _copy(self, part: Part) -> None:
        exchange = self.group.open(part.path, self.source.file_set, part.journal.done)
        self.group.during(lambda: self._reserve(part))
        self._gather(part, exchange)
        self.group.during(lambda: self._publish(part))

    def _gather(self, part: Part, exchange: Exchange) -> None:
        gather = Gather(self.source, part.path, part.journal, exchange, self.options.copy)
        try:
            gather.run(self._advance, self._show)
        finally:
            self.storage_bytes, self.peer_bytes, self.resumed = gather.storage_bytes, gather.peer_bytes, gather.resumed_bytes

    def _publish(self, part: Part) -> None:
        if part.publish(self.target):
            note_checked(Entry(cache=self.cache, root=self.target, file_set=self.source.file_set))

    def _reserve(self, part: Part) -> None:
        """Make room and take it at once, one stager of this node at a time: what is allocated is nobody else's."""
        need = Need(
            name=self.source.name, bytes=part.missing_bytes(), inodes=2 * len(self.source.file_set.files) + 8, max_bytes=self.max_bytes
        )
        with LockFile(self.cache.locks / "space.lock", self.cache.file_mode) as lock:
            if not lock.try_take():
                logger.info("waiting for another copy into %s, which makes room", self.cache.root)
            while not lock.take(limits.LOCK_LOOK_S):
                self._show()
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
        self.lock.show(self.done, self.source.file_set.bytes)
        self._show()

    def _show(self) -> None:
        self.progress(self.done, self.source.file_set.bytes)

    def _refused(self, reason: str) -> StagingError:
        return StagingError(
            f"{self.source.name} cannot be copied within the limits of this process: {reason}; the unfinished copy is kept, the next one "
            "resumes it; raise the limit of open files, memory or processes (ulimit -n, -v, -u)"
        )

    def _disk_failed(self, error: OSError) -> SlipwayError:
        need = Need(name=self.source.name, bytes=self.source.file_set.bytes, inodes=0, max_bytes=self.max_bytes)
        if error.errno in DISK_FULL:
            return not_enough(self.cache, need, f"the disk became full while copying ({error.strerror})")
        return StagingError(
            f"the disk of the cache {self.cache.root} failed while {self.source.name} was copied: {error.strerror}; the unfinished copy "
            f"was removed ({free_space.free_bytes(self.cache.root)} bytes free); see the kernel's log, or set another cache.path"
        )


def stage(
    source: Path,
    cache_dir: Path,
    *,
    holder: CacheUser | None = None,
    max_bytes: int | None = None,
    progress: Progress = silent,
    options: StageOptions | None = None,
) -> StagedFiles:
    """Bring the dataset `source`, `<name>-<digest12>`, into the cache and protect it for `holder` (see this_process; None: no lease).

    A kill at any moment leaves a whole dataset or a copy that the next call resumes. Raises NotEnoughSpace before the first byte,
    DigestMismatch when storage holds other bytes than the manifest promises, StorageError when it cannot be read, StagingError otherwise.
    """
    started = time.monotonic()
    options = options or StageOptions()
    if (group := options.group_staging) is None:
        with GroupStaging(PeerGroup()) as alone:
            options = replace(options, group_staging=alone)
            return stage(source, cache_dir, holder=holder, max_bytes=max_bytes, progress=progress, options=options)
    file = open_single(source, options.patience_s) if options.single else None
    name = dataset_name(source) if file is None else file.name
    cache = open_cache(cache_dir, group=options.group)
    show = _shown_by(progress, group)
    with usable(cache.root), Lock(cache, name, "stage") as lock:
        if not lock.try_acquire():
            logger.info("waiting for %s, which has the lock of %s on this node", describe(lock.holder()), name)
            lock.acquire(lambda other: _wait(other, show, group))
        found = _hit(cache, name, lock, options, show, int(started * 1e9))
        sweep(cache, name)
        if found is None:
            found = Stager(cache, file or open_dataset(source, options.patience_s), lock, max_bytes, options, show).run()
        touch_used(cache, name, found.bytes)
        lease = write_lease(cache, name, holder) if holder is not None else None
    show(found.bytes, found.bytes)
    lost = {} if group.exchange is None else {**group.exchange.slow, **group.exchange.lost}
    return replace(found, seconds=time.monotonic() - started, lease=lease, lost_peers=lost)


def _hit(cache: Cache, name: str, lock: Lock, options: StageOptions, show: Progress, asked_ns: int) -> StagedFiles | None:
    group = options.group_staging
    assert group is not None

    def check(entry: Entry) -> int:
        checked = 0

        def on_bytes(num_bytes: int) -> None:
            nonlocal checked
            checked += num_bytes
            lock.show(checked, entry.file_set.bytes)
            show(checked, entry.file_set.bytes)

        group.open(entry.root, entry.file_set, None)  # the others check what they get themselves
        return group.during(lambda: recheck(entry, options.check_s, asked_ns, on_bytes))

    hit = find_hit(cache, name, check)
    if hit is None:
        group.leave()
        return None
    entry, checked_bytes = hit
    return StagedFiles(root=entry.root, digest=entry.file_set.digest, bytes=entry.file_set.bytes, checked_bytes=checked_bytes, hit=True)


def _wait(other: Mapping[str, object], show: Progress, group: GroupStaging) -> None:
    show(*(whole(other.get(key)) or 0 for key in ("done", "total")))
    group.waits()


def _shown_by(progress: Progress, group: GroupStaging) -> Progress:
    """Return a function that shows progress. It raises Cancelled when staging was stopped, and where progress cannot be shown, which says
    nothing of the cache's disk or the files."""

    def show(done: int, total: int) -> None:
        if group.is_stopped:
            raise Cancelled("staging was stopped; an unfinished copy is kept")
        try:
            progress(done, total)
        except OSError as error:
            raise Cancelled(f"progress cannot be shown any more: {error.strerror}; an unfinished copy is kept") from error

    return show
