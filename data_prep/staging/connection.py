"""One connection between two nodes that stage the same dataset, never blocking: chunks go out of files, and come into buffers."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from data_prep.staging.wire import CHUNK, HAVE, HEAD, KINDS, MISS, MOST_HAVE, WANT, HungUp, PeerError, frame, have_frames

PIECE: Final = 1 << 19
MOST_WANTED: Final = 64
Piece = tuple[int, int, int]  # descriptor, offset, bytes


class Hearer(Protocol):
    """Who is told what has come."""

    def peer_has(self, peer: Connection, content: bytes) -> None:
        """It has these chunks: the content of a HAVE frame."""

    def peer_wants(self, peer: Connection, chunk: int) -> Piece | None:
        """What it is to be sent, in a descriptor that is the connection's from here on; None if that is not here."""

    def peer_misses(self, peer: Connection, chunk: int) -> None:
        """It cannot send this."""

    def buffer_for(self, peer: Connection, chunk: int) -> memoryview:
        """Where the bytes of this chunk are to go. Raises PeerError if they were not asked for."""

    def peer_sent(self, peer: Connection, chunk: int, buffer: memoryview) -> None:
        """The chunk has come."""


class Connection:
    """`index` is the other node, once it has proved so. `heard` is when something came last, `moved` when bytes of a chunk came last."""

    def __init__(self, connection: socket.socket, hearer: Hearer) -> None:
        self.socket = connection
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.index = -1
        self.heard = self.moved = time.monotonic()
        self._hearer = hearer
        self._news: list[int] = []
        self._later = bytearray()
        self._queue: deque[int] = deque()
        self._out = bytearray()  # goes first, and is not added to while a chunk follows it
        self._sending: Piece | None = None
        self._took: Callable[[bytes], None] = self._head
        self._need = HEAD.size
        self._got = bytearray()
        self._chunk: tuple[int, memoryview, int] | None = None

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()
        self._sent()

    # -- sending

    def say(self, content: bytes) -> None:
        """Send these bytes, after the chunk that is being sent."""
        self._later += content

    def tell(self, chunks: list[int]) -> None:
        """We have these chunks now."""
        self._news += chunks

    def want(self, chunk: int) -> None:
        """Ask for a chunk."""
        self.say(frame(WANT, chunk))

    @property
    def wants_to_send(self) -> bool:
        """Whether something waits."""
        return bool(self._out or self._sending or self._later or self._news or self._queue)

    def send(self) -> None:
        """Send what goes now, a piece of a chunk at most, so that the others get their turn. Raises PeerError."""
        try:
            if not self._out and self._sending is None:
                self._fill()
            if self._out:
                del self._out[: self.socket.send(self._out)]
            if self._sending is not None and not self._out:
                self._send_piece(*self._sending)
        except BlockingIOError:
            return
        except OSError as error:
            raise _broken(error) from error

    def _fill(self) -> None:
        self._out += self._later + have_frames(self._news)
        self._later.clear()
        self._news.clear()
        if self._queue:
            chunk = self._queue.popleft()
            self._sending = self._hearer.peer_wants(self, chunk)
            self._out += frame(MISS if self._sending is None else CHUNK, chunk)

    def _send_piece(self, descriptor: int, offset: int, count: int) -> None:
        sent = os.sendfile(self.socket.fileno(), descriptor, offset, min(count, PIECE))
        if sent == 0:
            raise PeerError("our own file of this chunk is shorter than it was")
        self._sending = (descriptor, offset + sent, count - sent)
        if sent == count:
            self._sent()

    def _sent(self) -> None:
        if self._sending is not None:
            os.close(self._sending[0])
            self._sending = None

    # -- receiving

    def expect(self, num_bytes: int, took: Callable[[bytes], None]) -> None:
        """The next `num_bytes` go to `took`: the handshake."""
        self._need, self._took = num_bytes, took

    def frames(self) -> None:
        """From here on frames come."""
        self.expect(HEAD.size, self._head)

    def receive(self) -> None:
        """Take what has come. Raises PeerError."""
        try:
            if self._chunk is not None:
                self._receive_chunk()
                return
            data = self.socket.recv(self._need - len(self._got))
        except BlockingIOError:
            return
        except OSError as error:
            raise _broken(error) from error
        if not data:
            raise HungUp("the connection was closed")
        self.heard = time.monotonic()
        self._got += data
        if len(self._got) == self._need:
            content, self._got = bytes(self._got), bytearray()
            self._took(content)

    def _receive_chunk(self) -> None:
        assert self._chunk is not None
        chunk, buffer, filled = self._chunk
        count = self.socket.recv_into(buffer[filled:])
        if count == 0:
            raise PeerError("the connection was closed in the middle of a chunk")
        self.heard = self.moved = time.monotonic()
        self._chunk = (chunk, buffer, filled + count)
        if filled + count == len(buffer):
            self._chunk = None
            self._hearer.peer_sent(self, chunk, buffer)

    def _head(self, content: bytes) -> None:
        kind, number = HEAD.unpack(content)
        if kind not in KINDS:
            raise PeerError(f"a frame of kind {kind}")
        if kind == HAVE:
            if not 0 < number <= MOST_HAVE:
                raise PeerError(f"{number} chunks in one frame")
            self.expect(4 * number, self._have)
        elif kind == WANT:
            if len(self._queue) >= MOST_WANTED:
                raise PeerError(f"it wants more than {MOST_WANTED} chunks at once")
            self._queue.append(number)
        elif kind == MISS:
            self._hearer.peer_misses(self, number)
        elif kind == CHUNK:
            self._chunk = (number, self._hearer.buffer_for(self, number), 0)

    def _have(self, content: bytes) -> None:
        self.frames()
        self._hearer.peer_has(self, content)


def _broken(error: OSError) -> PeerError:
    kind = HungUp if isinstance(error, ConnectionResetError | BrokenPipeError) else PeerError
    return kind(error.strerror or "the connection broke")
