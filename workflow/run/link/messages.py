"""Messages between supervisor and node programs: encoded and decoded here alone, from and to the types of `said` and `orders`.

The proof at the start of a connection says that the other side knows the token, not that it is sane: it may have other code or bad
memory. So a message is checked when it comes, and one that is none of ours ends the connection with a sentence.

On the wire a message is a JSON object with its name under `say` or `do` (see protocol.py for lines and sizes). That format is no promise to
anybody: the supervisor starts node programs from its own installation, so that both sides are of one version, and it may change with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from base.sanitize import text
from workflow.run.link import commands, reports
from workflow.run.link.protocol import ProtocolError

MOST_WORDS: Final = 400
SAID: Final = {str(kind.__struct_config__.tag): kind for kind in get_args(reports.Said)}
ORDERS: Final = {str(kind.__struct_config__.tag): kind for kind in get_args(commands.Order)}
"""Name -> type."""


def name_of(message: reports.Message | commands.Message) -> str:
    """As it is called on the wire and in sentences."""
    return str(message.__struct_config__.tag)


def encode(message: reports.Message | commands.Message) -> dict[str, Any]:
    """As JSON can carry it."""
    plain: dict[str, Any] = msgspec.to_builtins(message)
    return plain


def decode_said(message: Mapping[str, Any]) -> reports.Said:
    """What a node program has said. Raises ProtocolError, which names message and field."""
    found: reports.Said = _decode(SAID, "say", message)
    return found


def decode_order(message: Mapping[str, Any]) -> commands.Order:
    """What a supervisor has ordered. Raises ProtocolError, which names message and field."""
    found: commands.Order = _decode(ORDERS, "do", message)
    return found


def _decode(kinds: Mapping[str, Any], key: str, message: Mapping[str, Any]) -> Any:
    name = message.get(key)
    if not isinstance(name, str) or name not in kinds:
        raise ProtocolError(f"it says {key}: {text(name, 40)}, which is no message of ours")
    try:
        return msgspec.convert(message, kinds[name])
    except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors; UnicodeError where a key is no text
        what, _, place = str(error).partition(" - at `$")
        place = place.rstrip("`").lstrip(".")
        raise ProtocolError(f"its message {name!r} is none of ours: {text(f'{place}: {what}' if place else what, MOST_WORDS)}") from error
