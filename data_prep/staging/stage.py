"""Stage a dataset or a single file: check the copy that is here, or make one that nobody else on this node makes at the same time."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from mmap import mmap
from pathlib import Path
from typing import Any, Final, TypeVar

import xxhash

from base.errors import Cancelled, DigestMismatch, NotEnoughSpace, RecordError, SlipwayError, StagingError
from base.logs import printable
from base.parallel import each
from base.publish import publish, publish_directory, remove_tree
from base.refusals import DISK_FULL
from base.seal import read_sealed, sealed_text
from base.units import some
from cluster.processes import boot_id
from data_prep.cache.eviction import sweep
from data_prep.cache.holder import describe, this_process
from data_prep.cache.layout import Cache, dataset_name, mark_of, open_cache, part_of, usable
from data_prep.cache.lease import live_leases, refuse_if_removing, write_lease
from data_prep.cache.lock import Lock
from data_prep.cache.space import Need, make_room, not_enough
from data_prep.cache.stored import check_entry, remove_entry, touch_used
from data_prep.cache.unlisted import remove_unlisted
from data_prep.file_set import JOURNAL_NAME, FileSet
from data_prep.hashing import ChunkedFile
from data_prep.limits import EXCHANGE_TURN_S, RECHECK_S, SLOW_SCAN_EVERY_S
from data_prep.manifest import FILE_NAME
from data_prep.space import free_bytes
from data_prep.staging.copy import (
    DIRECT_FROM_BYTES,
    MAX_CHUNK_BYTES,
    ChunkCopy,
    CopyOptions,
    Rate,
    ReadBack,
    Source,
    SourceFile,
    Target,
    VerifiedReader,
    direct_io,
    disk_lies,
    open_dataset,
    open_single,
    open_source,
)
from data_prep.staging.exchange import Exchange, PeerGroup
from data_prep.staging.files import BLOCK, OpenFiles, aligned_buffer, allocate, open_file
from data_prep.staging.swarm import NOBODY, owners_of
from data_prep.staging.table import Chunk, ChunkTable, Journal

# Checks at each use


logger = logging.getLogger(__name__)

SCHEMA: Final = "slipway.checked/1"
_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A published directory of a cache, whose name matches the digest of its manifest."""

    cache: Cache
    root: Path
    file_set: FileSet


def recheck(entry: Entry, check_s: float | None, asked_ns: int, on_bytes: Callable[[int], None]) -> int:
    """Check that the files are what the manifest promises, and return the bytes hashed for that.

    A note in the cache keeps the inode, size and times of each file when it was hashed last. A file that differs from it is hashed whole. A
    disk that loses data moves no time, so chunks of the other files are hashed too, for `check_s` seconds (None: all of them); each use
    continues where the last one ended. What another process of this user has checked since `asked_ns` (time.monotonic_ns) counts.
    `on_bytes(n)` is called on the way. Raises DigestMismatch naming files and chunks.
    """
    begun_ns = time.monotonic_ns()
    statuses = _statuses(entry)
    mark = _read_mark(entry)
    if mark.get("boot_id") == boot_id() and mark["begun_ns"] >= asked_ns and mark["shards"] == statuses:
        return 0
    known = mark.get("shards", {})
    files = entry.file_set.files
    moved = {number for number, file in enumerate(files) if known.get(file.name) != statuses[file.name]}
    chunks = [(number, chunk) for number, file in enumerate(files) for chunk in range(len(file.chunks))]
    first = mark["next"] % len(chunks) if mark and chunks else 0
    rest = [chunk for chunk in chunks[first:] + chunks[:first] if chunk[0] not in moved]
    looked: list[int] = []

    def count(num_bytes: int) -> None:
        looked.append(num_bytes)
        on_bytes(num_bytes)

    must = [chunk for chunk in chunks if chunk[0] in moved]
    past_cache = entry.file_set.bytes >= DIRECT_FROM_BYTES  # a smaller one is read from memory afterwards: what was right stays there
    try:
        with contextlib.closing(ReadBack(entry.root, files, past_cache=past_cache)) as read_back:
            wrong = read_back.wrong(must, on_bytes=count)
            wrong += read_back.wrong(rest, None if check_s is None else time.monotonic() + check_s, count)
    except OSError as error:
        raise DigestMismatch(f"{entry.root} cannot be read: {error.strerror}") from error
    if wrong:
        raise DigestMismatch(_problem(entry, wrong))
    position = len(looked) - len(must)
    after = rest[position % len(rest)] if rest else (0, 0)
    _write_mark(entry, {"begun_ns": begun_ns, "next": chunks.index(after) if chunks else 0, "shards": statuses})
    return sum(looked)


def note_checked(entry: Entry) -> None:
    """Note that all of it was just read back from the disk and is right."""
    _write_mark(entry, {"begun_ns": time.monotonic_ns(), "next": 0, "shards": _statuses(entry)})


def _statuses(entry: Entry) -> dict[str, list[int]]:
    found = {}
    for file in entry.file_set.files:
        status = (entry.root / file.path).lstat()
        found[file.name] = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return found


def _read_mark(entry: Entry) -> dict[str, Any]:
    """Read the note {boot_id, begun_ns, next, shards} about this dataset. It is empty where there is none of this user."""
    path = mark_of(entry.cache, entry.root.name)
    try:
        if path.lstat().st_uid != os.geteuid():
            return {}
        mark = read_sealed(path)
    except (OSError, RecordError):
        return {}
    ours = isinstance(mark, dict) and mark.get("schema") == SCHEMA and mark.get("digest") == entry.file_set.digest and "seal" in mark
    return mark if ours else {}


def _write_mark(entry: Entry, content: dict[str, Any]) -> None:
    """Write the note. A failure is only logged, since the next use then hashes everything."""
    mark = {"schema": SCHEMA, "digest": entry.file_set.digest, "boot_id": boot_id(), **content}
    try:
        publish(mark_of(entry.cache, entry.root.name), sealed_text(mark), 0o600)
    except OSError as error:
        logger.warning("that %s was checked cannot be noted: %s; its next use hashes all of it", entry.root.name, error.strerror)


def _problem(entry: Entry, wrong: list[Chunk]) -> str:
    files = entry.file_set.files
    return f"{some([f'chunk {chunk} of {files[number].name}' for number, chunk in wrong], _SHOWN)} differ from the manifest"


# Hits


logger = logging.getLogger(__name__)


def find_hit(cache: Cache, name: str, lock: Lock, check: Callable[[Entry], int]) -> tuple[Entry, int] | None:
    """Find the published dataset and return it with the bytes that `check` hashed, or None if there is no whole one.

    `check` raises DigestMismatch for a damaged dataset, which is removed. Raises StagingError when it cannot be removed because it belongs
    to another user.
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
    """Remove what programs have put among the files of a tree, and return True if there was any.

    The files of the tree stay, since another run may be reading them.
    """
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


# Staging in a group


T = TypeVar("T")


class GroupStaging:
    """The part of one node in the staging of a group, as a context manager around `stage` and `serve`.

    It lasts from the message `listening` until all nodes have the files: a node serves others after its own copy is complete.
    """

    def __init__(self, peer_group: PeerGroup) -> None:
        self.peer_group = peer_group
        self.exchange: Exchange | None = None
        self._directory: int | None = None
        self._file_set: FileSet | None = None
        self._is_copy = False
        self._has_waited = False
        self.has_left = False
        """True after the copy on this node turned out to be damaged: it then copies alone, and serves nobody."""

    def __enter__(self) -> GroupStaging:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.exchange is not None:
            self.exchange.close()
        if self._directory is not None:
            self._forget_pages()
            os.close(self._directory)

    def waits(self) -> None:
        """Report that another process on this node stages the same files, so that the other nodes do not wait for this one."""
        if not self._has_waited:
            self._has_waited = True
            self.peer_group.say({"waiting": True})

    def open(self, root: Path, file_set: FileSet, have: bytearray | None) -> Exchange:
        """Join with the chunks `have` of the files in `root`, which may be renamed later; None: all of a whole dataset."""
        table = ChunkTable(file_set.files)
        self._file_set, self._is_copy = file_set, have is not None
        self._directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        marks = bytearray(b"\1") * table.num_chunks if have is None else have
        self.exchange = Exchange(self.peer_group, file_set.digest, table, marks, self._open_file)
        return self.exchange

    def leave(self) -> None:
        """Leave the group, whose other nodes then do without this one."""
        if self.exchange is not None:
            self.has_left = True
            self.exchange.close()
            self.exchange = None

    def during(self, what: Callable[[], T]) -> T:
        """Run something slow in a thread, and pass chunks to the others meanwhile."""
        exchange = self.exchange
        assert exchange is not None
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(what)
            future.add_done_callback(lambda _future: exchange.wake())
            while not future.done():
                exchange.turn(EXCHANGE_TURN_S)
            return future.result()

    def serve(self) -> None:
        """Pass on what is here until everybody has it. Raises Cancelled when whoever started us has gone."""
        if self.exchange is not None:
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


# Options


Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """The options of staging.

    After `stall_s` without progress, another stager of the same dataset is bypassed by a copy of its own. A file that storage does not show
    yet is looked for during `patience_s`. A dataset that is here already is hashed for `check_s`, or whole with None. `group_staging` is
    the group that stages the same dataset at the same time, which the caller serves afterwards; None means this node alone. `group` is
    explained at open_cache. With `single` the source is one file with the list of its chunk hashes beside it, and `num_bytes` its length,
    where known.
    """

    stall_s: float = 60.0
    patience_s: float = 60.0
    check_s: float | None = RECHECK_S
    group: bool = False
    single: bool = False
    num_bytes: int | None = None
    group_staging: GroupStaging | None = None
    copy: CopyOptions = field(default_factory=CopyOptions)


# Reads from storage in a group


logger = logging.getLogger(__name__)


class Quota:
    """The chunks that this node reads from storage: first its own share, later those that their readers do not bring."""

    def __init__(self, exchange: Exchange) -> None:
        others = exchange.others
        assert others is not None
        self._exchange, self._others, self._me = exchange, others, exchange.peer_group.index
        self._swarm = exchange.swarm
        self._owners = owners_of(exchange.table.num_chunks, exchange.held, others.readers)
        self._whole = {index for index, marks in exchange.held.items() if all(marks)}
        self._mine = deque(chunk for chunk, owner in enumerate(self._owners) if owner == self._me)
        self._extra: deque[int] = deque()
        self._next_scan = 0.0
        self.slow = exchange.slow

    def next(self, patience_s: float) -> int | None:
        """Choose a chunk to read from storage now. After `patience_s` without progress of others, their share is taken over."""
        now = time.monotonic()
        chunk = self._wanted(now - patience_s)
        if chunk is not None or self._swarm.reading:
            return chunk
        if now < self._next_scan or self._me not in self._readers():
            return None
        self._next_scan = now + SLOW_SCAN_EVERY_S
        self._extra = deque(self._taken_over(now, patience_s))
        return self._wanted(now - patience_s)

    def _wanted(self, stuck_before: float) -> int | None:
        """Return the next chunk of the own share that nobody else has or brings, else one that was taken over and nobody sends yet."""
        swarm = self._swarm
        while self._mine:
            chunk = self._mine.popleft()
            if not (swarm.have[chunk] or swarm.is_coming(chunk) or swarm.holders[chunk]):
                return chunk
        while self._extra:
            chunk = self._extra.popleft()
            if swarm.is_unclaimed(chunk, stuck_before):
                return chunk
        return None

    def num_sharers(self) -> int:
        """Return how many nodes may read from storage now and share the rate that the site allows."""
        return max(1, sum(index not in self._whole for index in self._readers()))

    def _readers(self) -> list[int]:
        """Return the nodes that may read from storage now: at most as many as the site allows, the appointed ones first."""
        rest = [index for index in range(len(self._others.peers)) if index not in self._others.readers]
        there = [index for index in (*self._others.readers, *rest) if self._exchange.is_there(index)]
        return there if self._others.most_readers is None else there[: max(1, self._others.most_readers)]

    def _taken_over(self, now: float, patience_s: float) -> list[int]:
        """List the chunks that nobody brings, divided among the remaining readers.

        The list runs from the end, since their own readers work from the front.
        """
        chunks = self._swarm.unclaimed(now - patience_s)
        bringers = {chunk: self._bringers(chunk) for chunk in chunks}
        for index in set().union(*bringers.values()):
            if now - self._exchange.news_at[index] > patience_s:
                self.slow[index] = f"it brought nothing for {patience_s:.1f} s: its share was read by others"
                logger.warning("node %d of those that stage the same files is slow: %s", index, self.slow[index])
        free = [chunk for chunk in reversed(chunks) if bringers[chunk] <= self.slow.keys()]
        readers = [index for index in self._readers() if index not in self.slow or index == self._me]
        shared = free[readers.index(self._me) :: len(readers)]
        quiet_s = now - max(self._exchange.news_at.values(), default=now)
        return shared or (free if quiet_s > 2 * patience_s else [])

    def _bringers(self, chunk: int) -> set[int]:
        """Return the nodes that should bring a chunk: its reader, or those that had it from the start, without lost and slow ones."""
        owner = self._owners[chunk]
        found = [index for index, marks in self._exchange.held.items() if marks[chunk]] if owner == NOBODY else [owner]
        return {index for index in found if index != self._me and index not in self.slow and self._exchange.is_there(index)}


# Copies in a group


COMING_BYTES: Final = 192 << 20
PER_PEER: Final = 2
_WRITERS: Final = 2


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The origin of the copied bytes."""

    storage_bytes: int
    peer_bytes: int


class Gather:
    """A copy in a group of all chunks that `journal` lacks: some come from storage, the others from other nodes, and all are checked here.

    Each written chunk is announced at once, so that it travels on while the next one is read. The caller's thread calls `on_bytes(n)`, also
    with 0; it may raise to stop.
    """

    def __init__(self, source: Source, part: Path, journal: Journal, exchange: Exchange, options: CopyOptions) -> None:
        self._journal, self._exchange, self._options = journal, exchange, options
        self._table, self._swarm = exchange.table, exchange.swarm
        files = source.file_set.files
        self._targets = OpenFiles[Target](lambda number: Target(part, files[number], False), 256, lambda target: target.is_synced)
        self._sources = OpenFiles[SourceFile](lambda number: open_source(source, files[number], self._direct), 8)
        self._read_back = ReadBack(part, files, past_cache=True)
        self._source, self._part = source, part
        self._rate = Rate(None)
        self._readers = ThreadPoolExecutor(options.threads)
        self._writers = ThreadPoolExecutor(_WRITERS)
        self._checker = ThreadPoolExecutor(1)
        self._tries: Counter[int] = Counter()
        self._most_coming = max(4, min(48, COMING_BYTES // max(1, self._table.largest)))
        self._spare: list[memoryview] = []
        self._buffers = threading.local()
        self._asked_at = 0.0
        self._jobs = 0
        self._done: deque[tuple[Callable[[Any], None], Future[Any]]] = deque()
        self._unsynced: list[int] = []
        self._unsynced_bytes = 0
        self._syncing = False
        self._closed = False
        self.storage_bytes = self.peer_bytes = 0

    @property
    def came(self) -> Gathered:
        """Return the bytes copied so far, by origin."""
        return Gathered(storage_bytes=self.storage_bytes, peer_bytes=self.peer_bytes)

    def run(self, on_bytes: Callable[[int], None], on_wait: Callable[[], None]) -> None:
        """Copy everything that is missing, and sync it.

        `on_wait` is called until the other nodes are known; it may raise too. Raises the errors of a copy without a group, and Cancelled.
        """
        exchange, self._on_bytes = self._exchange, on_bytes
        exchange.taker = self
        try:
            while exchange.others is None:
                exchange.turn(EXCHANGE_TURN_S)
                on_wait()
            self._quota = Quota(exchange)
            self._reader = VerifiedReader(self._source, self._rate, self._options.retries)
            self._share_rate()
            while self._swarm.missing or self._jobs > self._swarm.num_left or self._unsynced:
                self._read_more()
                if exchange.changed:
                    exchange.changed = False
                    self._ask_more()
                self._sync_sometimes()
                exchange.turn(0 if self._done else EXCHANGE_TURN_S)
                self._take_done()
                on_bytes(0)
                exchange.changed |= time.monotonic() - self._asked_at > EXCHANGE_TURN_S
        finally:
            self._close()

    def _close(self) -> None:
        """Close the files. A read that storage has not answered is abandoned."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        for pool in (self._writers, self._checker):
            pool.shutdown(wait=True, cancel_futures=True)
        self._closed = True
        for files in (self._targets, self._sources, self._read_back):
            files.close()

    def _share_rate(self) -> None:
        if self._options.bytes_per_s is not None:
            self._rate.set(self._options.bytes_per_s / self._quota.num_sharers())

    @cached_property
    def _direct(self) -> bool:
        """Return True if storage is read past the page cache, so that nothing is read ahead into another node's share."""
        return direct_io(self._source, self._part, self._options.direct is not False)[0]

    # -- what to do next

    @property
    def _patience_s(self) -> float:
        return max(self._exchange.peer_group.late_s, 4 * self._exchange.longest_s)

    def _read_more(self) -> None:
        while len(self._swarm.reading) < self._options.threads + 1:
            chunk = self._quota.next(self._patience_s)
            if chunk is None:
                return
            self._swarm.reading[chunk] = begun = time.monotonic()
            self._start(self._readers, partial(self._read, chunk), partial(self._was_read, chunk, begun))

    def _ask_more(self) -> None:
        """Ask everybody for a little, the least busy first."""
        self._asked_at = now = time.monotonic()
        self._share_rate()
        swarm, peers = self._swarm, self._exchange.connected()
        for depth in range(PER_PEER):
            for peer in peers:
                if swarm.num_asked + len(swarm.writing) >= self._most_coming:
                    return
                if len(swarm.views[peer].asked) == depth:
                    chunk = swarm.pick(peer)
                    if chunk is None and not depth:
                        chunk = swarm.pick_late(peer, now - self._patience_s)
                    if chunk is not None:
                        self._exchange.ask(peer, chunk)

    # -- jobs of other threads

    def _start(self, pool: ThreadPoolExecutor, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Start work in the pool. `then(result)` runs later in the caller's thread."""

        def ended(future: Future[Any]) -> None:
            self._done.append((then, future))
            self._exchange.wake()

        self._jobs += 1
        pool.submit(work).add_done_callback(ended)

    def _take_done(self) -> None:
        while self._done:
            then, future = self._done.popleft()
            self._jobs -= 1
            then(future.result())

    def _read(self, number: int) -> None:
        file, chunk = self._table.where(number)
        buffer = getattr(self._buffers, "buffer", None)
        if buffer is None:
            buffer = self._buffers.buffer = aligned_buffer(self._table.largest)
        with self._sources.use(file) as source, self._targets.use(file) as target:
            try:
                content = self._reader.read(source, self._table.files[file], chunk, buffer)
            except (SlipwayError, OSError):
                if self._swarm.have[number]:
                    return
                raise
            if not self._swarm.have[number]:  # else another node has sent it meanwhile
                target.write(content, self._table.span(number)[1])

    def _was_read(self, number: int, begun: float, _result: None) -> None:
        self._swarm.reading.pop(number, None)
        num_bytes = self._table.span(number)[2]
        self.storage_bytes += num_bytes
        self._is_here(number, begun)

    # -- what others send

    def buffer(self, chunk: int) -> memoryview:
        """Return a buffer for a chunk that is arriving."""
        base = self._spare.pop() if self._spare else aligned_buffer(self._table.largest)
        return base[: self._table.span(chunk)[2]]

    def took(self, peer: int, chunk: int, buffer: memoryview) -> None:
        """Check and write a chunk that has arrived. A chunk that two nodes were asked for may arrive again after the end."""
        swarm = self._swarm
        begun = swarm.views[peer].asked.get(chunk, time.monotonic())
        swarm.answered(peer, chunk)  # what our own disk keeps waiting is not late
        if swarm.have[chunk] or chunk in swarm.writing or self._closed:
            self._give_back(buffer)
            return
        swarm.writing.add(chunk)
        self._start(self._writers, partial(self._write, chunk, buffer), partial(self._was_written, peer, chunk, begun, buffer))

    def _write(self, number: int, buffer: memoryview) -> bool:
        """Check and write a chunk in a thread. Return False for wrong bytes."""
        if xxhash.xxh3_128_hexdigest(buffer) != self._table.hash(number):
            return False
        file, offset, _ = self._table.span(number)
        with self._targets.use(file) as target:
            target.write(buffer, offset)
        return True

    def _was_written(self, peer: int, chunk: int, begun: float, buffer: memoryview, right: bool) -> None:
        self._swarm.writing.discard(chunk)
        if right:
            self.peer_bytes += len(buffer)
            self._is_here(chunk, begun)
        else:
            self._exchange.lose(peer, f"it sent wrong bytes for chunk {chunk}")
        self._give_back(buffer)

    def _give_back(self, buffer: memoryview) -> None:
        assert isinstance(buffer.obj, mmap)
        self._spare.append(memoryview(buffer.obj))

    # -- what is here

    def _is_here(self, chunk: int, begun: float) -> None:
        self._exchange.longest_s = max(0.95 * self._exchange.longest_s, time.monotonic() - begun)
        self._exchange.changed = True
        if self._swarm.got(chunk):
            self._unsynced.append(chunk)
            self._unsynced_bytes += self._table.span(chunk)[2]
            self._exchange.tell(chunk)
            self._on_bytes(self._table.span(chunk)[2])

    def _sync_sometimes(self) -> None:
        """Flush the data in a thread, one sync at a time. They are read back after that, and then listed in the journal."""
        enough = self._unsynced_bytes >= self._options.sync_bytes or not (self._swarm.missing or self._jobs > self._swarm.num_left)
        if self._syncing or not enough or not self._unsynced:
            return
        chunks, self._unsynced, self._unsynced_bytes = self._unsynced, [], 0
        self._syncing = True
        self._start(self._checker, partial(self._sync, [self._table.where(chunk) for chunk in chunks]), self._was_synced)

    def _sync(self, chunks: list[Chunk]) -> list[Chunk]:
        """Flush the data in a thread and return the chunks that the disk does not give back."""
        each(Target.sync, self._targets.all())
        wrong = set(self._read_back.wrong(chunks))
        self._journal.add([chunk for chunk in chunks if chunk not in wrong])
        return sorted(wrong)

    def _was_synced(self, wrong: list[Chunk]) -> None:
        self._syncing = False
        for where in wrong:
            chunk = self._table.number(where)
            self._tries[chunk] += 1
            if self._tries[chunk] > self._options.retries:
                raise disk_lies(self._part, self._table.files, wrong, self._tries[chunk])
            self._swarm.drop(chunk)
            self._exchange.changed = True
            self._on_bytes(-self._table.span(chunk)[2])


# Unfinished copies


logger = logging.getLogger(__name__)


class Part:
    """The directory of an unfinished copy.

    With the dataset's lock it is the one that can be resumed; without it, since the lock's holder is frozen, a separate one.
    """

    def __init__(self, cache: Cache, source: Source, locked: bool) -> None:
        self.source = source
        common = part_of(cache, source.name)
        me = this_process()
        own = common.parent / f"{common.name}-{me['pid']}-{me['start_time']}"
        self.path = common if locked and _is_free(common) else own
        self.path.mkdir(exist_ok=True)
        self.path.chmod(0o2750 if cache.shared else 0o700)
        self.journal = Journal(self.path, source.file_set.digest)
        struck = {number for number, file in enumerate(source.file_set.files) if not self._is_whole(file)}
        self.journal.strike({chunk for chunk in self.journal.done if chunk[0] in struck})

    def close(self) -> None:
        self.journal.close()

    def trusted_bytes(self) -> int:
        """Count the bytes that need not be copied again."""
        files = self.source.file_set.files
        return sum(
            min(files[number].chunk_bytes, files[number].bytes - chunk * files[number].chunk_bytes) for number, chunk in self.journal.done
        )

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
            descriptor = open_file(path, os.O_RDWR | os.O_CREAT, direct=False)
            try:
                allocate(descriptor, file.bytes)
            finally:
                os.close(descriptor)

    def rehash(self, on_bytes: Callable[[int], None]) -> set[Chunk]:
        """Read what the journal lists and strike out what is not as promised: it was right once, and a disk does not keep all that it was
        given. Returns what was struck; `on_bytes(n)` as it goes. Raises OSError."""
        if not self.journal.done:
            return set()
        with contextlib.closing(ReadBack(self.path, self.source.file_set.files, past_cache=True)) as read_back:
            wrong = set(read_back.wrong(sorted(self.journal.done), on_bytes=on_bytes))
        if wrong:
            logger.warning("%d chunks that an interrupted copy of %s left are not what they were: copied again", len(wrong), self.path)
        self.journal.strike(wrong)
        return wrong

    def publish(self, target: Path) -> bool:
        """Add the manifest, make everything read-only and durable, and rename to `target`. False if that is there already."""
        (self.path / FILE_NAME).unlink(missing_ok=True)
        descriptor = os.open(self.path / FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.source.file_set.content)
        for name in [FILE_NAME, *(file.path for file in self.source.file_set.files)]:
            (self.path / name).chmod(0o444)
        published = publish_directory(self.path, target)
        if published:
            (target / JOURNAL_NAME).unlink(missing_ok=True)
        return published

    def remove(self) -> None:
        """Give the room back: after an error of the node's disk nothing in it is trusted, and what was not synced is never synced again."""
        remove_tree(self.path)

    def _is_whole(self, file: ChunkedFile) -> bool:
        """Return True if the file has its full size, without which the journal says nothing about it."""
        try:
            status = (self.path / file.path).lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == file.bytes


def _is_free(path: Path) -> bool:
    """Return True if `path` can be used: it is absent, or a directory of this user and no link."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


# Copies


logger = logging.getLogger(__name__)

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, kw_only=True)
class Copied:
    """The result of one use of a dataset: a copy or a hit."""

    digest: str
    bytes: int
    copied_bytes: int = 0
    storage_bytes: int = 0
    peer_bytes: int = 0
    resumed_bytes: int = 0
    checked_bytes: int = 0
    hit: bool = False


class _Overtaken(Exception):
    """Another process, which bypassed this one while it was frozen, has published the same dataset."""


class Stager:
    """A copy of a set of files into the cache, from the check for free space to the rename, alone or in a group."""

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
        self._prepare(part)
        copied = ChunkCopy(self.source, part.path, part.journal, self.options.copy, self._advance).run()
        self._publish(part)
        return Gathered(storage_bytes=copied, peer_bytes=0)

    def _together(self, part: Part, group_staging: GroupStaging) -> Gathered:
        """Copy the missing chunks from storage or other nodes, and serve the others from the first moment on."""
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
        """Reserve space, check what an interrupted copy left, and return the chunks that are damaged."""
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
        """Show progress without a beat of the lock: others on this node may bypass a copy that waits long for other nodes."""
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


logger = logging.getLogger(__name__)


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
    """Show no progress."""
