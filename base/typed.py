"""Convert plain values of JSON or YAML to a type: the one reader of all files that others may have written or changed.

A type is a dataclass (its fields are the keys; `__post_init__` may refuse by ValueError), a NamedTuple (a list), a TypedDict (it stays a
dict), or made of text, numbers, flags, `Literal`, unions, tuples, lists, mappings by text, `Path`, and `Annotated[..., Check]`. Keys that
the type does not know are left alone: another version may have written them; but for a `Closed` one, which people write.
"""

import collections.abc
import dataclasses
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from base import errors, humanize, jsonfile
from base.sanitize import quoted, text

T = TypeVar("T")
Reader = Callable[[Any], Any]
MAX_FOUND: Final = 100


@dataclass(frozen=True)
class Check:
    """The words that follow `expected` in an error, and the test that a value must pass besides its type."""

    words: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class ReadableAs:
    """A mark for `Annotated[Mapping[str, Any], ...]`: the value stays a mapping, and can be read as a `kind`, mostly a TypedDict."""

    kind: Any


class Closed:
    """The base of dataclasses whose files people write: an unknown key is an error, since people mistype."""


def between(least: int, most: int) -> Check:
    """Return a check for numbers from `least` to `most`."""
    return Check(f"a number from {least} to {most}", lambda value: bool(least <= value <= most))


def at_least(least: int) -> Check:
    """Return a check for numbers of `least` and more."""
    return Check(f"a number from {least} on", lambda value: bool(value >= least))


def above(least: int) -> Check:
    """Return a check for numbers greater than `least`."""
    return Check(f"a number above {least}", lambda value: bool(value > least))


Count = Annotated[int, at_least(0), Meta(ge=0, le=jsonfile.MAX_INTEGER)]
FromOne = Annotated[int, at_least(1), Meta(ge=1, le=jsonfile.MAX_INTEGER)]
Pid = Annotated[int, between(0, 2**31 - 1)]
Moment = Annotated[float, between(0, 10**11)]
"""Unix time."""
Seconds = Annotated[float, at_least(0)]
SomeSeconds = Annotated[float, above(0)]
Name = Annotated[str, Check("a name of small letters, digits, dot, dash and underscore", humanize.is_name), Meta(max_length=4096)]
Digest = Annotated[str, Check("64 hex digits", lambda value: re.fullmatch(r"[0-9a-f]{64}", value) is not None)]
FileName = Annotated[str, Check("the name of a file", lambda value: 0 < len(value.encode()) < 256 and not {"/", "\0"} & set(value))]
PathText = Annotated[str, Check("a path", lambda value: bool(value) and "\0" not in value), Meta(max_length=4096)]


class Mismatch(Exception):
    """What was found is not what the type says; `keys` lead to it, the last one first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.keys: list[str] = []

    def at(self, key: str) -> "Mismatch":
        """Return the same mismatch under a key of the surrounding object."""
        self.keys.append(key)
        return self

    @property
    def path(self) -> str:
        """Return the path of the value, such as `cells[3].nodes`."""
        return "".join(reversed(self.keys)).lstrip(".")


def read_as(kind: type[T], value: Any, where: Path | str, error: type[errors.SlipwayError] = errors.RecordError, advice: str = "") -> T:
    """Return `value`, which came from `where`, as a `kind`. Raises `error`, which names `where` and the key; `advice` ends it."""
    try:
        return typing.cast("T", reader_of(typing.cast("Any", kind))(value))
    except Mismatch as mismatch:
        place = f"{mismatch.path}: " if mismatch.keys else ""
        raise error(f"{where}: {place}{mismatch}{f'; {advice}' if advice else ''}") from mismatch


def json_as(kind: type[T], said: str, where: Path | str, error: type[errors.SlipwayError] = errors.RecordError) -> T:
    """Parse the JSON text of a program as a `kind`. Raises `error`, which names `where` and the key."""
    return read_as(kind, jsonfile.parse_json(said.encode(errors="replace"), where, error), where, error)


def _wrong(expected: str, found: Any) -> Mismatch:
    return Mismatch(f"expected {expected}, found {quoted(found)}")


@cache
def reader_of(kind: Any) -> Reader:
    """Return the function that reads a `kind` and raises Mismatch; it is made once."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _checked(reader_of(arguments[0]), arguments[1:])
    if origin is Literal:
        return _one_of(arguments)
    if origin in (Union, types.UnionType):
        return _any_of(arguments)
    if origin is tuple and arguments[1:] != (...,):
        return _fixed([reader_of(argument) for argument in arguments], tuple)
    if origin in (tuple, list, collections.abc.Sequence):
        return _many(arguments[0], list if origin is list else tuple)
    if origin in (dict, collections.abc.Mapping):
        return _by_text(reader_of(arguments[1]))
    return _SIMPLE[kind] if kind in _SIMPLE else _of_class(kind)


def _of_class(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    if dataclasses.is_dataclass(kind):
        required = {
            field.name: field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            for field in dataclasses.fields(kind)
            if field.init
        }
        closed = issubclass(typing.cast("type", kind), Closed)
        return _object({name: reader_of(hints[name]) for name in required}, required, typing.cast("type", kind), closed=closed)
    if typing.is_typeddict(kind):
        required = {name: get_origin(hint) is not NotRequired for name, hint in hints.items()}
        kinds = {name: hint if required[name] else get_args(hint)[0] for name, hint in hints.items()}
        return _object({name: reader_of(hint) for name, hint in kinds.items()}, required, None)
    if issubclass(kind, tuple):
        return _fixed([reader_of(hint) for hint in hints.values()], lambda values: kind(*values))
    raise TypeError(f"{kind!r} is not a type that can be read")


def _exactly(kind: type, words: str) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(words, value)
        return value

    return read


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise _wrong("a number", value)
    return float(value)


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _wrong("a path", value)
    return Path(value)


_SIMPLE: Final[Mapping[Any, Reader]] = {
    Any: lambda value: value,
    str: _exactly(str, "text"),
    int: _exactly(int, "a whole number"),
    float: _float,
    bool: _exactly(bool, "true or false"),
    type(None): _exactly(type(None), "null"),
    dict: _exactly(dict, "an object"),
    list: _exactly(list, "a list"),
    Path: _path,
}


def _checked(read: Reader, checks: tuple[Any, ...]) -> Reader:
    def check(value: Any) -> Any:
        found = read(value)
        for one in checks:
            if isinstance(one, ReadableAs):
                reader_of(one.kind)(value)
            elif isinstance(one, Check) and not one.holds(found):
                raise _wrong(one.words, value)
        return found

    return check


def _one_of(words: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if not any(type(value) is type(word) and value == word for word in words):
            near = humanize.closest(text(value, MAX_FOUND), map(str, words)) if isinstance(value, str) else None
            meant = f" (did you mean {near!r}?)" if near else ""
            raise _wrong(f"{'one of ' if len(words) > 1 else ''}{', '.join(map(str, words))}{meant}", value)
        return value

    return read


def _any_of(arguments: tuple[Any, ...]) -> Reader:
    others = [reader_of(argument) for argument in arguments if argument is not type(None)]
    nullable = len(others) < len(arguments)

    def read(value: Any) -> Any:
        if value is None and nullable:
            return None
        if len(others) == 1:
            return others[0](value)
        expected = []
        for other in others:
            try:
                return other(value)
            except Mismatch as mismatch:
                expected.append(str(mismatch).removeprefix("expected ").partition(", found")[0])
        raise _wrong(" or ".join(dict.fromkeys(expected)), value)

    return read


def _many(kind: Any, make: type) -> Reader:
    read_one = reader_of(kind)

    def read(value: Any) -> Any:
        if type(value) not in (list, tuple):
            raise _wrong("a list", value)
        if kind in (str, int) and all(type(item) is kind for item in value):
            return make(value)
        return make([_under(number, read_one, item) for number, item in enumerate(value)])

    return read


def _fixed(readers: list[Reader], make: Callable[[list[Any]], Any]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) not in (list, tuple) or len(value) != len(readers):
            raise _wrong(f"a list of {len(readers)}", value)
        return make([_under(number, read_one, item) for number, (read_one, item) in enumerate(zip(readers, value, strict=True))])

    return read


def _by_text(read_one: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong("an object", value)
        return {key: _under(str(key), read_one, item) for key, item in value.items()}

    return read


def _object(
    readers: Mapping[str, Reader], required: Mapping[str, bool], make: Callable[..., Any] | None, *, closed: bool = False
) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong("an object", value)
        unknown = [text(key, MAX_FOUND) for key in value if closed and key not in readers]
        if unknown:
            raise Mismatch(f"unknown key {unknown[0]!r}; {humanize.choices(unknown[0], readers)}")
        missing = [name for name, needed in required.items() if needed and name not in value]
        if missing:
            raise Mismatch(f"the key {missing[0]!r} is missing")
        found = {name: _under(name, read_one, value[name]) for name, read_one in readers.items() if name in value}
        if make is None:
            return {**value, **found}
        try:
            return make(**found)
        except ValueError as error:
            raise Mismatch(text(str(error))) from error

    return read


def _under(place: str | int, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except Mismatch as mismatch:
        raise mismatch.at(f"[{place}]" if isinstance(place, int) else f".{text(place, MAX_FOUND)}") from None
