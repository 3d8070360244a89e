"""Records that nobody should believe: deterministic mutations of a real one, for the tests of whoever reads records."""

import copy
import random
from collections.abc import Iterator
from typing import Any, Final

from tests.workflow.report.builder import sealed_bytes, unsealed_bytes

MARKUP: Final = "</script></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{7*7}}"
FORMULAS: Final = ('=HYPERLINK("http://x")', "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\N{FULLWIDTH EQUALS SIGN}1")
LONG: Final = "y" * 10_000_000
NUMBERS: Final = (-1, -0.5, 0, 0.0, 1, 1.5, 1e308, -1e308, 5e-324, 2**63, 10**30, 10**400, float("nan"), float("inf"), float("-inf"))
TEXTS: Final = ("", "x", "1", MARKUP, *FORMULAS, "\ud800", "\udfff\ud800", "\0\x1b[31m\u202e", 'a,b\n"c"', "z" * 70_000, "../../etc/passwd")
OTHERS: Final = (None, True, False, [], {}, [None], [[]], [1, "x", {}], {"a": 1}, {"": None}, [[0, "x"]], [[1, 2, 3]])


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where anything lies in a JSON value, the value itself left out; of long lists the first entries."""
    entries = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*prefix, key)
        yield from paths(inner, (*prefix, key))


def with_value(record: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy of the record with something else at `path`; what does not lie on the way there is shared."""
    changed = copy.copy(record)
    node: Any = changed
    for key in path[:-1]:
        node[key] = copy.copy(node[key])
        node = node[key]
    node[path[-1]] = value
    return changed


def poisoned(record: dict[str, Any], seed: int) -> bytes:
    """One hostile record: its values, its parts or its bytes changed. Every third one is sealed anew, as by somebody who knows how; the
    others are of a version without seals."""
    chance = random.Random(seed)
    changed = record
    for _ in range(chance.choice((1, 1, 2, 4))):
        changed = _changed(changed, chance)
    text = sealed_bytes(changed) if seed % 3 == 0 else unsealed_bytes(changed)
    return _bytes_changed(text, chance) if chance.random() < 0.25 else text


def _changed(record: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    places = list(paths(record))
    path = chance.choice(places)
    how = chance.random()
    if how < 0.15:
        changed = with_value(record, path, None)
        node: Any = changed
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]
        return changed
    if how < 0.2:
        other = chance.choice(places)
        node = record
        for key in other:
            node = node[key]
        return with_value(record, path, copy.deepcopy(node))
    if how < 0.205:
        return with_value(record, path, LONG)
    return with_value(record, path, chance.choice(chance.choice((NUMBERS, TEXTS, OTHERS))))


def _bytes_changed(text: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(text))
    return chance.choice(
        (
            text[:place],
            text[:place] + bytes([text[place] ^ (1 << chance.randrange(8))]) + text[place + 1 :],
            text[:place] + chance.randbytes(4) + text[place:],
            text[:place] + b"[" * 100_000 + text[place:],
            text + b" null",
            text + text,
            b"\xef\xbb\xbf" + text,
            text.decode(errors="replace").encode("utf-16"),
            b"null",
            b"\0" * 100,
        )
    )
