"""Where node programs come in: who connects has a few seconds to prove that he knows the run's token."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from workflow.run.loop import Loop, Timer
from workflow.run.protocol import HANDSHAKE_S, Link, LinkClosed, ProtocolError, check_answer, new_challenge, proof

logger = logging.getLogger(__name__)

SPARE_CONNECTIONS: Final = 4
HANDSHAKE_BYTES: Final = 65536


class _Stranger:
    """A connection that has not proved anything yet."""

    def __init__(self, link: Link, timer: Timer) -> None:
        self.link, self.timer = link, timer
        self.challenge = new_challenge()


class Door:
    """Listens on `address`. `expects(index)` says whether that node may come in now; `admit(index, link, messages)` gets its link and what
    it has said already. At most `most` connections, and a few more while they are strangers."""

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
        self._strangers: list[_Stranger] = []
        self._inside = 0
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=most + SPARE_CONNECTIONS)
        self._listener.setblocking(False)
        host, port = self._listener.getsockname()[:2]
        self.address = (str(host), int(port))
        loop.watch(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._strangers) + self._inside >= self._most + SPARE_CONNECTIONS:
            connection.close()
            return
        link = Link(connection, HANDSHAKE_BYTES)
        stranger = _Stranger(link, self._loop.after(HANDSHAKE_S, lambda: self._dismiss(stranger, "it took too long")))
        self._strangers.append(stranger)
        self._loop.watch(link, lambda: self._answered(stranger))
        try:
            link.send({"challenge": stranger.challenge})
        except LinkClosed as error:
            self._dismiss(stranger, str(error))

    def _answered(self, stranger: _Stranger) -> None:
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
        self._inside += 1
        stranger.link.trust()
        self._admit(index, stranger.link, messages[1:])

    def _dismiss(self, stranger: _Stranger, why: str) -> None:
        if stranger in self._strangers:
            logger.warning("a connection was refused: %s", why)
            self._forget(stranger)
            stranger.link.close()

    def _forget(self, stranger: _Stranger) -> None:
        stranger.timer.cancel()
        self._strangers.remove(stranger)
        self._loop.unwatch(stranger.link)

    def left(self) -> None:
        """One who was let in has gone."""
        self._inside -= 1

    def close(self) -> None:
        """Nobody comes in any more."""
        self._loop.unwatch(self._listener)
        self._listener.close()
        for stranger in list(self._strangers):
            self._forget(stranger)
            stranger.link.close()
