"""The three probes of one node: connect to all, all-reduce around the ring, exchange with one partner after the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import time
import zlib
from array import array
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from base.handshake import NoProof
from base.machine_files import machine_text
from cluster.limits import REACH_S, RING_S
from cluster.preflight.schedule import LANE, chunk_lanes, partner, rounds, tournament_s
from cluster.preflight.wire import Wire, cut, patiently, receive

BLOCK: Final = 1 << 18
HEADER: Final = struct.Struct("<II")
"""Length and CRC of a chunk."""
READY: Final = b"!"
Address = tuple[str, int]
_T = TypeVar("_T")


async def reach(wire: Wire, peers: Sequence[Address]) -> list[list[Any] | None]:
    """Per node [seconds until the connection stood, what happened instead]; None for ourselves."""
    order = [(wire.index + step) % wire.nodes for step in range(1, wire.nodes)]  # not all at the first node at once
    answers = await asyncio.gather(*(_reach(wire, peer, peers[peer]) for peer in order))
    found: list[list[Any] | None] = [None] * wire.nodes
    for peer, answer in zip(order, answers, strict=True):
        found[peer] = answer
    return found


async def _reach(wire: Wire, peer: int, address: Address) -> list[Any]:
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
            return [await patiently(attempt), None]
    except OSError as error:  # our own time limit has no number, the kernel's has
        if error.errno is None:
            return [None, f"{waits_for} within {REACH_S:g} s"]
        return [None, os.strerror(error.errno)]
    except EOFError:
        return [None, "it connects, and the other end hangs up"]
    except NoProof:
        return [None, "what answers there is not that node's program: two machines with one address, or a proxy between"]


async def all_reduce(wire: Wire, peers: Sequence[Address], attempt: int) -> dict[str, Any]:
    """Around the ring, summed and checked: {seconds, problem, damaged}. `damaged`: wrong bytes came, and from whom is in the problem."""
    following, previous = (wire.index + 1) % wire.nodes, (wire.index - 1) % wire.nodes
    links: list[socket.socket] = []
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(RING_S):
            links.append(await wire.dial(following, peers[following], f"ring {attempt}"))
            links.append(await wire.arrival(previous, f"ring {attempt}"))
            problem = await _Ring(wire.index, wire.nodes, links[0], links[1]).run()
    except TimeoutError:
        return {"seconds": None, "problem": f"it did not end within {RING_S:g} s", "damaged": False}
    except (OSError, EOFError, NoProof) as error:
        return {"seconds": None, "problem": f"it broke off: {error or type(error).__name__}", "damaged": False}
    finally:
        for link in links:
            link.close()
    return {"seconds": time.perf_counter() - begun, "problem": problem, "damaged": problem is not None}


class _Ring:
    """Reduce-scatter, then all-gather. A chunk is one large integer, whose 64-bit digits are numbers too small to carry into each other."""

    def __init__(self, index: int, nodes: int, following: socket.socket, previous: socket.socket) -> None:
        self.index, self.nodes = index, nodes
        self.following, self.previous = following, previous
        self.bytes = LANE * chunk_lanes(nodes)
        base = array("Q", array("H", random.Random(1).randbytes(2 * min(8192, chunk_lanes(nodes))))).tobytes()
        whole = (base * (self.bytes // len(base) + 1))[: self.bytes]
        self.base = int.from_bytes(whole, "little")
        self.chunks = [self.base * (chunk + 1) * (index + 1) for chunk in range(nodes)]

    async def run(self) -> str | None:
        """None if every sum is right, else what is wrong."""
        nodes, index = self.nodes, self.index
        for step in range(nodes - 1):
            came = await self._pass_on((index - step) % nodes)
            if came is None:
                return self._damaged()
            self.chunks[(index - step - 1) % nodes] += came
        for step in range(nodes - 1):
            came = await self._pass_on((index + 1 - step) % nodes)
            if came is None:
                return self._damaged()
            self.chunks[(index - step) % nodes] = came
        right = self.base * (nodes * (nodes + 1) // 2)
        wrong = [chunk for chunk in range(nodes) if self.chunks[chunk] != right * (chunk + 1)]
        return f"the sum is wrong in {len(wrong)} of {nodes} chunks" if wrong else None

    async def _pass_on(self, chunk: int) -> int | None:
        """Send that chunk on while the next one comes; None if it came damaged."""
        data = self.chunks[chunk].to_bytes(self.bytes, "little")
        return await _both(self._receive(), self._send(data))

    async def _send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.following, HEADER.pack(len(data), zlib.crc32(data)))
        await loop.sock_sendall(self.following, data)

    async def _receive(self) -> int | None:
        size, crc = HEADER.unpack(await receive(self.previous, HEADER.size))
        if size != self.bytes:
            return None
        data = await receive(self.previous, size)
        return int.from_bytes(data, "little") if zlib.crc32(data) == crc else None

    def _damaged(self) -> str:
        return "what came was damaged on the way"


async def tournament(wire: Wire, peers: Sequence[Address], attempt: int, size: int, limit_s: float) -> list[list[float] | None]:
    """Per node [bytes, seconds, busy seconds] of what came from it; None where nobody was met."""
    found: list[list[float] | None] = [None] * wire.nodes
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(tournament_s(wire.nodes, limit_s)):
            for number in rounds(wire.nodes):
                other = partner(wire.nodes, number, wire.index)
                if other is not None:
                    with contextlib.suppress(OSError, EOFError, NoProof):
                        connection = await _meet(wire, peers, other, f"{attempt} {number}")
                        found[other] = await _exchange(connection, size, limit_s)
    return found


async def _meet(wire: Wire, peers: Sequence[Address], other: int, purpose: str) -> socket.socket:
    """Both are ready when this returns: who has come to an earlier round waits."""
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
    """Both directions at once; [bytes that came, seconds they took, seconds in which this process had a core or waited for one]."""
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
        cut(connection)
    else:
        connection.close()
    return [came, last if came >= size else time.perf_counter() - begun, busy_s() - busy]


def busy_s() -> float:
    """Seconds in which this process has run, or could have but for others on its core: for these the network is not to blame."""
    words = machine_text("/proc/self/schedstat").split()
    waited_ns = int(words[1]) if len(words) > 1 else 0  # a kernel may not count it
    return time.process_time() + waited_ns / 1e9


async def _both(first: Coroutine[Any, Any, _T], second: Coroutine[Any, Any, None]) -> _T:
    """The result of the first, when both are done; neither goes on after a failure, on a connection that is closed then."""
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        await asyncio.gather(*tasks)
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _give(connection: socket.socket, size: int) -> None:
    loop, block = asyncio.get_running_loop(), memoryview(bytes(BLOCK))
    for start in range(0, size, BLOCK):
        await loop.sock_sendall(connection, block[: size - start])
