"""Prove between two programs of a run, at the ends of a connection, that both know its token.

The words have fixed lengths, so that nobody can send more before the proof. The listener greets with HELLO and a challenge; the connecting
side answers with its index, its purpose, its proof and a challenge of its own; the welcome of the listener is its proof.
"""

import errno
import hmac
import logging
import resource
import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

# The proof that a side knows the token without sending it: it hashes the other side's fresh challenge with it. The challenge may be any
# text, since it comes from whoever connects.


TOKEN_BYTES: Final = 32


def new_token() -> bytes:
    """Make a token for one attempt: 32 random bytes."""
    return secrets.token_bytes(TOKEN_BYTES)


def new_challenge() -> str:
    """Make a challenge that is never used again: 64 hex digits."""
    return secrets.token_hex(TOKEN_BYTES)


def proof(token: bytes, role: str, challenge: str) -> str:
    """Compute what only a holder of `token` can answer to `challenge`, in a role such as `supervisor` or `node-<index>`: 64 hex digits."""
    return hmac.new(token, f"{role}\0{challenge}".encode(errors="backslashreplace"), "sha256").hexdigest()


def proves(token: bytes, role: str, challenge: str, said: str) -> bool:
    """Return True if `said` is the proof of a holder of `token` in this role."""
    return said.isascii() and hmac.compare_digest(proof(token, role, challenge), said)


def derived(token: bytes, use: str) -> bytes:
    """Derive another token for one `use` of the same attempt. Whoever learns it does not know `token`."""
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
        return HELLO + self._challenge.encode()

    def answer(self, greeting: Words, listener: int, purpose: str = "") -> bytes:
        """Return the bytes that a connecting side sends after the greeting of the listener of node `listener`. Raises NoProof."""
        if not greeting.startswith(HELLO):
            raise NoProof("it sent no greeting of Slipway")
        said = proof(self._token, self._role(purpose, self._me, listener), _text(greeting[len(HELLO) :]))
        return _ANSWER.pack(self._me, purpose.encode(), said.encode(), self._challenge.encode())

    def check_answer(self, answer: Words) -> tuple[int, str, bytes]:
        """Return index and purpose of the connecting side, and the welcome to send. Raises NoProof."""
        index, *words = _ANSWER.unpack(answer)
        purpose, said, challenge = map(_text, words)
        purpose = purpose.rstrip("\0")
        if not proves(self._token, self._role(purpose, index, self._me), self._challenge, said):
            raise NoProof("it does not know the token")
        return index, purpose, proof(self._token, self._role(purpose, self._me, index), challenge).encode()

    def check_welcome(self, welcome: Words, listener: int, purpose: str = "") -> None:
        """Check that the listener knows the token too. Raises NoProof."""
        if not proves(self._token, self._role(purpose, listener, self._me), self._challenge, _text(welcome)):
            raise NoProof("it does not know the token")

    def _role(self, purpose: str, speaker: int, listener: int) -> str:
        return f"{self._use} {purpose} {speaker} to {listener}"


def _text(content: Words) -> str:
    return content.decode("latin-1")


# Connections that have proved nothing yet. Anybody who reaches a port can connect to it, as often as they like, and keep silent.
#
# The newest is never refused: the oldest one of the address with most connections is closed for it. A program of ours answers within
# milliseconds, and tries again where a flood was faster. What others can take is bounded: a quarter of our descriptors, a turn of the loop
# for PER_TURN connections, and a line of log per second for all.


PER_TURN: Final = 32
"""Connections accepted at once: then proved connections and timers get their turn."""
MAX_UNPROVED: Final = 1024
SPARE_BACKLOG: Final = 256
ACCEPT_PAUSE_S: Final = 0.2
"""How long nothing is taken after the system had no room for a connection."""
LOG_EVERY_S: Final = 1.0
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_T = TypeVar("_T")


class NoDescriptors(Exception):
    """This process, or the system, has no descriptor or no memory for a connection: look again after ACCEPT_PAUSE_S."""


def listen(address: str, expected: int) -> socket.socket:
    """Open a listener on a free port of `address`, not blocking, with a backlog for `expected` connections and unproved ones. Raises
    OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=2 * expected + SPARE_BACKLOG)
    listener.setblocking(False)
    return listener


def accept_pending(listener: socket.socket) -> list[tuple[socket.socket, str]]:
    """Accept pending connections, at most PER_TURN of them, each with its address. Raises NoDescriptors."""
    found: list[tuple[socket.socket, str]] = []
    while len(found) < PER_TURN:
        try:
            connection, name = listener.accept()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS and not found:
                raise NoDescriptors(f"a connection cannot be taken now: {error.strerror}") from error
            break  # none waits, or this one has gone again
        found.append((connection, str(name[0])))
    return found


def most_pending() -> int:
    """Compute how many unproved connections may wait: at most a quarter of the descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_UNPROVED if soft == resource.RLIM_INFINITY else min(MAX_UNPROVED, max(8, soft // 4))


class PendingConnections(Generic[_T]):
    """Connections that have proved nothing yet, in the order in which they came. Any hashable value stands for one."""

    def __init__(self, most: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most_pending() if most is None else most
        self._clock = clock
        self._all: dict[_T, tuple[str, float]] = {}

    def add(self, connection: _T, host: str) -> None:
        self._all[connection] = (host, self._clock())

    def remove(self, connection: _T) -> bool:
        """Return False if the connection was not there."""
        return self._all.pop(connection, None) is not None

    def surplus(self) -> _T | None:
        """Return the connection to close if there are too many: the oldest of the address that has most."""
        if len(self._all) <= self.most:
            return None
        ((most, _),) = Counter(host for host, _ in self._all.values()).most_common(1)
        return next(connection for connection, (host, _) in self._all.items() if host == most)

    def overdue(self, limit_s: float) -> list[_T]:
        now, found = self._clock(), []
        for connection, (_, since) in self._all.items():
            if now - since < limit_s:
                break
            found.append(connection)
        return found

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[_T]:
        return iter(list(self._all))

    def __contains__(self, connection: object) -> bool:
        return connection in self._all


class Refusals:
    """A log of refused connections: at most one line in LOG_EVERY_S, with their number."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._count, self._why, self._logged = 0, "", float("-inf")

    def note(self, why: str) -> None:
        self._count, self._why = self._count + 1, why
        if self._clock() - self._logged >= LOG_EVERY_S:
            self.log()

    def log(self) -> None:
        if self._count == 1:
            self._logger.warning("a connection was refused: %s", self._why)
        elif self._count:
            self._logger.warning("%d connections were refused, the last one: %s", self._count, self._why)
        self._count, self._logged = 0, self._clock()
