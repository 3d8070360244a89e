"""Copy all chunks that are missing, from storage or, in a group, from other nodes too."""

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeVar

import xxhash

from base import errors, publish
from data_prep.limits import EXCHANGE_TURN_S, SLOW_SCAN_EVERY_S
from data_prep.staging import chunk_journal, copy
from data_prep.staging.exchange import Exchange
from data_prep.staging.files import Buffers, aligned_buffer, sync, whole_buffer, write_chunk
from data_prep.staging.swarm import NOBODY, owners_of

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Quota:
    """The chunks that this node reads from storage: first its own share, later those that their readers do not bring."""

    def __init__(self, exchange: Exchange) -> None:
        others = exchange.others
        assert others is not None
        self._exchange, self._others, self._me = exchange, others, exchange.peer_group.index
        self._swarm = exchange.swarm
        self._owners = owners_of(exchange.table.num_chunks, () if exchange.whole else others.readers)
        self._mine = deque(chunk for chunk, owner in enumerate(self._owners) if owner == self._me)
        self._extra: deque[int] = deque()
        self._next_scan = 0.0
        self.slow = exchange.slow

    def next(self, patience_s: float) -> int | None:
        """Choose a chunk to read from storage now. After `patience_s` without progress of others, their share is taken over."""
        now = time.monotonic()
        chunk = self._next_missing(now - patience_s)
        if chunk is not None or self._swarm.reading:
            return chunk
        if now < self._next_scan or self._me not in self._readers():
            return None
        self._next_scan = now + SLOW_SCAN_EVERY_S
        self._extra = deque(self._taken_over(now, patience_s))
        return self._next_missing(now - patience_s)

    def _next_missing(self, stuck_before: float) -> int | None:
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
        return max(self._exchange.peer_group.num_sharers, sum(index not in self._exchange.whole for index in self._readers()))

    def _readers(self) -> list[int]:
        """Return the nodes that may read from storage now: at most as many as the site allows, the appointed ones first."""
        rest = [index for index in range(len(self._others.peers)) if index not in self._others.readers]
        there = [index for index in (*self._others.readers, *rest) if self._exchange.is_connected(index)]
        return there if self._others.most_readers is None else there[: max(1, self._others.most_readers)]

    def _taken_over(self, now: float, patience_s: float) -> list[int]:
        """List the chunks that nobody brings, divided among the remaining readers. The list runs from the end, since their own readers work
        from the front."""
        chunks = self._swarm.unclaimed(now - patience_s)
        bringers = {chunk: self._bringers(chunk) for chunk in chunks}
        for index in set().union(*bringers.values()):
            if now - self._exchange.last_new_chunk_at[index] > patience_s:
                self.slow[index] = f"it brought nothing for {patience_s:.1f} s: its share was read by others"
                logger.warning("node %d of those that stage the same files is slow: %s", index, self.slow[index])
        free = [chunk for chunk in reversed(chunks) if bringers[chunk] <= self.slow.keys()]
        readers = [index for index in self._readers() if index not in self.slow or index == self._me]
        shared = free[readers.index(self._me) :: len(readers)]
        quiet_s = now - max(self._exchange.last_new_chunk_at.values(), default=now)
        return shared or (free if quiet_s > 2 * patience_s else [])

    def _bringers(self, chunk: int) -> set[int]:
        """Return the nodes that should bring a chunk: its reader, or those that had all from the start, without lost and slow ones."""
        owner = self._owners[chunk]
        found = self._exchange.whole if owner == NOBODY else [owner]
        return {index for index in found if index != self._me and index not in self.slow and self._exchange.is_connected(index)}


COMING_BYTES: Final = 192 << 20
PER_PEER: Final = 2
_WRITERS: Final = 2
_CHECKS: Final = 2
"""Batches that are synced and read back at once, so that the disk has work while one of them is noted; as many of an interrupted copy."""


class Gather:
    """A copy of all chunks that `journal` lacks: from storage, and in a group from other nodes too; all are checked here.

    Each written chunk is announced at once, so that it travels on while the next one is read. What was written is synced and read back
    while the next chunks are copied: only then the journal lists it. What the journal lists from an interrupted copy is read back meanwhile
    too: it was right once, and a disk does not keep all that it was given.
    """

    def __init__(
        self, source: copy.Source, part: Path, journal: chunk_journal.Journal, exchange: Exchange, options: copy.CopyOptions
    ) -> None:
        self._journal, self._exchange, self._options = journal, exchange, options
        self._table, self._swarm = exchange.table, exchange.swarm
        self._is_alone = exchange.peer_group.nodes == 1
        self._read_back = copy.ReadBack(part, self._table, past_cache=True)
        self._source, self._part = source, part
        self._rate = copy.Rate(None)
        self._readers = ThreadPoolExecutor(options.threads)
        self._writers = ThreadPoolExecutor(_WRITERS)
        self._checkers = ThreadPoolExecutor(2 * _CHECKS)
        self._sync_lock = threading.Lock()
        self._left = deque(sorted(journal.done))
        self._rechecks = 0
        self._tries: Counter[int] = Counter()
        self._most_coming = max(4, min(48, COMING_BYTES // max(1, self._table.largest)))
        self._spare: list[memoryview] = []
        self._buffers = Buffers(self._table.largest)
        self._asked_at = 0.0
        self._jobs = 0
        self._unsynced: list[int] = []
        self._unsynced_bytes = 0
        self._syncs = 0
        self._closed = False
        self.storage_bytes = self.peer_bytes = self.resumed_bytes = 0

    def run(self, on_bytes: Callable[[int], None], on_wait: Callable[[], None]) -> None:
        """Copy everything that is missing, and sync it.

        `on_bytes(n)` is called for what is here, and `on_wait` each time before that is waited for; both may raise to stop. Raises
        DigestMismatch for bytes that stay wrong, StorageError where storage cannot be read, OSError where the node's disk fails,
        StagingError where it gives back something else again and again, and Cancelled.
        """
        exchange, self._on_bytes = self._exchange, on_bytes
        exchange.taker = self
        try:
            while exchange.others is None:
                self._recheck_more()
                exchange.turn(EXCHANGE_TURN_S)
                on_wait()
            self._quota = Quota(exchange)
            self._share_rate()
            while self._swarm.missing or self._jobs > self._swarm.num_left or self._unsynced or self._left:
                self._recheck_more()
                self._read_more()
                if exchange.changed:
                    exchange.changed = False
                    self._ask_more()
                self._sync_sometimes()
                exchange.turn(EXCHANGE_TURN_S)
                on_wait()
                exchange.changed |= time.monotonic() - self._asked_at > EXCHANGE_TURN_S
        finally:
            self._close()

    def _close(self) -> None:
        """End the threads. A read that storage has not answered is abandoned."""
        self._closed = True
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writers.shutdown(wait=True, cancel_futures=True)
        self._checkers.shutdown(wait=True)
        self._read_back.close()

    def _share_rate(self) -> None:
        if self._options.bytes_per_s is not None:
            self._rate.set(self._options.bytes_per_s / self._quota.num_sharers())

    @cached_property
    def _direct(self) -> tuple[bool, bool]:
        """Return whether storage is read, and the copy written, past the page cache. Looks at storage, which may hang: in a group it is for
        the threads that read. A group reads so even where the files are small, since nothing is to be read ahead into another node's share,
        and never writes so, since others are sent it from the page cache."""
        if self._is_alone:
            return copy.direct_io(self._source, self._part, self._options.direct)
        return copy.direct_io(self._source, self._part, self._options.direct is not False)[0], False

    # -- what to do next

    @property
    def _patience_s(self) -> float:
        return max(self._exchange.peer_group.late_s, 4 * self._exchange.longest_s)

    def _read_more(self) -> None:
        while len(self._swarm.reading) < self._options.threads + 1 and not self._is_ahead_of_sync():
            chunk = self._quota.next(self._patience_s)
            if chunk is None:
                return
            self._swarm.reading[chunk] = time.monotonic()
            self._start(self._from_storage, chunk)

    def _is_ahead_of_sync(self) -> bool:
        """Return True if so much waits for the disk that an interruption now would cost more than is synced at once."""
        return self._syncs == _CHECKS and self._unsynced_bytes >= self._options.sync_bytes

    def _ask_more(self) -> None:
        self._asked_at = now = time.monotonic()
        self._share_rate()
        swarm, peers = self._swarm, self._exchange.connected()
        for depth in range(PER_PEER):
            for peer in peers:
                if swarm.num_requested + len(swarm.writing) >= self._most_coming:
                    return
                if len(swarm.views[peer].asked) == depth:
                    chunk = swarm.pick(peer)
                    if chunk is None and not depth:
                        chunk = swarm.pick_late(peer, now - self._patience_s)
                    if chunk is not None:
                        self._exchange.ask(peer, chunk)

    # -- jobs, parts of which are done by other threads

    def _start(self, job: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        async def counted() -> None:
            await job(*arguments)
            self._jobs -= 1
            self._exchange.wake()

        self._jobs += 1
        self._exchange.start(counted())

    async def _from_storage(self, chunk: int) -> None:
        begun = self._swarm.reading[chunk]
        await _run_in_pool(self._readers, self._read, chunk)
        self._swarm.reading.pop(chunk, None)
        self.storage_bytes += self._table.num_bytes(chunk)
        self._is_here(chunk, begun)

    def _read(self, number: int) -> None:
        where, buffer = self._table.where(number), self._buffers.mine()
        try:
            content = copy.read_chunk(self._source, where, buffer, self._rate, retries=self._options.retries, direct=self._direct[0])
            if not self._swarm.have[number]:
                self._write(number, content)
        except (errors.SlipwayError, OSError):
            if not self._swarm.have[number]:  # else another node has sent it meanwhile, and the copy may be published already
                raise

    def _write(self, number: int, content: memoryview) -> None:
        file, offset, _ = self._table.span(number)
        write_chunk(self._part / self._table.files[file].path, content, offset, self._is_alone and self._direct[1])

    # -- what others send

    def buffer(self, chunk: int) -> memoryview:
        base = self._spare.pop() if self._spare else aligned_buffer(self._table.largest)
        return base[: self._table.num_bytes(chunk)]

    def took(self, peer: int, chunk: int, buffer: memoryview) -> None:
        """Check and write a chunk that has arrived. A chunk that two nodes were asked for may arrive again after the end."""
        swarm = self._swarm
        begun = swarm.views[peer].asked.get(chunk, time.monotonic())
        swarm.answered(peer, chunk)  # what our own disk keeps waiting is not late
        if swarm.have[chunk] or chunk in swarm.writing or self._closed:
            self._give_back(buffer)
            return
        swarm.writing.add(chunk)
        self._start(self._from_peer, peer, chunk, begun, buffer)

    async def _from_peer(self, peer: int, chunk: int, begun: float, buffer: memoryview) -> None:
        is_right = await _run_in_pool(self._writers, self._check_and_write, chunk, buffer)
        self._swarm.writing.discard(chunk)
        if is_right:
            self.peer_bytes += len(buffer)
            self._is_here(chunk, begun)
        else:
            self._exchange.lose(peer, f"it sent wrong bytes for chunk {chunk}")
        self._give_back(buffer)

    def _check_and_write(self, number: int, buffer: memoryview) -> bool:
        """Write a chunk, unless its bytes are wrong; then return False."""
        is_right = xxhash.xxh3_128_hexdigest(buffer) == self._table.hash(number)
        if is_right:
            self._write(number, buffer)
        return is_right

    def _give_back(self, buffer: memoryview) -> None:
        self._spare.append(whole_buffer(buffer))

    # -- what is here

    def _is_here(self, chunk: int, begun: float) -> None:
        self._exchange.longest_s = max(0.95 * self._exchange.longest_s, time.monotonic() - begun)
        self._exchange.changed = True
        if self._swarm.got(chunk):
            self._unsynced.append(chunk)
            self._unsynced_bytes += self._table.num_bytes(chunk)
            self._exchange.offer(chunk)
            self._on_bytes(self._table.num_bytes(chunk))

    def _sync_sometimes(self) -> None:
        enough = self._unsynced_bytes >= self._options.sync_bytes
        enough |= not (self._swarm.missing or self._jobs > self._swarm.num_left + self._syncs + self._rechecks)
        if self._syncs == _CHECKS or not enough or not self._unsynced:
            return
        chunks, self._unsynced, self._unsynced_bytes = self._unsynced, [], 0
        self._syncs += 1
        self._start(self._synced, chunks)

    async def _synced(self, chunks: list[int]) -> None:
        wrong = await _run_in_pool(self._checkers, self._sync, chunks)
        self._syncs -= 1
        for chunk in wrong:
            self._tries[chunk] += 1
            if self._tries[chunk] > self._options.retries:
                raise copy.disk_error(self._part, self._table, wrong, self._tries[chunk])
            self._on_bytes(-self._table.num_bytes(chunk))
        self._drop(wrong)

    def _sync(self, chunks: list[int]) -> list[int]:
        """Flush the data, note in the journal what the disk gives back, and return the other chunks."""
        files = sorted({self._table.where(chunk)[0] for chunk in chunks})
        with self._sync_lock:
            publish.each(sync, [self._part / self._table.files[file].path for file in files])
        wrong = set(self._read_back.wrong(chunks))
        self._journal.add([chunk for chunk in chunks if chunk not in wrong])
        return sorted(wrong)

    def _drop(self, chunks: list[int]) -> None:
        for chunk in chunks:
            self._swarm.drop(chunk)
            self._exchange.changed = True

    # -- what an interrupted copy left

    def _recheck_more(self) -> None:
        while self._left and self._rechecks < _CHECKS:
            self._rechecks += 1
            self._start(self._rechecked, [self._left.popleft() for _ in range(min(copy.BATCH, len(self._left)))])

    async def _rechecked(self, chunks: list[int]) -> None:
        wrong = await _run_in_pool(self._checkers, self._read_back.wrong, chunks)
        self._rechecks -= 1
        num_bytes = sum(self._table.num_bytes(chunk) for chunk in chunks if chunk not in wrong)
        self.resumed_bytes += num_bytes
        self._on_bytes(num_bytes)
        if wrong:
            logger.warning("%d chunks that a copy left in %s are not what they were: copied again", len(wrong), self._part)
            self._drop(wrong)


async def _run_in_pool(pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, partial(work, *arguments))
