"""Exchange chunks with the other nodes that stage the same files.

The exchange listens, connects, learns what the others have, sends them what this node has, and notices who has gone. It runs in one thread,
and never waits for a single node: each has coroutines of its own, which go on in `turn`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from base import handshake
from base.errors import Cancelled, StagingError
from base.jsonfile import from_plain
from data_prep.limits import PEER_BEAT_EVERY_S, PEER_HANDSHAKE_S, PEER_HANG_S, PEER_LATE_S
from data_prep.staging.chunk_journal import ChunkTable
from data_prep.staging.swarm import Swarm

if TYPE_CHECKING:
    from data_prep.staging.gather import Gather

# Frames: a byte of kind and four of a number, of a chunk or, for HAVE, of chunk numbers that follow


HEAD: Final = struct.Struct("!BI")
HAVE, WANT, CHUNK, MISS, BEAT = range(1, 6)
KINDS: Final = (HAVE, WANT, CHUNK, MISS, BEAT)
MAX_HAVE: Final = 16384


class PeerError(Exception):
    """The other node is gone, or has sent what no Slipway node sends."""


class HungUp(PeerError):
    """The other end closed the connection: it is gone, or has too many connections."""


def frame(kind: int, number: int = 0) -> bytes:
    """Encode the head of a frame."""
    return HEAD.pack(kind, number)


def have_frames(chunks: list[int]) -> bytes:
    """Encode the message that these chunks are here."""
    frames = []
    for start in range(0, len(chunks), MAX_HAVE):
        some = chunks[start : start + MAX_HAVE]
        frames.append(frame(HAVE, len(some)) + struct.pack(f"!{len(some)}I", *some))
    return b"".join(frames)


def parse_have(content: bytes, num_chunks: int) -> array[int]:
    """Parse the chunk numbers of a HAVE frame. Raises PeerError for a number out of range."""
    found = array("L", struct.unpack(f"!{len(content) // 4}I", content))
    if found and max(found) >= num_chunks:
        raise PeerError(f"it says that it has chunk {max(found)} of {num_chunks}")
    return found


# Connections


MAX_REQUESTED: Final = 64
Piece = tuple[int, int, int]  # descriptor, offset, bytes


class Connection:
    """A connection to another node: chunks go out of files, and come into buffers. `index` is the other node once it has proved its
    identity. `heard` is when anything arrived last."""

    def __init__(self, connection: socket.socket, exchange: Exchange) -> None:
        self.socket = connection
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.index = -1
        self.heard = time.monotonic()
        self._exchange = exchange
        self._news: list[int] = []
        self._later = bytearray()
        self._queue: deque[int] = deque()
        self._more = asyncio.Event()
        self._is_sending = False
        self.talks: list[asyncio.Task[None]] = []
        """What goes on over this connection, and ends with it."""

    def close(self) -> None:
        for talk in self.talks:
            talk.cancel()
            talk.get_loop().remove_reader(self.socket)
            talk.get_loop().remove_writer(self.socket)
        self.socket.close()

    # -- sending

    def queue_bytes(self, content: bytes) -> None:
        """Send these bytes, after the chunk that is being sent."""
        self._later += content
        self._more.set()

    def offer(self, chunks: list[int]) -> None:
        self._news += chunks
        self._more.set()

    def request(self, chunk: int) -> None:
        self.queue_bytes(frame(WANT, chunk))

    @property
    def wants_to_send(self) -> bool:
        return bool(self._is_sending or self._later or self._news or self._queue)

    async def run_sender(self) -> None:
        """Send what there is to say, and the chunks that the other node wants, for ever. Raises PeerError."""
        while True:
            self._is_sending = False
            await self._more.wait()
            self._is_sending = True
            content = bytes(self._later) + have_frames(self._news)
            self._later.clear()
            self._news.clear()
            await self.send(content)
            if self._queue:
                await self._send_chunk(self._queue.popleft())
            if not (self._later or self._news or self._queue):
                self._more.clear()

    async def send(self, content: bytes) -> None:
        """Send these bytes. Raises PeerError."""
        try:
            await asyncio.get_running_loop().sock_sendall(self.socket, content)
        except OSError as error:
            raise _broken(error) from error

    async def _send_chunk(self, chunk: int) -> None:
        piece = self._exchange.peer_wants(self, chunk)
        if piece is None:
            await self.send(frame(MISS, chunk))
            return
        descriptor, offset, count = piece
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            await self.send(frame(CHUNK, chunk))
            try:
                sent = await asyncio.get_running_loop().sock_sendfile(self.socket, file, offset, count)
            except OSError as error:
                raise _broken(error) from error
        if sent < count:
            raise PeerError("our own file of this chunk is shorter than it was")

    # -- receiving

    async def exactly(self, num_bytes: int) -> bytes:
        """Receive so many bytes. Raises PeerError."""
        content = bytearray(num_bytes)
        await self._fill(memoryview(content))
        return bytes(content)

    async def run_receiver(self) -> None:
        """Receive frames for ever. Raises PeerError."""
        while True:
            kind, number = HEAD.unpack(await self.exactly(HEAD.size))
            if kind == HAVE:
                if not 0 < number <= MAX_HAVE:
                    raise PeerError(f"{number} chunks in one frame")
                self._exchange.peer_has(self, await self.exactly(4 * number))
            elif kind == WANT:
                if len(self._queue) >= MAX_REQUESTED:
                    raise PeerError(f"it wants more than {MAX_REQUESTED} chunks at once")
                self._queue.append(number)
                self._more.set()
            elif kind == MISS:
                self._exchange.peer_misses(self, number)
            elif kind == CHUNK:
                buffer = self._exchange.buffer_for(self, number)
                await self._fill(buffer)
                self._exchange.peer_sent(self, number, buffer)
            elif kind != BEAT:
                raise PeerError(f"a frame of kind {kind}")
            await asyncio.sleep(0)  # the others' turn, whatever waits here

    async def _fill(self, buffer: memoryview) -> None:
        filled = 0
        while filled < len(buffer):
            try:
                count = await asyncio.get_running_loop().sock_recv_into(self.socket, buffer[filled:])
            except OSError as error:
                raise _broken(error) from error
            if count == 0:
                raise HungUp("the connection was closed")
            filled += count
            self.heard = time.monotonic()


def _broken(error: OSError) -> PeerError:
    kind = HungUp if isinstance(error, ConnectionResetError | BrokenPipeError) else PeerError
    return kind(error.strerror or "the connection broke")


# Groups of nodes and the orders that they get


MAX_LINE: Final = 256 << 20
"""The limit of one line of orders in bytes: 1,000 nodes with 3 TB in chunks of 4 MiB need so much in the worst case."""


@dataclass(frozen=True, kw_only=True)
class PeerGroup:
    """Node `index` of `nodes` that stage the same files, which listens on `address`; with one node there is nobody to listen to.

    `token` proves to the others that this node belongs to the run. On the descriptor `orders` the parent process sends the others'
    addresses, and later that all have the files; `say` sends it this node's messages. A node that sends nothing for `hang_s` is given up.
    One that brings nothing new for `late_s`, or for several times as long as a chunk takes here, counts as slow. `num_sharers`: how many
    nodes, this one too, may read storage at the same time without a connection between them.
    """

    index: int = 0
    nodes: int = 1
    address: str = ""
    token: bytes = b""
    orders: int | None = None
    say: Callable[[dict[str, object]], None] = lambda _message: None
    num_sharers: int = 1
    hang_s: float = PEER_HANG_S
    late_s: float = PEER_LATE_S


@dataclass(frozen=True, kw_only=True)
class Others:
    """The order `peers`: the address and port of each node, and whether it has `all` chunks or `some`, None where it is absent. `readers`
    read from storage, at most `most_readers` at once. `late` is true when the others got this order before."""

    peers: tuple[tuple[str, int, str] | None, ...]
    readers: tuple[int, ...]
    most_readers: int | None
    late: bool


# Listening and connecting


logger = logging.getLogger(__name__)


class PeerListener:
    """The listener on the group's address. It tells `exchange` which nodes came, and which were expected and did not.

    Both ends prove that they know the token. A connection that has not done so after a few seconds is dismissed, and the oldest gives way
    to the newest; a node that was turned away connects again.
    """

    def __init__(self, peer_group: PeerGroup, digest: str, loop: asyncio.AbstractEventLoop, exchange: Exchange) -> None:
        self._peer_group, self._digest, self._loop, self._exchange = peer_group, digest, loop, exchange
        self._pending: handshake.PendingConnections[Connection] = handshake.PendingConnections()
        self._refusals = handshake.Refusals(logger)
        self._expected: dict[int, float] = {}
        self._wait_s = max(PEER_HANDSHAKE_S, peer_group.hang_s)
        self._listener = handshake.listen(peer_group.address, peer_group.nodes)
        self.port = int(self._listener.getsockname()[1])
        self._is_open = True
        loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            found = handshake.accept_pending(self._listener)
        except handshake.NoDescriptors as error:  # pending connections stay pending: look again at the next beat
            self._refusals.note(str(error))
            self._loop.remove_reader(self._listener)
            return
        for connection, host in found:
            peer = Connection(connection, self._exchange)
            self._pending.add(peer, host)
            peer.talks = [self._exchange.start(self._greet(peer))]
            oldest = self._pending.surplus()
            if oldest is not None:
                self._dismiss(oldest, "too many wait, and it was the oldest")

    async def _greet(self, peer: Connection) -> None:
        """Let a node in that comes to us. An error concerns only its connection."""
        proof = self._handshake()
        try:
            async with asyncio.timeout(self._wait_s):
                await peer.send(proof.greeting())
                index, _, welcome = proof.check_answer(await peer.exactly(handshake.ANSWER_BYTES))
                if not self._exchange.may_come(index):
                    raise PeerError(f"node {index} is not expected")
                await peer.send(welcome)
        except (PeerError, handshake.NoProof) as error:
            self._dismiss(peer, str(error))
        except TimeoutError:
            self._dismiss(peer, f"it did not prove within {self._wait_s:g} s that it is of this run")
        else:
            if self._pending.remove(peer):
                self._let_in(peer, index)

    def expect(self, index: int, address: tuple[str, int] | None) -> None:
        """Add this node to the expected ones, and connect to it where there is an address."""
        if not self._exchange.may_come(index):
            return
        self._expected[index] = time.monotonic() + 2 * self._wait_s
        if address is not None:
            self._exchange.start(self._call(index, address))

    async def _call(self, index: int, address: tuple[str, int]) -> None:
        """Connect to a node, again where it hangs up, as one with too many connections does."""
        while self._exchange.may_come(index):
            try:
                peer = await self._proved(index, address)
            except HungUp:
                await asyncio.sleep(PEER_BEAT_EVERY_S)
            except (PeerError, handshake.NoProof) as error:
                self._give_up(index, str(error))
            except TimeoutError:
                self._give_up(index, f"it did not prove within {self._wait_s:g} s that it is of this run")
            except OSError as error:
                self._give_up(index, f"{address[0]} port {address[1]} cannot be reached: {error.strerror}")
            else:
                self._let_in(peer, index)

    async def _proved(self, index: int, address: tuple[str, int]) -> Connection:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        peer = Connection(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC), self._exchange)
        proof = self._handshake()
        try:
            async with asyncio.timeout(self._wait_s):
                await self._loop.sock_connect(peer.socket, address)
                await peer.send(proof.answer(await peer.exactly(handshake.GREETING_BYTES), index))
                proof.check_welcome(await peer.exactly(handshake.WELCOME_BYTES), index)
        except BaseException:
            peer.socket.close()
            raise
        return peer

    def _handshake(self) -> handshake.Handshake:
        return handshake.Handshake(self._peer_group.token, f"chunks {self._digest}", self._peer_group.index)

    def _let_in(self, peer: Connection, index: int) -> None:
        self._expected.pop(index, None)
        if not self._is_open or not self._exchange.may_come(index):
            peer.socket.close()
            return
        peer.index = index
        self._exchange.peer_connected(peer)
        if not any(self._exchange.may_come(index) for index in range(self._peer_group.nodes)):
            self.close()

    def _dismiss(self, peer: Connection, why: str) -> None:
        if self._pending.remove(peer):
            peer.close()
            self._refusals.note(why)

    def _give_up(self, index: int, why: str) -> None:
        self._expected.pop(index, None)
        self._exchange.lose(index, why)

    def expire(self, now: float) -> None:
        """Take newcomers again, and give up expected nodes that have not come."""
        if self._is_open:
            self._loop.add_reader(self._listener, self._accept)
        for index in [index for index, until in self._expected.items() if now > until]:
            self._give_up(index, f"it did not come within {2 * self._wait_s:g} s")

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for peer in self._pending:
            self._pending.remove(peer)
            peer.close()
        self._refusals.log()


class Exchange:
    """The exchange of chunks with all other nodes. `open_file(number)` opens this node's copy of a file to send it.

    `lost` says why a node was given up, `slow` why others read its share. Raises StagingError where this node cannot listen, which says
    nothing about the cache's disk.
    """

    def __init__(
        self, peer_group: PeerGroup, digest: str, table: ChunkTable, have: bytearray, open_file: Callable[[int], int] | None = None
    ) -> None:
        self.peer_group, self.table = peer_group, table
        self.swarm = Swarm(have, peer_group.index)
        self.others: Others | None = None
        self.whole: set[int] = set()
        """The nodes that had all chunks from the start."""
        self.lost: dict[int, str] = {}
        self.slow: dict[int, str] = {}
        self.last_new_chunk_at: dict[int, float] = {}
        self.everybody_has_it = False
        self.changed = True
        """Something has come that may make more to ask for."""
        self.taker: Gather | None = None
        """The copy that requests chunks. It stays set until the end, since answers may still come when the copy is complete."""
        self.longest_s = 0.0
        """The time that a chunk took here lately."""
        self._open_file = open_file
        self._peers: dict[int, Connection] = {}
        self._loop = asyncio.new_event_loop()
        self._happened = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._next_beat = time.monotonic()
        self._peers_listener: PeerListener | None = None
        if peer_group.nodes == 1:
            self._meet(Others(peers=(("", 0, "some"),), readers=(peer_group.index,), most_readers=None, late=False))
            return
        try:
            self._peers_listener = PeerListener(peer_group, digest, self._loop, self)
        except OSError as error:
            self._loop.close()
            raise StagingError(
                f"this node cannot listen on {peer_group.address} for those that stage the same files: {error.strerror}; an unfinished "
                "copy is kept; see this node's address (ip address) and its limit of open files (ulimit -n)"
            ) from error
        assert peer_group.orders is not None
        self.start(self._take_orders(peer_group.orders))

    # -- one turn

    def announce(self) -> None:
        """Tell who started us where we listen and what we have."""
        assert self._peers_listener is not None
        have = "some" if self.swarm.missing else "all"
        self.peer_group.say({"listening": {"address": self.peer_group.address, "port": self._peers_listener.port, "have": have}})

    def turn(self, limit_s: float) -> None:
        """Wait for something to happen, `limit_s` at most, and pass chunks on meanwhile. Raises Cancelled, StagingError."""
        self._loop.run_until_complete(self._turn(limit_s))
        if self._failure is not None:
            raise self._failure
        now = time.monotonic()
        if now >= self._next_beat:
            self._beat(now)

    async def _turn(self, limit_s: float) -> None:
        await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._happened.wait()
        self._happened.clear()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that goes on in the turns to come. What it raises ends them."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._happened.set()

    def _note_news(self) -> None:
        self.changed = True
        self._happened.set()

    def wake(self) -> None:
        """End the current turn of the exchange, from another thread; nothing is done after the end."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._happened.set)

    def _beat(self, now: float) -> None:
        """Show the others that we live, and give up those that do not."""
        hang_s = self.peer_group.hang_s
        limp_s = max(16 * hang_s, 8 * self.longest_s)  # for one whose bytes trickle: it would set everybody's pace
        for index, peer in list(self._peers.items()):
            asked = self.swarm.views[index].asked
            if now - peer.heard > hang_s:
                self.lose(index, f"nothing has come from it for {hang_s:g} s")
            elif now - min(asked.values(), default=now) > limp_s:
                self.lose(index, f"a chunk that it was asked for has not come whole within {limp_s:g} s")
            elif not peer.wants_to_send:
                peer.queue_bytes(frame(BEAT))
        if self._peers_listener is not None:
            self._peers_listener.expire(now)
        self._next_beat = now + min(PEER_BEAT_EVERY_S, hang_s / 4)

    # -- orders

    async def _take_orders(self, descriptor: int) -> None:
        """Follow the orders, one a line. Raises Cancelled at their end, StagingError for anything that is no order."""
        orders = asyncio.StreamReader(limit=MAX_LINE)
        pipe = os.fdopen(descriptor, "rb", buffering=0, closefd=False)
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), pipe)
        try:
            while line := await orders.readline():
                order = json.loads(line)
                if "peers" in order:
                    self._meet(from_plain(order["peers"], Others))
                self.everybody_has_it |= "staged_all" in order
                self._happened.set()
        except (AttributeError, KeyError, TypeError, ValueError, IndexError, PeerError) as error:
            raise StagingError(f"the order about the other nodes cannot be read: {error}") from error
        finally:
            transport.close()
        raise Cancelled("the program that asked for these files has gone; an unfinished copy is kept, the next one resumes it")

    def _meet(self, others: Others) -> None:
        self.others = others
        now = time.monotonic()
        for index, peer in enumerate(others.peers):
            if peer is None:
                continue
            if peer[2] == "all":
                self.whole.add(index)
            self.last_new_chunk_at[index] = now
            if index != self.peer_group.index and self._peers_listener is not None:
                self._peers_listener.expect(index, peer[:2] if others.late or self.peer_group.index < index else None)

    # -- who is there

    def may_come(self, index: int) -> bool:
        return index != self.peer_group.index and index < self.peer_group.nodes and index not in self._peers and index not in self.lost

    def peer_connected(self, peer: Connection) -> None:
        """Add a node that has proved its identity."""
        self.swarm.join(peer.index)
        self._peers[peer.index] = peer
        self.last_new_chunk_at[peer.index] = time.monotonic()
        peer.offer([chunk for chunk, mine in enumerate(self.swarm.have) if mine])
        peer.talks = [self.start(self._talk(peer, half)) for half in (peer.run_receiver, peer.run_sender)]

    async def _talk(self, peer: Connection, half: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await half()
        except PeerError as error:
            self.lose(peer.index, str(error))

    def lose(self, index: int, why: str) -> None:
        if index in self.lost:
            return
        peer = self._peers.pop(index, None)
        if peer is not None:
            peer.close()
            self.swarm.leave(index)
        self.lost[index] = why
        self._note_news()
        if self.swarm.missing:
            logger.warning("node %d of those that stage the same files is given up: %s", index, why)

    def connected(self) -> list[int]:
        return list(self._peers)

    def is_connected(self, index: int) -> bool:
        """Return True if this node belongs to the group still, as far as is known."""
        return index == self.peer_group.index or (index in self.last_new_chunk_at and index not in self.lost)

    def ask(self, index: int, chunk: int) -> None:
        self.swarm.ask(index, chunk, time.monotonic())
        self._peers[index].request(chunk)

    def offer(self, chunk: int) -> None:
        for peer in self._peers.values():
            peer.offer([chunk])

    # -- what they say

    def peer_has(self, peer: Connection, content: bytes) -> None:
        chunks: array[int] = parse_have(content, self.table.num_chunks)
        self.swarm.offer(peer.index, chunks)
        self.last_new_chunk_at[peer.index] = time.monotonic()
        self._note_news()

    def peer_wants(self, _peer: Connection, chunk: int) -> Piece | None:
        if chunk >= self.table.num_chunks or not self.swarm.have[chunk]:
            return None
        assert self._open_file is not None
        file, offset, num_bytes = self.table.span(chunk)
        try:
            descriptor = self._open_file(file)
        except OSError as error:
            logger.warning("our own %s cannot be opened for others: %s", self.table.files[file].name, error.strerror)
            return None
        os.posix_fadvise(descriptor, offset, num_bytes, os.POSIX_FADV_WILLNEED)
        return descriptor, offset, num_bytes

    def peer_misses(self, peer: Connection, chunk: int) -> None:
        if chunk not in self.swarm.views[peer.index].asked:
            raise PeerError("it says that it lacks what was not asked for")
        self.swarm.withdraw(peer.index, chunk)
        self.whole.discard(peer.index)
        self._note_news()

    def buffer_for(self, peer: Connection, chunk: int) -> memoryview:
        if chunk not in self.swarm.views[peer.index].asked or self.taker is None:
            raise PeerError("it sends what was not asked for")
        return self.taker.buffer(chunk)

    def peer_sent(self, peer: Connection, chunk: int, buffer: memoryview) -> None:
        assert self.taker is not None
        self.last_new_chunk_at[peer.index] = time.monotonic()
        self._note_news()
        self.taker.took(peer.index, chunk, buffer)

    # -- the end

    def serve(self) -> None:
        """Pass on what we have until everybody has it. Raises Cancelled when whoever started us has gone."""
        while not self.everybody_has_it:
            self.turn(PEER_BEAT_EVERY_S)

    def close(self) -> None:
        self.everybody_has_it = True
        for index in list(self._peers):
            self.lose(index, "we are done")
        if self._peers_listener is not None:
            self._peers_listener.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.wait([*self._tasks]))
            self._loop.run_until_complete(asyncio.sleep(0))  # transports end in a turn of their own
        self._loop.close()
