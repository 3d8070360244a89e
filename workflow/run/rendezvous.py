"""The address at which the ranks find each other: a port that the head node has bound before anybody is told of it.

The range lies above the kernel's ephemeral ports, so no outgoing connection takes one. The port is bound without SO_REUSEADDR, which
keeps everybody else from binding it, and gets the option afterwards: then a server that sets it too, as torch's store does, may listen
there while we still hold it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from base.errors import NodeLost

FIRST_PORT = 61001
LAST_PORT = 65500


class Reservation:
    """A bound port. `release()` once the ranks use it."""

    def __init__(self, address: str, start: int) -> None:
        self._socket = _bind(address, ports(start))
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let go; a listener of the run has it by now."""
        self._socket.close()


def ports(start: int) -> Sequence[int]:
    """All ports of the range, from one that depends on `start`, so that runs side by side do not try the same ones."""
    size = LAST_PORT - FIRST_PORT + 1
    return [FIRST_PORT + (start + index) % size for index in range(size)]


def _bind(address: str, candidates: Sequence[int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in candidates:
        holder = socket.socket(family, socket.SOCK_STREAM)
        try:
            holder.bind((address, port))
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder
    raise NodeLost(f"no free port between {FIRST_PORT} and {LAST_PORT} on {address} for the rendezvous")
