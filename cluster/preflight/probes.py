"""Probe from one node: connect to all, and exchange with one partner after the other."""

import asyncio
import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from base import handshake
from base.system import machine_text
from cluster.limits import PREFLIGHT_HANDSHAKE_S, REACH_S, TURNED_AWAY_PAUSE_S, TURNED_AWAY_S
from cluster.preflight.rates import partner, rounds, tournament_s

# Connections between the nodes of a preflight: each end proves to the other that it knows the run's token before anything counts.
#
# What is sent before the proof may be anything, and an error in it is never ours; the oldest pending connection is closed for the newest.


_T = TypeVar("_T")


class ProbeConnections:
    """The connections of one node: it listens on its address, and connects to others from it. `arrival(peer, purpose)` returns the
    connection of a peer."""

    def __init__(self, index: int, nodes: int, address: str, token: bytes) -> None:
        self.index, self.nodes = index, nodes
        self._address, self._token = address, token
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = handshake.listen(address, 2 * nodes)
        self.port: int = self._listener.getsockname()[1]
        self._arrived: dict[tuple[int, str], asyncio.Future[socket.socket]] = {}
        self._pending: handshake.PendingConnections[asyncio.Task[bool]] = handshake.PendingConnections()

    def serve(self) -> None:
        """Accept connections. To be called in the event loop."""
        if self._listener.fileno() >= 0:  # else closed meanwhile
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = handshake.accept_pending(self._listener)
        except handshake.NoDescriptors:
            loop.remove_reader(self._listener)
            loop.call_later(handshake.ACCEPT_PAUSE_S, self.serve)
            return
        for connection, host in found:
            task = loop.create_task(self._welcome(connection))
            self._pending.add(task, host)
            task.add_done_callback(partial(self._ended, connection))
            oldest = self._pending.surplus()
            if oldest is not None:
                self._pending.remove(oldest)
                oldest.cancel()

    def _ended(self, connection: socket.socket, task: asyncio.Task[bool]) -> None:
        self._pending.remove(task)
        if task.cancelled() or not task.result():
            connection.close()

    async def _welcome(self, connection: socket.socket) -> bool:
        """Let a connection in, and return True if somebody uses it now."""
        try:
            _prepare(connection)
            async with asyncio.timeout(PREFLIGHT_HANDSHAKE_S):
                peer, purpose = await self._let_in(connection)
        except (OSError, EOFError, handshake.NoProof):
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
        ours = self._handshake()
        await loop.sock_sendall(connection, ours.greeting())
        peer, purpose, welcome = ours.check_answer(await receive(connection, handshake.ANSWER_BYTES))
        if peer >= self.nodes:
            raise handshake.NoProof(f"there is no node {peer}")
        await loop.sock_sendall(connection, welcome)
        return peer, purpose

    def _handshake(self) -> handshake.Handshake:
        return handshake.Handshake(self._token, "preflight", self.index)

    def _expected(self, peer: int, purpose: str) -> asyncio.Future[socket.socket]:
        return self._arrived.setdefault((peer, purpose), asyncio.get_running_loop().create_future())

    async def arrival(self, peer: int, purpose: str) -> socket.socket:
        return await self._expected(peer, purpose)

    async def dial(self, peer: int, address: tuple[str, int], purpose: str) -> socket.socket:
        """Connect to `peer` from our own address, with proof on both ends. Raises OSError, EOFError, NoProof."""
        return await retry_refused(lambda: self._dial(peer, address, purpose))

    async def _dial(self, peer: int, address: tuple[str, int], purpose: str) -> socket.socket:
        connection, _ = await self.connect(address)
        try:
            await self.introduce(connection, peer, purpose)
        except BaseException:
            connection.close()
            raise
        return connection

    async def connect(self, address: tuple[str, int]) -> tuple[socket.socket, float]:
        """Return a connection from our own address, and its seconds. Raises OSError."""
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
        ours = self._handshake()
        await loop.sock_sendall(connection, ours.answer(await receive(connection, handshake.GREETING_BYTES), peer, purpose))
        ours.check_welcome(await receive(connection, handshake.WELCOME_BYTES), peer, purpose)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in self._pending:
            task.cancel()
        for future in self._arrived.values():
            if future.done() and not future.cancelled():
                future.result().close()


async def retry_refused(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat `attempt()` for TURNED_AWAY_S while the other end hangs up because of too many connections, and return its result."""
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
    """Receive exactly `size` bytes. Raises EOFError when the other end has gone, and OSError."""
    loop = asyncio.get_running_loop()
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        count = await loop.sock_recv_into(connection, view[have:])
        if not count:
            raise EOFError
        have += count
    return data


def reset(connection: socket.socket) -> None:
    """Hang up, and throw away what has not been sent: it would disturb what comes after."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


BLOCK: Final = 1 << 18
READY: Final = b"!"
Address = tuple[str, int]
Reached = tuple[float | None, str | None]
"""Seconds until it was connected, or what happened instead."""


async def reach(wire: ProbeConnections, peers: Sequence[Address]) -> list[Reached | None]:
    """Connect to all nodes, and return what came of each; None for ourselves."""
    order = [(wire.index + step) % wire.nodes for step in range(1, wire.nodes)]  # not all at the first node at once
    answers = await asyncio.gather(*(_reach(wire, peer, peers[peer]) for peer in order))
    found: list[Reached | None] = [None] * wire.nodes
    for peer, answer in zip(order, answers, strict=True):
        found[peer] = answer
    return found


async def _reach(wire: ProbeConnections, peer: int, address: Address) -> Reached:
    waits_for = "no answer"

    async def attempt() -> float:
        nonlocal waits_for
        connection, seconds = await wire.connect(address)
        waits_for = "it connects, but the other end says nothing"
        try:
            await wire.introduce(connection, peer, "reach")
        finally:
            connection.close()
        return seconds

    try:
        async with asyncio.timeout(REACH_S):
            return await retry_refused(attempt), None
    except OSError as error:  # our own time limit has no number, the kernel's has
        if error.errno is None:
            return None, f"{waits_for} within {REACH_S:g} s"
        return None, os.strerror(error.errno)
    except EOFError:
        return None, "it connects, and the other end hangs up"
    except handshake.NoProof:
        return None, "what answers there is not that node's program: two machines with one address, or a proxy between"


async def tournament(wire: ProbeConnections, peers: Sequence[Address], attempt: int, size: int, limit_s: float) -> list[list[float] | None]:
    """Exchange data with one node after the other, and return for each [bytes, seconds, busy seconds]; None for others."""
    found: list[list[float] | None] = [None] * wire.nodes
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(tournament_s(wire.nodes, limit_s)):
            for number in rounds(wire.nodes):
                other = partner(wire.nodes, number, wire.index)
                if other is not None:
                    with contextlib.suppress(OSError, EOFError, handshake.NoProof):
                        connection = await _meet(wire, peers, other, f"{attempt} {number}")
                        found[other] = await _exchange(connection, size, limit_s)
    return found


async def _meet(wire: ProbeConnections, peers: Sequence[Address], other: int, purpose: str) -> socket.socket:
    """Connect with a partner, and return when both are ready: who comes early waits."""
    loop = asyncio.get_running_loop()
    if wire.index > other:
        connection = await wire.arrival(other, purpose)
        await loop.sock_sendall(connection, READY)
        return connection
    connection = await wire.dial(other, peers[other], purpose)
    try:
        await receive(connection, len(READY))
    except BaseException:
        connection.close()
        raise
    return connection


async def _exchange(connection: socket.socket, size: int, limit_s: float) -> list[float]:
    """Send and receive at once. Return [bytes received, seconds, seconds in which this process had a core or waited for one]."""
    came, last = 0, 0.0
    begun, busy = time.perf_counter(), busy_s()

    async def take() -> None:
        nonlocal came, last
        loop, block = asyncio.get_running_loop(), bytearray(BLOCK)
        while came < size and (count := await loop.sock_recv_into(connection, block)):
            came += count
            last = time.perf_counter() - begun

    try:
        async with asyncio.timeout(limit_s):
            await _both(take(), _give(connection, size))
    except (TimeoutError, OSError):
        reset(connection)
    else:
        connection.close()
    return [came, last if came >= size else time.perf_counter() - begun, busy_s() - busy]


def busy_s() -> float:
    """Return the seconds in which this process has run, or waited for a core: the network is not their cause."""
    words = machine_text("/proc/self/schedstat").split()
    waited_ns = int(words[1]) if len(words) > 1 else 0  # a kernel may not count it
    return time.process_time() + waited_ns / 1e9


async def _both(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    """Return when both are done; after a failure neither goes on, on a connection that is closed then."""
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _give(connection: socket.socket, size: int) -> None:
    loop, block = asyncio.get_running_loop(), memoryview(bytes(BLOCK))
    for start in range(0, size, BLOCK):
        await loop.sock_sendall(connection, block[: size - start])
