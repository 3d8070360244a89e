"""Two programs of one run prove to each other, at the ends of a connection, that they know its token.

Its words have fixed lengths, so a stranger can say no more than these. Who listens greets with HELLO and a challenge; who called answers
with its index, its purpose, its proof and a challenge of its own; the listener's welcome is its proof.
"""

from __future__ import annotations

import errno
import hmac
import logging
import resource
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

# Prove that one knows a token without sending it: each side hashes the other's fresh challenge with it.
#
# What is asked and said here comes from whoever connects: any text at all is answered, none is an error.


TOKEN_BYTES: Final = 32


def new_token() -> bytes:
    """32 random bytes, for one attempt."""
    return secrets.token_bytes(TOKEN_BYTES)


def new_challenge() -> str:
    """64 hex digits, never used again."""
    return secrets.token_hex(TOKEN_BYTES)


def proof(token: bytes, role: str, challenge: str) -> str:
    """What only a holder of `token` can say, in a role such as `supervisor` or `node-<index>`, to `challenge`: 64 hex digits."""
    return hmac.new(token, f"{role}\0{challenge}".encode(errors="backslashreplace"), "sha256").hexdigest()


def proves(token: bytes, role: str, challenge: str, said: str) -> bool:
    """Whether `said` is that proof."""
    return said.isascii() and hmac.compare_digest(proof(token, role, challenge), said)


def derived(token: bytes, use: str) -> bytes:
    """Another token for one `use` of the same attempt: who learns it does not know `token`."""
    return hmac.new(token, f"derive\0{use}".encode(), "sha256").digest()


HELLO: Final = b"slipway 1\n"
_ANSWER: Final = struct.Struct("!I16s64s64s")
_HEX: Final = 64
GREETING_BYTES: Final = len(HELLO) + _HEX
ANSWER_BYTES: Final = _ANSWER.size
WELCOME_BYTES: Final = _HEX
Words = bytes | bytearray


class NoProof(Exception):
    """The other end does not know the token, or is another program than it should be."""


class Handshake:
    """One side's secrets for one connection: the token, what it is used for, such as `preflight`, and the index of this node."""

    def __init__(self, token: bytes, use: str, me: int) -> None:
        self._token, self._use, self._me = token, use, me
        self._challenge = new_challenge()

    def greeting(self) -> bytes:
        """What a listener says first."""
        return HELLO + self._challenge.encode()

    def answer(self, greeting: Words, listener: int, purpose: str = "") -> bytes:
        """What who connects to the node `listener` says to its greeting. Raises NoProof."""
        if not greeting.startswith(HELLO):
            raise NoProof("what listens there is no program of a run")
        said = proof(self._token, self._role(purpose, self._me, listener), _text(greeting[len(HELLO) :]))
        return _ANSWER.pack(self._me, purpose.encode(), said.encode(), self._challenge.encode())

    def check_answer(self, answer: Words) -> tuple[int, str, bytes]:
        """Index and purpose of who connected, and the welcome to say to it. Raises NoProof."""
        index, *words = _ANSWER.unpack(answer)
        purpose, said, challenge = map(_text, words)
        purpose = purpose.rstrip("\0")
        if not proves(self._token, self._role(purpose, index, self._me), self._challenge, said):
            raise NoProof("it does not know the token")
        return index, purpose, proof(self._token, self._role(purpose, self._me, index), challenge).encode()

    def check_welcome(self, welcome: Words, listener: int, purpose: str = "") -> None:
        """Whether the listener knows the token too. Raises NoProof."""
        if not proves(self._token, self._role(purpose, listener, self._me), self._challenge, _text(welcome)):
            raise NoProof("it does not know the token")

    def _role(self, purpose: str, speaker: int, hearer: int) -> str:
        return f"{self._use} {purpose} {speaker} to {hearer}"


def _text(content: Words) -> str:
    return content.decode("latin-1")


# Connections that have proved nothing yet. Anybody who reaches a port can connect to it, as often as he likes, and keep silent.
#
# So the newest is never turned away: the oldest stranger goes for him, of the address that has most of them. Who belongs here answers
# within
# milliseconds, and tries again where a flood was faster. What a stranger can take is bounded: a descriptor of a quarter of ours, a turn of
# the loop for `PER_TURN` of them, a line of log per second for all.


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
