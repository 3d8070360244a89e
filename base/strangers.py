"""Connections that have proved nothing yet. Anybody who reaches a port can connect to it, as often as he likes, and keep silent.

So the newest is never turned away: the oldest stranger goes for him, of the address that has most of them. Who belongs here answers within
milliseconds, and tries again where a flood was faster. What a stranger can take is bounded: a descriptor of a quarter of ours, a turn of
the loop for `PER_TURN` of them, a line of log per second for all.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

PER_TURN: Final = 32
"""Connections taken at once: then those that belong here, and the timers, get their turn."""
MOST: Final = 1024
SPARE_BACKLOG: Final = 256
REST_S: Final = 0.2
"""How long nothing is taken after the system had no room for a connection."""
LOG_EVERY_S: Final = 1.0
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_T = TypeVar("_T")


class NoRoom(Exception):
    """This process, or the system, has no descriptor or no memory for a connection: look again after REST_S."""


def listen(address: str, expected: int) -> socket.socket:
    """A listener on a free port of `address`, never blocking, for so many that belong here, and strangers. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=2 * expected + SPARE_BACKLOG)
    listener.setblocking(False)
    return listener


def newcomers(listener: socket.socket) -> list[tuple[socket.socket, str]]:
    """Who has connected, with his address; PER_TURN at most, the others next time. Raises NoRoom."""
    found: list[tuple[socket.socket, str]] = []
    while len(found) < PER_TURN:
        try:
            connection, name = listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM and not found:
                raise NoRoom(f"a connection cannot be taken now: {error.strerror}") from error
            break  # none waits, or this one has gone again
        found.append((connection, str(name[0])))
    return found


def places() -> int:
    """How many strangers may wait: at most a quarter of the descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else min(MOST, max(8, soft // 4))


class Strangers(Generic[_T]):
    """Those that wait, in the order in which they came. Any hashable value is one."""

    def __init__(self, most: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = places() if most is None else most
        self._clock = clock
        self._all: dict[_T, tuple[str, float]] = {}
        self._of_host: dict[str, dict[_T, None]] = {}

    def add(self, stranger: _T, host: str) -> None:
        """He has come from the address `host`."""
        self._all[stranger] = (host, self._clock())
        self._of_host.setdefault(host, {})[stranger] = None

    def remove(self, stranger: _T) -> bool:
        """He waits no longer; False if he did not."""
        host, _ = self._all.pop(stranger, (None, 0.0))
        if host is None:
            return False
        self._of_host[host].pop(stranger)
        if not self._of_host[host]:
            del self._of_host[host]
        return True

    def surplus(self) -> _T | None:
        """Who has to go, if there are too many: the oldest of the address that has most."""
        if len(self._all) <= self.most:
            return None
        host = max(self._of_host, key=lambda host: len(self._of_host[host]))
        return next(iter(self._of_host[host]))

    def overdue(self, limit_s: float) -> list[_T]:
        """Those that came longer ago than that."""
        now, found = self._clock(), []
        for stranger, (_, since) in self._all.items():
            if now - since < limit_s:
                break
            found.append(stranger)
        return found

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[_T]:
        return iter(list(self._all))

    def __contains__(self, stranger: object) -> bool:
        return stranger in self._all


class Refusals:
    """Tells of refused connections: at most a line in LOG_EVERY_S, with their number."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._count, self._why, self._told = 0, "", float("-inf")

    def note(self, why: str) -> None:
        """One more."""
        self._count, self._why = self._count + 1, why
        if self._clock() - self._told >= LOG_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Of those that nothing was said of yet."""
        if self._count == 1:
            self._logger.warning("a connection was refused: %s", self._why)
        elif self._count:
            self._logger.warning("%d connections were refused, the last one: %s", self._count, self._why)
        self._count, self._told = 0, self._clock()
