"""How nodes that stage the same dataset find each other: one listens, the other connects, both prove that they know the token.

Who has not done so after a few seconds is dismissed, and there are never many who have not.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from data_prep.staging.company import Company
from data_prep.staging.connection import Connection
from data_prep.staging.wire import ANSWER_BYTES, GREETING_BYTES, WELCOME_BYTES, Handshake, PeerError

if TYPE_CHECKING:
    from data_prep.staging.exchange import Exchange

logger = logging.getLogger(__name__)

STRANGERS: Final = 16
HANDSHAKE_S: Final = 5.0
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Stranger:
    """A connection on its way; `index` is who it should be, -1 where it came to us."""

    def __init__(self, peer: Connection, handshake: Handshake, index: int, until: float) -> None:
        self.peer, self.handshake, self.index, self.until = peer, handshake, index, until


class Door:
    """Listens on the company's address; tells `exchange` who came, and who was expected and did not."""

    def __init__(self, company: Company, digest: str, selector: selectors.BaseSelector, exchange: Exchange) -> None:
        self._company, self._digest, self._selector, self._exchange = company, digest, selector, exchange
        self._strangers: list[_Stranger] = []
        self._expected: dict[int, float] = {}
        self._wait_s = max(HANDSHAKE_S, company.hang_s)
        family = socket.AF_INET6 if ":" in company.address else socket.AF_INET
        self._listener = socket.create_server((company.address, 0), family=family, backlog=company.nodes + STRANGERS)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._rests = False
        self._listen()

    # -- who comes to us

    def _listen(self) -> None:
        self._rests = False
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:  # who knocks goes on knocking: look again at the next beat
                logger.warning("a connection cannot be taken now: %s", error.strerror)
                self._selector.unregister(self._listener)
                self._rests = True
            return
        if len(self._strangers) >= self._company.nodes + STRANGERS:
            connection.close()
            return
        stranger = self._stranger(connection, -1)
        stranger.peer.say(stranger.handshake.greeting())
        stranger.peer.expect(ANSWER_BYTES, partial(self._answered, stranger))
        self._watch(stranger, partial(self._go_on, stranger))

    def _answered(self, stranger: _Stranger, answer: bytes) -> None:
        index, welcome = stranger.handshake.check_answer(answer)
        if not self._exchange.may_come(index):
            raise PeerError(f"node {index} is not expected")
        stranger.peer.say(welcome)
        self._let_in(stranger, index)

    # -- whom we go to

    def expect(self, index: int, address: tuple[str, int] | None) -> None:
        """This node is to come; we connect where there is an address."""
        if not self._exchange.may_come(index):
            return
        self._expected[index] = time.monotonic() + 2 * self._wait_s
        if address is None:
            return
        try:
            connection = _connecting(address)
        except OSError as error:
            self._exchange.lose(index, f"{address[0]} port {address[1]} cannot be reached: {error.strerror}")
            return
        stranger = self._stranger(connection, index)
        stranger.peer.expect(GREETING_BYTES, partial(self._greeted, stranger))
        self._watch(stranger, partial(self._go_on, stranger))

    def _greeted(self, stranger: _Stranger, greeting: bytes) -> None:
        stranger.peer.say(stranger.handshake.answer(greeting, stranger.index))
        stranger.peer.expect(WELCOME_BYTES, partial(self._welcomed, stranger))

    def _welcomed(self, stranger: _Stranger, welcome: bytes) -> None:
        stranger.handshake.check_welcome(welcome, stranger.index)
        self._let_in(stranger, stranger.index)

    # -- both

    def _stranger(self, connection: socket.socket, index: int) -> _Stranger:
        handshake = Handshake(self._company.token, self._digest, self._company.index)
        stranger = _Stranger(Connection(connection, self._exchange), handshake, index, time.monotonic() + self._wait_s)
        self._strangers.append(stranger)
        return stranger

    def _watch(self, stranger: _Stranger, callback: Callable[[], None]) -> None:
        self._selector.register(stranger.peer, selectors.EVENT_READ, callback)
        self._flush(stranger)

    def _go_on(self, stranger: _Stranger) -> None:
        try:
            stranger.peer.receive()
        except PeerError as error:
            self._dismiss(stranger, str(error))
            return
        self._flush(stranger)

    def _flush(self, stranger: _Stranger) -> None:
        """The words of a handshake fit into any socket's buffer."""
        if stranger in self._strangers and stranger.peer.wants_to_send:
            try:
                stranger.peer.send()
            except PeerError as error:
                self._dismiss(stranger, str(error))

    def _let_in(self, stranger: _Stranger, index: int) -> None:
        self._forget(stranger)
        self._expected.pop(index, None)
        if not self._exchange.may_come(index):
            stranger.peer.close()
            return
        stranger.peer.index = index
        self._exchange.came(stranger.peer)

    def _dismiss(self, stranger: _Stranger, why: str) -> None:
        if stranger in self._strangers:
            self._forget(stranger)
            stranger.peer.close()
            if stranger.index >= 0:
                self._expected.pop(stranger.index, None)
                self._exchange.lose(stranger.index, why)
            else:
                logger.warning("a connection was refused: %s", why)

    def _forget(self, stranger: _Stranger) -> None:
        self._selector.unregister(stranger.peer)
        self._strangers.remove(stranger)

    def expire(self, now: float) -> None:
        """Dismiss who takes too long, and give up who was expected and has not come. At every beat."""
        if self._rests:
            self._listen()
        for stranger in [stranger for stranger in self._strangers if now > stranger.until]:
            self._dismiss(stranger, f"it did not prove within {self._wait_s:g} s that it is of this run")
        for index in [index for index, until in self._expected.items() if now > until]:
            del self._expected[index]
            self._exchange.lose(index, f"it did not come within {2 * self._wait_s:g} s")

    def close(self) -> None:
        """Nobody comes in any more."""
        if not self._rests:
            self._selector.unregister(self._listener)
        self._listener.close()
        for stranger in list(self._strangers):
            self._forget(stranger)
            stranger.peer.close()


def _connecting(address: tuple[str, int]) -> socket.socket:
    """A connection on its way. Raises OSError."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.setblocking(False)
        code = connection.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except OSError:
        connection.close()
        raise
    return connection
