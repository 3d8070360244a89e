"""Connections between the nodes of a preflight: each end proves to the other that it knows the run's token before anything counts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from typing import Final

from base.challenge import new_challenge, proof, proves

HELLO: Final = struct.Struct("<I16s64s64s")
"""Who is there, what for, its challenge, its proof."""
HEX: Final = 64
HANDSHAKE_S: Final = 3.0
SPARE: Final = 8


class NoProof(Exception):
    """The other end does not know the token, or is another node than it should be."""


class Wire:
    """Listens on this node's address, and dials others from it. `arrival(peer, purpose)` is who has dialled us."""

    def __init__(self, index: int, nodes: int, address: str, token: bytes) -> None:
        self.index, self.nodes = index, nodes
        self._address, self._token = address, token
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=self._family, backlog=min(4096, 2 * nodes + SPARE))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._arrived: dict[tuple[int, str], asyncio.Future[socket.socket]] = {}
        self._strangers: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Let others in, for good."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:
                continue
            if len(self._strangers) >= 2 * self.nodes + SPARE:
                connection.close()
                continue
            task = asyncio.create_task(self._welcome(connection))
            self._strangers.add(task)
            task.add_done_callback(self._strangers.discard)

    async def _welcome(self, connection: socket.socket) -> None:
        _prepare(connection)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                peer, purpose = await self._let_in(connection)
        except (OSError, EOFError, NoProof, TimeoutError, UnicodeDecodeError):
            connection.close()
            return
        if purpose == "reach":
            connection.close()
            return
        future = self._expected(peer, purpose)
        if future.done():
            connection.close()
        else:
            future.set_result(connection)

    async def _let_in(self, connection: socket.socket) -> tuple[int, str]:
        loop = asyncio.get_running_loop()
        challenge = new_challenge()
        await loop.sock_sendall(connection, challenge.encode())
        peer, padded, theirs, said = HELLO.unpack(await receive(connection, HELLO.size))
        purpose = padded.rstrip(b"\0").decode("ascii")
        if peer >= self.nodes or not proves(self._token, _role(purpose, peer, self.index), challenge, said.decode("ascii")):
            raise NoProof
        answer = proof(self._token, _role(purpose, self.index, peer), theirs.decode("ascii"))
        await loop.sock_sendall(connection, answer.encode())
        return peer, purpose

    def _expected(self, peer: int, purpose: str) -> asyncio.Future[socket.socket]:
        return self._arrived.setdefault((peer, purpose), asyncio.get_running_loop().create_future())

    async def arrival(self, peer: int, purpose: str) -> socket.socket:
        """The connection that `peer` has made, or will make."""
        return await self._expected(peer, purpose)

    async def dial(self, peer: int, address: tuple[str, int], purpose: str) -> socket.socket:
        """A connection to `peer` from our own address, both ends proved. Raises OSError, EOFError, NoProof."""
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
        challenge = (await receive(connection, HEX)).decode("ascii", errors="replace")
        own = new_challenge()
        said = proof(self._token, _role(purpose, self.index, peer), challenge)
        await loop.sock_sendall(connection, HELLO.pack(self.index, purpose.encode(), own.encode(), said.encode()))
        answer = (await receive(connection, HEX)).decode("ascii", errors="replace")
        if not proves(self._token, _role(purpose, peer, self.index), own, answer):
            raise NoProof

    def close(self) -> None:
        """Nobody comes in any more."""
        self._listener.close()
        for future in self._arrived.values():
            if future.done() and not future.cancelled():
                future.result().close()


def _role(purpose: str, speaker: int, listener: int) -> str:
    return f"preflight {purpose} {speaker} to {listener}"


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
