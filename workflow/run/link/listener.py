"""The supervisor's listener for node programs: who connects has a few seconds to prove that it knows the run's token."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from base.handshake import ANSWER_BYTES, Handshake, NoProof
from base.strangers import REST_S, NoRoom, Refusals, Strangers, listen, newcomers
from workflow.run.link.event_loop import Loop
from workflow.run.link.limits import HANDSHAKE_S
from workflow.run.link.protocol import SUPERVISOR, USE, Link, LinkClosed, ProtocolError

logger = logging.getLogger(__name__)


class _Stranger:
    """A connection that has not proved anything yet."""

    def __init__(self, connection: socket.socket, token: bytes) -> None:
        self.connection = connection
        self.handshake = Handshake(token, USE, SUPERVISOR)
        self.answer = b""


class Listener:
    """Listens on `address` while anybody is expected. `expects(index)` says whether that node, below `most`, may come in now;
    `admit(index, link)` gets its link."""

    def __init__(  # noqa: PLR0913 - the last one is for tests
        self,
        loop: Loop,
        address: str,
        token: bytes,
        expects: Callable[[int], bool],
        admit: Callable[[int, Link], None],
        most: int,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._loop, self._token, self._expects, self._admit, self._most = loop, token, expects, admit, most
        self._handshake_s = handshake_s
        self._strangers: Strangers[_Stranger] = Strangers()
        self._refusals = Refusals(logger)
        self._open, self._looks = True, False
        self._listener = listen(address, most)
        host, port = self._listener.getsockname()[:2]
        self.address = (str(host), int(port))
        self._listen()

    def _listen(self) -> None:
        if self._open:
            self._loop.watch(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            found = newcomers(self._listener)
        except NoRoom as error:
            self._refusals.note(str(error))
            self._loop.unwatch(self._listener)
            self._loop.after(REST_S, self._listen)
            return
        for connection, host in found:
            self._greet(connection, host)

    def _greet(self, connection: socket.socket, host: str) -> None:
        if not self._open:  # one before this one was the last that was expected
            connection.close()
            return
        connection.setblocking(False)
        stranger = _Stranger(connection, self._token)
        self._strangers.add(stranger, host)
        self._look_later()
        self._loop.watch(connection, lambda: self._answered(stranger))
        try:
            connection.send(stranger.handshake.greeting())  # it fits into any socket's buffer
        except OSError as error:
            self._dismiss(stranger, error.strerror or "the connection broke")
        oldest = self._strangers.surplus()
        if oldest is not None:
            self._answered(oldest)  # his answer may be here, and not read yet
            self._dismiss(oldest, "too many wait, and it was the oldest")

    def _answered(self, stranger: _Stranger) -> None:
        """Whatever comes here is a stranger's, and so is every error of it."""
        try:
            found = stranger.connection.recv(ANSWER_BYTES - len(stranger.answer))
            if not found:
                raise LinkClosed("the connection was closed")
            stranger.answer += found
            if len(stranger.answer) < ANSWER_BYTES:
                return
            index, _, welcome = stranger.handshake.check_answer(stranger.answer)
            if not self._expects(index):
                raise ProtocolError(f"node {index} is not expected")
            stranger.connection.send(welcome)
            link = Link(stranger.connection)
        except BlockingIOError:
            return
        except (NoProof, ProtocolError, LinkClosed, OSError) as error:
            self._dismiss(stranger, str(error))
            return
        self._forget(stranger)
        self._admit(index, link)
        if not any(self._expects(index) for index in range(self._most)):
            self.close()

    def _look_later(self) -> None:
        """As long as there are strangers."""
        if self._strangers and not self._looks:
            self._looks = True
            self._loop.after(self._handshake_s / 4, self._look)

    def _look(self) -> None:
        """Dismiss who takes too long."""
        self._looks = False
        for stranger in self._strangers.overdue(self._handshake_s):
            self._dismiss(stranger, "it took too long")
        self._look_later()

    def _dismiss(self, stranger: _Stranger, why: str) -> None:
        if stranger in self._strangers:
            self._refusals.note(why)
            self._forget(stranger)
            stranger.connection.close()

    def _forget(self, stranger: _Stranger) -> None:
        self._strangers.remove(stranger)
        self._loop.unwatch(stranger.connection)

    def close(self) -> None:
        """Nobody comes in any more."""
        if not self._open:
            return
        self._open = False
        self._loop.unwatch(self._listener)
        self._listener.close()
        for stranger in self._strangers:
            self._forget(stranger)
            stranger.connection.close()
        self._refusals.tell()
