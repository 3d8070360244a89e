"""How nodes that stage the same files find each other: one listens, the other connects, both prove that they know the token.

Who has not done so after a few seconds is dismissed, and the oldest of them goes for the newest; who was turned away comes again.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

from base.handshake import ANSWER_BYTES, GREETING_BYTES, WELCOME_BYTES, Handshake, NoProof
from base.strangers import NoRoom, Refusals, Strangers, listen, newcomers
from data_prep.limits import PEER_HANDSHAKE_S
from data_prep.staging.connection import Connection
from data_prep.staging.peer_group import PeerGroup
from data_prep.staging.wire import HungUp, PeerError

if TYPE_CHECKING:
    from data_prep.staging.exchange import Exchange

logger = logging.getLogger(__name__)


class _Stranger:
    """A connection on its way; `index` is who it should be, and `address` where, -1 and None where it came to us."""

    def __init__(self, peer: Connection, handshake: Handshake, index: int = -1, address: tuple[str, int] | None = None) -> None:
        self.peer, self.handshake, self.index, self.address = peer, handshake, index, address
        self.since = time.monotonic()


class PeerListener:
    """Listens on the group's address while anybody may come; tells `exchange` who came, and who was expected and did not."""

    def __init__(self, peer_group: PeerGroup, digest: str, selector: selectors.BaseSelector, exchange: Exchange) -> None:
        self._peer_group, self._digest, self._selector, self._exchange = peer_group, digest, selector, exchange
        self._strangers: Strangers[_Stranger] = Strangers()
        self._refusals = Refusals(logger)
        self._called: list[_Stranger] = []
        """On their way to those that we go to."""
        self._again: dict[int, tuple[str, int]] = {}
        """Whom to go to again, since they hung up before they knew who we are."""
        self._expected: dict[int, float] = {}
        self._wait_s = max(PEER_HANDSHAKE_S, peer_group.hang_s)
        self._listener = listen(peer_group.address, peer_group.nodes)
        self.port = int(self._listener.getsockname()[1])
        self._open, self._rests = True, False
        self._listen()

    # -- who comes to us

    def _listen(self) -> None:
        self._rests = False
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            found = newcomers(self._listener)
        except NoRoom as error:  # who knocks goes on knocking: look again at the next beat
            self._refusals.note(str(error))
            self._selector.unregister(self._listener)
            self._rests = True
            return
        for connection, host in found:
            self._greet(connection, host)

    def _greet(self, connection: socket.socket, host: str) -> None:
        if not self._open:  # one before this one was the last that was expected
            connection.close()
            return
        stranger = _Stranger(Connection(connection, self._exchange), self._handshake())
        self._strangers.add(stranger, host)
        stranger.peer.say(stranger.handshake.greeting())
        stranger.peer.expect(ANSWER_BYTES, partial(self._answered, stranger))
        self._watch(stranger)
        oldest = self._strangers.surplus()
        if oldest is not None:
            self._go_on(oldest)  # its answer may be here, and not read yet
            self._dismiss(oldest, "too many wait, and it was the oldest")

    def _answered(self, stranger: _Stranger, answer: bytes) -> None:
        index, _, welcome = stranger.handshake.check_answer(answer)
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
        if address is not None:
            self._call(index, address)

    def _call(self, index: int, address: tuple[str, int]) -> None:
        try:
            connection = _connecting(address)
        except OSError as error:
            self._exchange.lose(index, f"{address[0]} port {address[1]} cannot be reached: {error.strerror}")
            return
        stranger = _Stranger(Connection(connection, self._exchange), self._handshake(), index, address)
        self._called.append(stranger)
        stranger.peer.expect(GREETING_BYTES, partial(self._greeted, stranger))
        self._watch(stranger)

    def _greeted(self, stranger: _Stranger, greeting: bytes) -> None:
        stranger.peer.say(stranger.handshake.answer(greeting, stranger.index))
        stranger.peer.expect(WELCOME_BYTES, partial(self._welcomed, stranger))

    def _welcomed(self, stranger: _Stranger, welcome: bytes) -> None:
        stranger.handshake.check_welcome(welcome, stranger.index)
        self._let_in(stranger, stranger.index)

    # -- both

    def _handshake(self) -> Handshake:
        return Handshake(self._peer_group.token, f"chunks {self._digest}", self._peer_group.index)

    def _waits(self, stranger: _Stranger) -> bool:
        return stranger in self._strangers or stranger in self._called

    def _watch(self, stranger: _Stranger) -> None:
        self._selector.register(stranger.peer, selectors.EVENT_READ, partial(self._go_on, stranger))
        self._flush(stranger)

    def _go_on(self, stranger: _Stranger) -> None:
        """Whatever comes here is a stranger's, and so is every error of it."""
        try:
            stranger.peer.receive()
        except (PeerError, NoProof) as error:
            self._dismiss(stranger, str(error), again=isinstance(error, HungUp))
            return
        self._flush(stranger)

    def _flush(self, stranger: _Stranger) -> None:
        """The words of a handshake fit into any socket's buffer."""
        if self._waits(stranger) and stranger.peer.wants_to_send:
            try:
                stranger.peer.send()
            except PeerError as error:
                self._dismiss(stranger, str(error), again=isinstance(error, HungUp))

    def _let_in(self, stranger: _Stranger, index: int) -> None:
        self._forget(stranger)
        self._expected.pop(index, None)
        if not self._exchange.may_come(index):
            stranger.peer.close()
            return
        stranger.peer.index = index
        self._exchange.came(stranger.peer)
        if not any(self._exchange.may_come(index) for index in range(self._peer_group.nodes)):
            self.close()

    def _dismiss(self, stranger: _Stranger, why: str, again: bool = False) -> None:
        """`again`: whom we went to hung up, as one does to whom too many have come; it is gone to again while it is expected."""
        if not self._waits(stranger):
            return
        self._forget(stranger)
        stranger.peer.close()
        if stranger.address is None:
            self._refusals.note(why)
        elif again and stranger.index in self._expected:
            self._again[stranger.index] = stranger.address
        else:
            self._expected.pop(stranger.index, None)
            self._exchange.lose(stranger.index, why)

    def _forget(self, stranger: _Stranger) -> None:
        self._selector.unregister(stranger.peer)
        if not self._strangers.remove(stranger):
            self._called.remove(stranger)

    def expire(self, now: float) -> None:
        """Dismiss who takes too long, go again to who turned us away, give up who was expected and has not come. At every beat."""
        if self._rests:
            self._listen()
        late = [*self._strangers.overdue(self._wait_s), *(called for called in self._called if now - called.since > self._wait_s)]
        for stranger in late:
            self._dismiss(stranger, f"it did not prove within {self._wait_s:g} s that it is of this run")
        for index in [index for index, until in self._expected.items() if now > until]:
            del self._expected[index]
            self._exchange.lose(index, f"it did not come within {2 * self._wait_s:g} s")
        again, self._again = self._again, {}
        for index, address in again.items():
            if self._exchange.may_come(index):
                self._call(index, address)

    def close(self) -> None:
        """Nobody comes in any more."""
        if not self._open:
            return
        self._open = False
        if not self._rests:
            self._selector.unregister(self._listener)
        self._rests = False
        self._listener.close()
        for stranger in [*self._strangers, *self._called]:
            self._forget(stranger)
            stranger.peer.close()
        self._refusals.tell()


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
