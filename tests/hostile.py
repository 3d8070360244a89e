"""What a hostile hand sends: the words of ours, changed, and others. The same for the same seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any, Final

ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 1.5, -0.0, 2**31, 2**53, 2**63, 10**19, 10**25, 1e308, float("inf"), float("nan")),
    *("", "x", "0", "\ud800", "a\udcffb", "\0", "\x1b[31m", "../../x", "é" * 50, "x" * 300, "NodeLost", "annotations"),
    *([], {}, [None], [[]], {"": None}, [1] * 50, {"a": {"b": []}}, ["x", 1], [["x", 1], None]),
)
WORDS: Final = (
    b"",
    b"\n",
    b"\0",
    b"\xff",
    b"\r\n\r\n",
    b'"',
    b"{",
    b"}",
    b"[" * 300,
    b"9" * 400,
    b"1e999",
    b"\\ud800",
    b"null",
)


def changed(value: Any, chance: random.Random) -> Any:
    """`value` with one to three of its nodes changed, missing, or doubled."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        paths = _paths(value)
        path = chance.choice(paths)
        odd = copy.deepcopy(chance.choice(ODD))
        if not path:
            value = odd if chance.random() < 0.3 else value
            continue
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        way = chance.randrange(5)
        if way <= 2:
            parent[path[-1]] = odd
        elif way == 3:
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[chance.choice(("more", "say", "", "another"))] = odd
        else:
            parent.insert(path[-1], odd)
    return value


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in entries for inner in _paths(item, (*path, key)))]


def changed_bytes(content: bytes, chance: random.Random) -> bytes:
    """`content` cut, with other bytes in it, or followed by others."""
    place, end = sorted((chance.randint(0, len(content)), chance.randint(0, len(content))))
    some = chance.choice((chance.randbytes(chance.randint(1, 40)), chance.choice(WORDS)))
    return chance.choice(
        (
            content[:place],
            content[place:],
            content[:place] + some + content[place + len(some) :],
            content[:place] + some + content[place:],
            content[:place] + content[end:],
            content + some,
            content * 2,
            chance.randbytes(chance.randint(1, 400)),
            some,
        )
    )


def lines(messages: Sequence[dict[str, Any]], chance: random.Random) -> bytes:
    """A line, mostly a message of ours with other values in it."""
    line = json.dumps(changed(chance.choice(messages), chance)).encode() + b"\n"
    return changed_bytes(line, chance) if chance.random() < 0.3 else line
