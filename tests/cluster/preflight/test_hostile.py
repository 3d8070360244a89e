"""Hostile connections to and from the preflight's listener: nobody but the stranger himself is disturbed."""

import asyncio
import contextlib
import random
import socket
import struct

import pytest

from base.handshake import Handshake, NoProof, new_challenge
from cluster.preflight.probes import ProbeConnections, receive
from tests.hostile import changed_bytes

pytestmark = pytest.mark.slow
COUNTS = [500, pytest.param(10000, marks=pytest.mark.long)]
TOKEN = b"t" * 32
RESET = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER: a connection ends at once, and takes no port of the thousands that follow."""


def problems(loop: asyncio.AbstractEventLoop) -> list[str]:
    """What the loop would print of errors that nobody took."""
    found: list[str] = []
    loop.set_exception_handler(lambda _loop, context: found.append(str(context)))
    return found


@pytest.mark.parametrize("count", COUNTS)
def test_no_words_disturb_the_listener(count: int) -> None:
    async def main() -> None:
        chance = random.Random(5)
        far, near = ProbeConnections(0, 2, "127.0.0.1", TOKEN), ProbeConnections(1, 2, "127.0.0.1", TOKEN)
        found = problems(asyncio.get_running_loop())
        far.serve()
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", far.port)) as stranger:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                hello = struct.pack("!I16s64s64s", chance.choice((0, 1, 2**32 - 1)), b"0 1", b"0" * 64, new_challenge().encode())
                with contextlib.suppress(OSError):
                    stranger.sendall(changed_bytes(hello, chance))
                await asyncio.sleep(0)
        with await near.dial(0, ("127.0.0.1", far.port), "0 1") as connection, await far.arrival(1, "0 1") as other:
            await asyncio.get_running_loop().sock_sendall(connection, b"!")
            assert await receive(other, 1) == b"!"
        far.close()
        near.close()
        await asyncio.sleep(0.1)
        assert found == []

    asyncio.run(main())


@pytest.mark.parametrize("count", COUNTS)
def test_no_words_of_a_listener_disturb_who_dials(count: int) -> None:
    async def main() -> None:
        chance = random.Random(6)
        loop = asyncio.get_running_loop()
        found = problems(loop)
        near = ProbeConnections(1, 2, "127.0.0.1", TOKEN)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)

            async def answer() -> None:
                while True:
                    stranger, _ = await loop.sock_accept(listener)
                    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    with stranger, contextlib.suppress(OSError, TimeoutError):
                        await loop.sock_sendall(stranger, changed_bytes(Handshake(TOKEN, "preflight", 0).greeting(), chance))
                        async with asyncio.timeout(0.02):
                            await loop.sock_recv(stranger, 200)
                        await loop.sock_sendall(stranger, changed_bytes(new_challenge().encode(), chance))

            serving = asyncio.create_task(answer())
            for _ in range(count):
                connection, _ = await near.connect(listener.getsockname())
                with connection, pytest.raises((OSError, EOFError, NoProof)):
                    await near.introduce(connection, 0, "reach")
            serving.cancel()
        near.close()
        assert found == []

    asyncio.run(main())
