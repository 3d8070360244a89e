"""Connections of the preflight, both ends in this process."""

import asyncio
import socket

from cluster.preflight.probes import ProbeConnections, receive
from tests.few_files import STRANGERS, few_files

TOKEN = b"t" * 32


def wire(index: int, token: bytes = TOKEN) -> ProbeConnections:
    return ProbeConnections(index, 2, "127.0.0.1", token)


def test_who_is_turned_away_comes_again() -> None:
    async def crowded(listener: socket.socket, own: ProbeConnections) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            connection, _ = await loop.sock_accept(listener)
            connection.close()
        connection, _ = await loop.sock_accept(listener)
        assert await own._let_in(connection) == (1, "0 1")
        await loop.sock_sendall(connection, b"!")
        connection.close()

    async def main() -> None:
        near, far = wire(1), wire(0)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            task = asyncio.create_task(crowded(listener, far))
            with await near.dial(0, listener.getsockname(), "0 1") as connection:
                assert await receive(connection, 1) == b"!"
            await task
        near.close()
        far.close()

    asyncio.run(main())


def test_the_oldest_stranger_goes_for_the_newest_and_the_node_comes_in() -> None:
    async def main() -> None:
        near = wire(1)
        with few_files():
            far = wire(0)
        far.serve()
        waiting = [socket.create_connection(("127.0.0.1", far.port)) for _ in range(STRANGERS + 8)]
        connection = await near.dial(0, ("127.0.0.1", far.port), "0 1")
        waiting += [socket.create_connection(("127.0.0.1", far.port)) for _ in range(STRANGERS + 8)]
        with connection, await far.arrival(1, "0 1") as other:
            await asyncio.get_running_loop().sock_sendall(connection, b"!")
            assert await receive(other, 1) == b"!"
        for stranger in waiting:
            stranger.close()
        near.close()
        far.close()
        await asyncio.sleep(0)

    asyncio.run(main())
