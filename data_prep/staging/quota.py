"""What this node reads from storage: its own share, and then what those who should have read it do not bring."""

from __future__ import annotations

import logging
import time
from collections import deque

from data_prep.limits import SLOW_SCAN_EVERY_S
from data_prep.staging.exchange import Exchange
from data_prep.staging.shares import NOBODY, owners_of

logger = logging.getLogger(__name__)


class Quota:
    """Chunks to read next."""

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
        """A chunk to read from storage now. `patience_s`: how long others may bring nothing before their share is taken over."""
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
        """The next of ours that nobody else has or brings; then of what we took over, that nobody has begun to bring since."""
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
        """How many nodes may read from storage now: between them they share what the site allows."""
        return max(1, sum(index not in self._whole for index in self._readers()))

    def _readers(self) -> list[int]:
        """Those that may read from storage now: the site's number of those that are still there, the appointed ones first."""
        rest = [index for index in range(len(self._others.peers)) if index not in self._others.readers]
        there = [index for index in (*self._others.readers, *rest) if self._exchange.is_there(index)]
        return there if self._others.most_readers is None else there[: max(1, self._others.most_readers)]

    def _taken_over(self, now: float, patience_s: float) -> list[int]:
        """What nobody brings, from the end, for those whose share it was work from the front; divided among the readers that are left."""
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
        """Who ought to bring it: its reader, or those who had it from the beginning; not those that are gone or called slow."""
        owner = self._owners[chunk]
        found = [index for index, marks in self._exchange.held.items() if marks[chunk]] if owner == NOBODY else [owner]
        return {index for index in found if index != self._me and index not in self.slow and self._exchange.is_there(index)}
