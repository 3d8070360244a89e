"""Encode and decode the messages between supervisor and node programs: a line of JSON for each, from and to the types of `reports` and
`commands`.

Who has proved the token is a program of ours, of the same installation. A message that does not fit its type, as of other code on a node,
ends the connection with a sentence.

A message is a JSON object with its name under `say` or `do`. That format is no promise to anybody: the supervisor starts node programs from
its own installation, so that both sides are of one version, and it may change with it.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from base.jsonfile import json_line
from base.sanitize import text
from workflow.run.link import commands, reports

MOST_SHOWN: Final = 80
MOST_WORDS: Final = 400
T = TypeVar("T")


class ProtocolError(Exception):
    """The other side says what no program of ours would say, or does not know the token."""


def name_of(message: reports.Message | commands.Message) -> str:
    """Return the name of a message, as it is on the wire and in sentences."""
    return str(message.__struct_config__.tag)


def encode(message: reports.Message | commands.Message) -> bytes:
    """Return the line of a message."""
    return json_line(msgspec.to_builtins(message))


class Decoder(Generic[T]):
    """A decoder of messages. `kinds` is the union of their types."""

    def __init__(self, kinds: Any) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kinds)
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """Return the messages that `data` completes. Raises ProtocolError for what is no message."""
        self._rest += data
        if b"\n" not in data:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        return [self._decode(line) for line in lines]

    def _decode(self, line: bytearray) -> T:
        try:
            return self._decoder.decode(line)
        except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors
            shown, why = text(line[:MOST_SHOWN].decode(errors="replace"), MOST_SHOWN), text(str(error), MOST_WORDS)
            raise ProtocolError(f"a message that is none of ours ({shown}): {why}") from error
