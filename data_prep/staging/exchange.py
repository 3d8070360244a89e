"""This node among those that stage the same files: it listens, connects, hears what they have, sends them what we have, and notices who
has gone. One thread; nothing here waits for a single one of them."""

from __future__ import annotations

import logging
import os
import selectors
import time
from array import array
from collections.abc import Callable
from typing import Protocol

from base.errors import StagingError
from data_prep.limits import PEER_BEAT_EVERY_S
from data_prep.staging.connection import Connection, Piece
from data_prep.staging.peer_group import Orders, Others, PeerGroup
from data_prep.staging.peer_listener import PeerListener
from data_prep.staging.swarm import Swarm
from data_prep.staging.table import ChunkTable
from data_prep.staging.wire import BEAT, PeerError, frame, have_text, parse_have, parse_have_text

logger = logging.getLogger(__name__)


class Taker(Protocol):
    """Who copies here."""

    def buffer(self, chunk: int) -> memoryview:
        """Room for a chunk that is coming."""

    def took(self, peer: int, chunk: int, buffer: memoryview) -> None:
        """It has come, and is not checked yet."""


class Exchange:
    """`open_file(number)` opens our copy of a file, for sending. `lost` says why a node was given up, `slow` why its share is
    read by others. Raises StagingError where this node cannot listen: that says nothing of the cache's disk."""

    def __init__(self, peer_group: PeerGroup, digest: str, table: ChunkTable, have: bytearray, open_file: Callable[[int], int]) -> None:
        self.peer_group, self.table = peer_group, table
        self.swarm = Swarm(have, peer_group.index)
        self.others: Others | None = None
        self.held: dict[int, bytearray] = {}
        self.lost: dict[int, str] = {}
        self.slow: dict[int, str] = {}
        self.news_at: dict[int, float] = {}
        self.everybody_has_it = False
        self.changed = True
        """Something has come that may make more to ask for."""
        self.taker: Taker | None = None
        """Set by whoever asks, before it asks, and then there to the end: an answer may come when nobody waits for it any more."""
        self.longest_s = 0.0
        """How long a chunk took here, lately."""
        self._open_file = open_file
        self._peers: dict[int, Connection] = {}
        try:
            self._peers_listener = self._set_up(digest)
        except OSError as error:
            raise StagingError(
                f"this node cannot listen on {peer_group.address} for those that stage the same files: {error.strerror}; an unfinished "
                "copy is kept; see this node's address (ip address) and its limit of open files (ulimit -n)"
            ) from error
        self._next_beat = self._last_beat = time.monotonic()

    def _set_up(self, digest: str) -> PeerListener:
        self._selector = selectors.DefaultSelector()
        self._orders = Orders(self.peer_group.orders)
        self._selector.register(self.peer_group.orders, selectors.EVENT_READ, self._take_orders)
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wakeup[0], selectors.EVENT_READ, self._woken)
        return PeerListener(self.peer_group, digest, self._selector, self)

    # -- one turn

    def announce(self) -> None:
        """Tell who started us where we listen and what we have."""
        have = have_text(self.swarm.have) if self.swarm.missing else "all"
        self.peer_group.say({"listening": {"address": self.peer_group.address, "port": self._peers_listener.port, "have": have}})

    def turn(self, limit_s: float) -> None:
        """Wait for something to happen, `limit_s` at most, and do all that can be done then. Raises Cancelled, StagingError."""
        for index, peer in list(self._peers.items()):
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.wants_to_send else 0)
            if self._selector.get_key(peer).events != wanted:
                self._selector.modify(peer, wanted, index)
        for key, events in self._selector.select(limit_s):
            if isinstance(key.data, int):
                self._serve(key.data, events)
            elif self._selector.get_map().get(key.fd) is key:  # else a call before this one has closed it
                key.data()
        now = time.monotonic()
        if now >= self._next_beat:
            self._beat(now)

    def wake(self) -> None:
        """From another thread: the turn ends."""
        try:
            os.write(self._wakeup[1], b"x")
        except BlockingIOError:
            return

    def _woken(self) -> None:
        os.read(self._wakeup[0], 4096)

    def _serve(self, index: int, events: int) -> None:
        peer = self._peers.get(index)
        try:
            if peer is not None and events & selectors.EVENT_READ:
                peer.receive()
            if peer is not None and events & selectors.EVENT_WRITE and index in self._peers:
                peer.send()
        except PeerError as error:
            self.lose(index, str(error))

    def _beat(self, now: float) -> None:
        """Show the others that we live, and give up those that do not. After a stop of our own, they get their time again."""
        hang_s = self.peer_group.hang_s
        stopped = now - self._last_beat > hang_s / 2
        limp_s = max(16 * hang_s, 8 * self.longest_s)  # for one whose bytes trickle: it would set everybody's pace
        for index, peer in list(self._peers.items()):
            asked = self.swarm.views[index].asked
            if stopped or not asked:
                peer.moved = now
            if stopped:
                peer.heard = now
                asked.update(dict.fromkeys(asked, now))
            if now - peer.heard > hang_s:
                self.lose(index, f"nothing has come from it for {hang_s:g} s")
            elif now - peer.moved > 4 * hang_s:
                self.lose(index, f"it has sent nothing of {len(asked)} chunks for {4 * hang_s:g} s")
            elif now - min(asked.values(), default=now) > limp_s:
                self.lose(index, f"a chunk that it was asked for has not come whole within {limp_s:g} s")
            elif not peer.wants_to_send:
                peer.say(frame(BEAT))
        self._peers_listener.expire(now)
        self._last_beat, self._next_beat = now, now + min(PEER_BEAT_EVERY_S, hang_s / 4)

    # -- orders

    def _take_orders(self) -> None:
        for order in self._orders.take():
            if "peers" in order:
                try:
                    self._meet(Others.from_json(order["peers"]))
                except (KeyError, TypeError, ValueError, IndexError, PeerError) as error:
                    raise StagingError(f"the order about the other nodes cannot be read: {error}") from error
            elif "staged_all" in order:
                self.everybody_has_it = True

    def _meet(self, others: Others) -> None:
        self.others = others
        now = time.monotonic()
        for index, peer in enumerate(others.peers):
            if peer is None:
                continue
            self.held[index] = parse_have_text(peer[2], self.table.num_chunks)
            self.news_at[index] = now
            if index != self.peer_group.index:
                self._peers_listener.expect(index, peer[:2] if others.late or self.peer_group.index < index else None)

    # -- who is there

    def may_come(self, index: int) -> bool:
        """For the listener: whether this node may connect now."""
        return index != self.peer_group.index and index < self.peer_group.nodes and index not in self._peers and index not in self.lost

    def came(self, peer: Connection) -> None:
        """For the listener: it has proved who it is."""
        self.swarm.join(peer.index)
        self._peers[peer.index] = peer
        self.news_at[peer.index] = time.monotonic()
        self._selector.register(peer, selectors.EVENT_READ, peer.index)
        peer.frames()
        peer.tell([chunk for chunk, mine in enumerate(self.swarm.have) if mine])

    def lose(self, index: int, why: str) -> None:
        """Do without this node from now on."""
        if index in self.lost:
            return
        peer = self._peers.pop(index, None)
        if peer is not None:
            self._selector.unregister(peer)
            peer.close()
            self.swarm.leave(index)
        self.lost[index] = why
        self.changed = True
        if self.swarm.missing:
            logger.warning("node %d of those that stage the same files is given up: %s", index, why)

    def connected(self) -> list[int]:
        """Those that can be asked."""
        return list(self._peers)

    def is_there(self, index: int) -> bool:
        """Whether this node is one of us still, as far as we know."""
        return index == self.peer_group.index or (index in self.news_at and index not in self.lost)

    def ask(self, index: int, chunk: int) -> None:
        """Ask for a chunk."""
        self.swarm.ask(index, chunk, time.monotonic())
        self._peers[index].want(chunk)

    def tell(self, chunk: int) -> None:
        """We have it now: checked and written."""
        for peer in self._peers.values():
            peer.tell([chunk])

    # -- what they say

    def peer_has(self, peer: Connection, content: bytes) -> None:
        """It has more."""
        chunks: array[int] = parse_have(content, self.table.num_chunks)
        self.swarm.offer(peer.index, chunks)
        self.news_at[peer.index] = time.monotonic()
        self.changed = True

    def peer_wants(self, _peer: Connection, chunk: int) -> Piece | None:
        """Send it, if it is here."""
        if chunk >= self.table.num_chunks or not self.swarm.have[chunk]:
            return None
        file, offset, num_bytes = self.table.span(chunk)
        try:
            descriptor = self._open_file(file)
        except OSError as error:
            logger.warning("our own %s cannot be opened for others: %s", self.table.files[file].name, error.strerror)
            return None
        os.posix_fadvise(descriptor, offset, num_bytes, os.POSIX_FADV_WILLNEED)
        return descriptor, offset, num_bytes

    def peer_misses(self, peer: Connection, chunk: int) -> None:
        """It cannot send what it offered."""
        if chunk not in self.swarm.views[peer.index].asked:
            raise PeerError("it says that it lacks what was not asked for")
        self.swarm.withdraw(peer.index, chunk)
        if peer.index in self.held:
            self.held[peer.index][chunk] = 0
        self.changed = True

    def buffer_for(self, peer: Connection, chunk: int) -> memoryview:
        """Room for what was asked for."""
        if chunk not in self.swarm.views[peer.index].asked or self.taker is None:
            raise PeerError("it sends what was not asked for")
        return self.taker.buffer(chunk)

    def peer_sent(self, peer: Connection, chunk: int, buffer: memoryview) -> None:
        """A chunk has come."""
        assert self.taker is not None
        peer.frames()
        self.news_at[peer.index] = time.monotonic()
        self.changed = True
        self.taker.took(peer.index, chunk, buffer)

    # -- the end

    def serve(self) -> None:
        """Pass on what we have until everybody has it. Raises Cancelled when whoever started us has gone."""
        while not self.everybody_has_it:
            self.turn(PEER_BEAT_EVERY_S)

    def close(self) -> None:
        """Hang up, and listen no more."""
        self.everybody_has_it = True
        for index in list(self._peers):
            self.lose(index, "we are done")
        self._peers_listener.close()
        self._selector.close()
        for descriptor in self._wakeup:
            os.close(descriptor)
