"""What a value in a record must be: the kinds of values, and a function of each that takes a value or refuses it in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple


class Kind(NamedTuple):
    """In words, as a type of parquet, the numbers that it lies between (of text: its bytes), or the words that it is one of."""

    word: str
    stored: str
    low: float = 0
    high: float = 0
    words: tuple[str, ...] = ()


def one_of(*words: str) -> Kind:
    """One of some words."""
    return Kind(f"one of {', '.join(words)}", "String", words=words)


REAL: Final = Kind("a number from 0 to 1e15", "Float64", 0, 1e15)
FLOP: Final = Kind("a number from 0 to 1e30", "Float64", 0, 1e30)
SIGNED: Final = Kind("a number below 1e100", "Float64", -1e100, 1e100)
SHARE: Final = Kind("a number from 0 to 1", "Float64", 0, 1)
WHOLE: Final = Kind("a whole number from 0", "Int64", 0, 2**63 - 1)
FROM_ONE: Final = Kind("a whole number from 1", "Int64", 1, 2**63 - 1)
FLAG: Final = Kind("true or false", "Boolean")
NAME: Final = Kind("text of at most 255 bytes", "String", 0, 255)
TEXT: Final = Kind("text of at most 4096 bytes", "String", 0, 4096)
LONG: Final = Kind("text of at most 65536 bytes", "String", 0, 65536)
TOLD: Final = Kind("text, a number or a flag", "String", 0, 4096)
TEXTS: Final = Kind("a list of texts", "List", 0, 65536)
EIGHT: Final = Kind("a list of 8 numbers", "Numbers", -1e100, 1e100)
RANKS: Final = Kind("a list of ranks", "Ranks", 0, 2**31)
PAIRS: Final = Kind("a list of [step, loss]", "Pairs", -1e100, 1e100)


class NotBelieved(ValueError):
    """What keeps a record from being believed, in words."""


Take = Callable[[Any], Any]


def taker(path: str, kind: Kind, *, required: bool) -> Take:
    """A function: a value of JSON -> the value of the column, None for null. It raises NotBelieved, naming `path`."""
    take = _TAKERS[kind.stored] if kind is not TOLD else _told

    def taken(value: Any) -> Any:
        if value is None:
            if required:
                raise NotBelieved(f"{path} is missing")
            return None
        found = take(value, kind)
        if found is None:
            raise NotBelieved(f"{path}: found {shown(value)}, expected {kind.word}")
        return found

    return taken


def taken_together(values: Sequence[Any], kind: Kind, *, required: bool) -> Sequence[Any]:
    """What `taker` makes of each, in a tenth of the time. Raises NotBelieved where it would refuse one, not saying which."""
    types = set(map(type, values))
    if required and type(None) in types:
        raise NotBelieved("a value is missing")
    types.discard(type(None))
    if types == {str} and kind.stored == "String" and not kind.words:
        quick = max(map(len, filter(None, values)), default=0) < kind.high // 4
    elif types <= {float} and kind.stored == "Float64" or types <= {int} and kind.stored == "Int64":
        numbers = [value for value in values if value is not None]
        quick = not numbers or kind.low <= min(numbers) <= max(numbers) <= kind.high
    else:
        quick = not types
    if quick:
        return values
    take = taker("a value", kind, required=required)
    return [take(value) for value in values]


def shown(value: Any) -> str:
    """A value for a message: short, and its type where it is no scalar."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _real(value: Any, kind: Kind) -> float | None:
    return float(value) if type(value) in (float, int) and kind.low <= value <= kind.high else None


def _whole(value: Any, kind: Kind) -> int | None:
    return value if type(value) is int and kind.low <= value <= kind.high else None


def _flag(value: Any, kind: Kind) -> bool | None:  # noqa: ARG001 - as the others
    return value if type(value) is bool else None


def _text(value: Any, kind: Kind) -> str | None:
    if kind.words:
        return value if type(value) is str and value in kind.words else None
    return value if type(value) is str and (len(value) < kind.high // 4 or len(value.encode()) <= kind.high) else None


def _told(value: Any, kind: Kind) -> str | None:
    if type(value) in (int, float, bool):
        return str(value).lower()
    return _text(value, kind)


def _texts(value: Any, kind: Kind) -> list[str] | None:
    return value if type(value) is list and all(type(text) is str and len(text) <= kind.high for text in value) else None


def _eight(value: Any, kind: Kind) -> list[float] | None:
    if type(value) is not list or len(value) != 8:
        return None
    found = [number for entry in value if (number := _real(entry, kind)) is not None]
    return found if len(found) == 8 else None


def _pairs(value: Any, kind: Kind) -> list[float] | None:
    """One after the other, flat, since a column of parquet is one list."""
    if type(value) is not list:
        return None
    found: list[float] = []
    for entry in value:
        if type(entry) is not list or len(entry) != 2 or _whole(entry[0], WHOLE) is None or (number := _real(entry[1], kind)) is None:
            return None
        found += entry[0], number
    return found


def _ranks(value: Any, kind: Kind) -> list[int] | None:
    return value if type(value) is list and all(_whole(rank, kind) is not None for rank in value) else None


_TAKERS: Final[dict[str, Callable[[Any, Kind], Any]]] = {
    "Float64": _real,
    "Int64": _whole,
    "Boolean": _flag,
    "String": _text,
    "List": _texts,
    "Numbers": _eight,
    "Pairs": _pairs,
    "Ranks": _ranks,
}
