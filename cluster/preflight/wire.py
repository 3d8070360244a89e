"""Connections between the nodes of a preflight: each end proves to the other that it knows the run's token before anything counts.

What comes before that is a stranger's, and so is every error of it; the oldest stranger goes for the newest.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from base.handshake import ANSWER_BYTES, GREETING_BYTES, WELCOME_BYTES, Handshake, NoProof
from base.strangers import REST_S, NoRoom, Strangers, listen, newcomers
from cluster.limits import PREFLIGHT_HANDSHAKE_S, TURNED_AWAY_PAUSE_S, TURNED_AWAY_S

_T = TypeVar("_T")


class Wire:
    """Listens on this node's address, and dials others from it. `arrival(peer, purpose)` is who has dialled us."""

    def __init__(self, index: int, nodes: int, address: str, token: bytes) -> None:
        self.index, self.nodes = index, nodes
        self._address, self._token = address, token
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = listen(address, 2 * nodes)
        self.port: int = self._listener.getsockname()[1]
        self._arrived: dict[tuple[int, str], asyncio.Future[socket.socket]] = {}
        self._strangers: Strangers[asyncio.Task[bool]] = Strangers()

    def serve(self) -> None:
        """Let others in, from now on. To be called in the loop."""
        if self._listener.fileno() >= 0:  # else closed meanwhile
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = newcomers(self._listener)
        except NoRoom:
            loop.remove_reader(self._listener)
            loop.call_later(REST_S, self.serve)
            return
        for connection, host in found:
            task = loop.create_task(self._welcome(connection))
            self._strangers.add(task, host)
            task.add_done_callback(partial(self._ended, connection))
            oldest = self._strangers.surplus()
            if oldest is not None:
                self._strangers.remove(oldest)
                oldest.cancel()

    def _ended(self, connection: socket.socket, task: asyncio.Task[bool]) -> None:
        """Nobody has taken the connection of one who was refused, or has had all he came for."""
        self._strangers.remove(task)
        if task.cancelled() or not task.result():
            connection.close()

    async def _welcome(self, connection: socket.socket) -> bool:
        """Whether it is somebody's now."""
        try:
            _prepare(connection)
            async with asyncio.timeout(PREFLIGHT_HANDSHAKE_S):
                peer, purpose = await self._let_in(connection)
        except (OSError, EOFError, NoProof):
            return False
        if purpose == "reach":
            return False
        future = self._expected(peer, purpose)
        if future.done():
            return False
        future.set_result(connection)
        return True

    async def _let_in(self, connection: socket.socket) -> tuple[int, str]:
        loop = asyncio.get_running_loop()
        handshake = self._handshake()
        await loop.sock_sendall(connection, handshake.greeting())
        peer, purpose, welcome = handshake.check_answer(await receive(connection, ANSWER_BYTES))
        if peer >= self.nodes:
            raise NoProof(f"there is no node {peer}")
        await loop.sock_sendall(connection, welcome)
        return peer, purpose

    def _handshake(self) -> Handshake:
        return Handshake(self._token, "preflight", self.index)

    def _expected(self, peer: int, purpose: str) -> asyncio.Future[socket.socket]:
        return self._arrived.setdefault((peer, purpose), asyncio.get_running_loop().create_future())

    async def arrival(self, peer: int, purpose: str) -> socket.socket:
        """The connection that `peer` has made, or will make."""
        return await self._expected(peer, purpose)

    async def dial(self, peer: int, address: tuple[str, int], purpose: str) -> socket.socket:
        """A connection to `peer` from our own address, both ends proved. Raises OSError, EOFError, NoProof."""
        return await patiently(lambda: self._dial(peer, address, purpose))

    async def _dial(self, peer: int, address: tuple[str, int], purpose: str) -> socket.socket:
        connection, _ = await self.connect(address)
        try:
            await self.introduce(connection, peer, purpose)
        except BaseException:
            connection.close()
            raise
        return connection

    async def connect(self, address: tuple[str, int]) -> tuple[socket.socket, float]:
        """A connection from our own address, and the seconds until it stood. Raises OSError."""
        connection = socket.socket(self._family, socket.SOCK_STREAM)
        _prepare(connection)
        try:
            connection.bind((self._address, 0))
            begun = time.perf_counter()
            await asyncio.get_running_loop().sock_connect(connection, address)
        except BaseException:
            connection.close()
            raise
        return connection, time.perf_counter() - begun

    async def introduce(self, connection: socket.socket, peer: int, purpose: str) -> None:
        """Say who we are, and hear that it is `peer`. Raises OSError, EOFError, NoProof."""
        loop = asyncio.get_running_loop()
        handshake = self._handshake()
        await loop.sock_sendall(connection, handshake.answer(await receive(connection, GREETING_BYTES), peer, purpose))
        handshake.check_welcome(await receive(connection, WELCOME_BYTES), peer, purpose)

    def close(self) -> None:
        """Nobody comes in any more."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in self._strangers:
            task.cancel()
        for future in self._arrived.values():
            if future.done() and not future.cancelled():
                future.result().close()


async def patiently(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """`attempt()`, and again for TURNED_AWAY_S while the other end hangs up, as one does to whom too many have come.
    Raises what it raises."""
    give_up, pause_s = time.monotonic() + TURNED_AWAY_S, TURNED_AWAY_PAUSE_S
    while True:
        try:
            return await attempt()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            if time.monotonic() + pause_s > give_up:
                raise
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s *= 2


def _prepare(connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def receive(connection: socket.socket, size: int) -> bytearray:
    """Exactly `size` bytes. Raises EOFError when the other end has gone, OSError."""
    loop = asyncio.get_running_loop()
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        count = await loop.sock_recv_into(connection, view[have:])
        if not count:
            raise EOFError
        have += count
    return data


def cut(connection: socket.socket) -> None:
    """Hang up, and throw away what has not been sent: it would disturb what comes after."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
