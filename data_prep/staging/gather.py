"""A copy made together with other nodes: a share of the chunks comes from storage, the rest from whoever has it, all of it checked here.

What is written is told to the others at once, so a chunk travels on while the next is read.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from mmap import mmap
from pathlib import Path
from typing import Any, Final

import xxhash

from base.errors import SlipwayError
from base.many import each
from data_prep.limits import EXCHANGE_TURN_S
from data_prep.staging.copy import CopyOptions, direct_io
from data_prep.staging.exchange import Exchange
from data_prep.staging.files import aligned_buffer
from data_prep.staging.journal import Chunk, Journal
from data_prep.staging.open_files import OpenFiles
from data_prep.staging.quota import Quota
from data_prep.staging.rate import Rate
from data_prep.staging.readback import ReadBack, disk_lies
from data_prep.staging.source import Source, SourceFile
from data_prep.staging.target import Target
from data_prep.staging.verified import VerifiedReader, open_source

COMING_BYTES: Final = 192 << 20
PER_PEER: Final = 2
_WRITERS: Final = 2


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Where the bytes came from."""

    storage_bytes: int
    peer_bytes: int


class Gather:
    """One copy of what `journal` lacks. `on_bytes(n)` is called by the caller's thread, also with 0; it may raise to stop."""

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
        """Bytes copied so far, by origin."""
        return Gathered(storage_bytes=self.storage_bytes, peer_bytes=self.peer_bytes)

    def run(self, on_bytes: Callable[[int], None], on_wait: Callable[[], None]) -> None:
        """Copy; all data are synced then. `on_wait` is called until we are told of the others; it may raise too. Raises what a copy of our
        own raises, and Cancelled."""
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
        """A read that storage has not answered is left to itself."""
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
        """Whether storage is read past the page cache: nothing is read ahead into the share of another node. Asks storage."""
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
        """`then(result)` in our own thread, later."""

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
        """In a thread: one chunk from storage."""
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
        """Room for a chunk that is coming."""
        base = self._spare.pop() if self._spare else aligned_buffer(self._table.largest)
        return base[: self._table.span(chunk)[2]]

    def took(self, peer: int, chunk: int, buffer: memoryview) -> None:
        """It has come, and is not checked yet. What two were asked for may come the second time when all is over."""
        swarm = self._swarm
        begun = swarm.views[peer].asked.get(chunk, time.monotonic())
        swarm.answered(peer, chunk)  # what our own disk keeps waiting is not late
        if swarm.have[chunk] or chunk in swarm.writing or self._closed:
            self._give_back(buffer)
            return
        swarm.writing.add(chunk)
        self._start(self._writers, partial(self._write, chunk, buffer), partial(self._was_written, peer, chunk, begun, buffer))

    def _write(self, number: int, buffer: memoryview) -> bool:
        """In a thread: check and write; False for wrong bytes."""
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
        """First the data; then they are read back; then the journal's lines about them. One at a time."""
        enough = self._unsynced_bytes >= self._options.sync_bytes or not (self._swarm.missing or self._jobs > self._swarm.num_left)
        if self._syncing or not enough or not self._unsynced:
            return
        chunks, self._unsynced, self._unsynced_bytes = self._unsynced, [], 0
        self._syncing = True
        self._start(self._checker, partial(self._sync, [self._table.where(chunk) for chunk in chunks]), self._was_synced)

    def _sync(self, chunks: list[Chunk]) -> list[Chunk]:
        """In a thread; returns those that the disk does not give back."""
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
