"""The supervisor's listener for node programs: who connects has a few seconds to prove that it knows the run's token."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from base.strangers import REST_S, NoRoom, Refusals, Strangers, listen, newcomers
from workflow.run.link.event_loop import Loop
from workflow.run.link.protocol import HANDSHAKE_BYTES, Link, LinkClosed, ProtocolError, check_answer, new_challenge, proof

logger = logging.getLogger(__name__)

HANDSHAKE_S: Final = 3.0


class _Stranger:
    """A connection that has not proved anything yet."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.challenge = new_challenge()


class Listener:
    """Listens on `address` while anybody is expected. `expects(index)` says whether that node, below `most`, may come in now;
    `admit(index, link, messages)` gets its link and what it has said already."""

    def __init__(
        self,
        loop: Loop,
        address: str,
        token: bytes,
        expects: Callable[[int], bool],
        admit: Callable[[int, Link, list[dict[str, Any]]], None],
        most: int,
    ) -> None:
        self._loop, self._token, self._expects, self._admit, self._most = loop, token, expects, admit, most
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
        try:
            stranger = _Stranger(Link(connection, HANDSHAKE_BYTES))
        except LinkClosed:
            return
        self._strangers.add(stranger, host)
        self._look_later()
        self._loop.watch(stranger.link, lambda: self._answered(stranger))
        try:
            stranger.link.send({"challenge": stranger.challenge})
        except LinkClosed as error:
            self._dismiss(stranger, str(error))
        oldest = self._strangers.surplus()
        if oldest is not None:
            self._answered(oldest)  # his answer may be here, and not read yet
            self._dismiss(oldest, "too many wait, and it was the oldest")

    def _answered(self, stranger: _Stranger) -> None:
        """Whatever comes here is a stranger's, and so is every error of it."""
        try:
            messages = stranger.link.receive()
            if not messages:
                return
            index, challenge = check_answer(self._token, stranger.challenge, messages[0])
            if not self._expects(index):
                raise ProtocolError(f"node {index} is not expected")
            stranger.link.send({"proof": proof(self._token, "supervisor", challenge)})
        except (ProtocolError, LinkClosed) as error:
            self._dismiss(stranger, str(error))
            return
        self._forget(stranger)
        stranger.link.trust()
        self._admit(index, stranger.link, messages[1:])
        if not any(self._expects(index) for index in range(self._most)):
            self.close()

    def _look_later(self) -> None:
        """As long as there are strangers."""
        if self._strangers and not self._looks:
            self._looks = True
            self._loop.after(HANDSHAKE_S / 4, self._look)

    def _look(self) -> None:
        """Dismiss who takes too long."""
        self._looks = False
        for stranger in self._strangers.overdue(HANDSHAKE_S):
            self._dismiss(stranger, "it took too long")
        self._look_later()

    def _dismiss(self, stranger: _Stranger, why: str) -> None:
        if stranger in self._strangers:
            self._refusals.note(why)
            self._forget(stranger)
            stranger.link.close()

    def _forget(self, stranger: _Stranger) -> None:
        self._strangers.remove(stranger)
        self._loop.unwatch(stranger.link)

    def close(self) -> None:
        """Nobody comes in any more."""
        if not self._open:
            return
        self._open = False
        self._loop.unwatch(self._listener)
        self._listener.close()
        for stranger in self._strangers:
            self._forget(stranger)
            stranger.link.close()
        self._refusals.tell()
