"""The addresses at which the processes of a run find each other: ports that their node has bound before anybody is told of them.
MASTER_PORT is on the head node, the port of a rank on its own.

The range lies above the kernel's ephemeral ports, this machine's own range included, so no outgoing connection takes one. The port is
bound without SO_REUSEADDR, which keeps everybody else from binding it, and gets the option afterwards: then a server that sets it too, as
torch's store does, may listen there while we still hold it.

Each attempt has ports of its own, held until the first step, and starts to look for them at a place drawn from its name, its random token
included: a worker that an earlier attempt left behind knocks at another port. torchrun gets the attempt and the restart count as the
rendezvous id besides; launcher `ranks` has no such thing, since a rank only connects to MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import zlib
from collections.abc import Sequence
from pathlib import Path

from base.errors import NodeLost

FIRST_PORT = 61001
LAST_PORT = 65500
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Reservation:
    """So many bound ports for the attempt of that name. `release()` once the ranks use them. Raises NodeLost."""

    def __init__(self, address: str, attempt: str, count: int = 1) -> None:
        candidates = ports(zlib.crc32(attempt.encode()), first_port(ephemeral_end()))
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                self._sockets.append(_bind(address, candidates))
        except NodeLost:
            self.release()
            raise
        self.ports: tuple[int, ...] = tuple(holder.getsockname()[1] for holder in self._sockets)

    def release(self) -> None:
        """Let go; listeners of the run have them by now."""
        for holder in self._sockets:
            holder.close()


def ephemeral_end() -> int | None:
    """The last port that this machine gives to outgoing connections; None where it does not say."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(EPHEMERAL.read_text().split()[1])
    return None


def first_port(last_ephemeral: int | None) -> int:
    """Pure: the first port of the range. A machine whose outgoing connections use it all leaves no room above them: then the usual range
    serves, since a port that is taken is passed over, and one that is bound is not given to a connection."""
    above = (last_ephemeral or 0) + 1
    return above if FIRST_PORT < above <= LAST_PORT else FIRST_PORT


def ports(start: int, first: int = FIRST_PORT) -> Sequence[int]:
    """Pure: all ports of the range, from one that depends on `start`, so that runs side by side do not try the same ones."""
    size = LAST_PORT - first + 1
    return [first + (start + index) % size for index in range(size)]


def _bind(address: str, candidates: Sequence[int]) -> socket.socket:
    """Hold the first port that is free. Raises NodeLost."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        found = f"found {address!r}: a name may mean another machine elsewhere"
        raise NodeLost(f"the rendezvous needs an IP address of the node, {found}") from None
    for port in candidates:
        holder = socket.socket(family, socket.SOCK_STREAM)
        try:
            holder.bind((address, port))
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder
    tried = f"between {min(candidates)} and {LAST_PORT} on {address}"
    raise NodeLost(f"no free port {tried} for the rendezvous; is it an address of this node?")
