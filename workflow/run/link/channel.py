"""A link in an event loop: messages come as calls, what cannot be sent at once waits, the end is told once. Both sides use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workflow.run.link.event_loop import Loop
from workflow.run.link.protocol import Link, LinkClosed, ProtocolError


class Channel:
    """`on_messages(messages)` for what has come, in order; `on_closed(why)` when the other side is gone or talks nonsense."""

    def __init__(
        self, loop: Loop, link: Link, on_messages: Callable[[list[dict[str, Any]]], None], on_closed: Callable[[str], None]
    ) -> None:
        self._loop, self._link, self._on_messages, self._on_closed = loop, link, on_messages, on_closed
        self._open = True
        loop.watch(link, self._readable)

    def send(self, message: dict[str, Any]) -> None:
        """Send it, or as much as goes and the rest later; nothing once the channel is closed."""
        if not self._open:
            return
        try:
            self._link.send(message)
        except LinkClosed as error:
            self._end(str(error))
            return
        if self._link.unsent:
            self._loop.watch(self._link, self._readable, self._writable)

    def _writable(self) -> None:
        try:
            self._link.flush()
        except LinkClosed as error:
            self._end(str(error))
            return
        if not self._link.unsent:
            self._loop.watch(self._link, self._readable)

    def _readable(self) -> None:
        try:
            messages = self._link.receive()
        except (LinkClosed, ProtocolError) as error:
            self._end(str(error))
            return
        if messages:
            self._on_messages(messages)

    def _end(self, why: str) -> None:
        if self._open:
            self.close()
            self._on_closed(why)

    def close(self) -> None:
        """Hang up; `on_closed` is not called."""
        if self._open:
            self._open = False
            self._loop.unwatch(self._link)
            self._link.close()
