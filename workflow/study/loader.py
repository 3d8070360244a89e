"""Read a YAML file of ours: values with the line of each, and nothing that YAML can do to surprise a reader.

It is built on the events of libyaml's parser, not on its object tree, so that nesting is bounded before anything recurses, anchors and
aliases (306 bytes can mean 9^9 nodes) are refused where they stand, and a duplicate key is an error that names both lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from base.errors import ConfigError
from base.logs import printable
from base.units import meant_duration
from base.untrusted import read_fed

# Places and kinds of values, in the words of YAML's users.


Place = tuple[str | int, ...]  # keys and list positions from the top of the file: ("axes", "nodes", 0)


def dotted(place: Place) -> str:
    """Format a place for people: `axes.nodes[0]`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else printable(part)
    return text


def kind_of(value: object) -> str:
    """Name the kind of a value in the words of YAML's users."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, int):
        return f"the whole number {value}"
    if isinstance(value, float):
        return f"the number {value!r}"
    if isinstance(value, str):
        return f"the text {value[:77] + '...' if len(value) > 80 else value!r}"
    if isinstance(value, dict):
        return "a mapping (key: value)"
    return "a list"


# Plain (unquoted) scalars: YAML 1.2, with a refusal where 1.1 and 1.2 disagree.


Scalar = str | int | float | bool | None

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_OLD_TRUTH = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_CLOCK = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_ODD_INTEGER = re.compile(r"[-+]?0[0-9_]+|[-+]?0[xX][0-9a-fA-F_]+|[-+]?0[oO][0-7_]+|[-+]?0[bB][01_]+|[-+]?[0-9]+(?:_[0-9]+)+")
_MAX_DIGITS = 18


class AmbiguousScalar(ValueError):
    """A plain scalar that two YAML readers understand differently."""


def plain_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar. Raises AmbiguousScalar, whose message says what to write instead.

    PyYAML reads YAML 1.1, editors mostly 1.2: `12:30:00` is 45000 to one and text to the other, `no` is false or text, `1e3` text or
    1000, `010` eight or ten. A study must not mean two things, so these are errors, except `1e3`, which everybody means as a number.
    """
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text.lower() in _OLD_TRUTH:
        truth = _OLD_TRUTH[text.lower()]
        raise AmbiguousScalar(
            f"{text} is the truth value {truth} to some YAML readers and a word to others; write {truth}, or '{text}' for the word"
        )
    return _number(text) if text[0] in "+-.0123456789" else text


def _number(text: str) -> Scalar:
    if _INTEGER.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise AmbiguousScalar(f"{text[:24]}... has more than {_MAX_DIGITS} digits; quote it if it is a word")
        return int(text)
    if _CLOCK.fullmatch(text):
        raise AmbiguousScalar(
            f"{text} is the number {_sexagesimal(text)} to some YAML readers; write a duration with units, such as "
            f"{meant_duration(text) or '1h30m'}, or '{text}' for the word"
        )
    if _ODD_INTEGER.fullmatch(text):
        raise AmbiguousScalar(
            f"{text} is read as different numbers by different YAML readers; write it in plain decimal, or quote the word"
        )
    if _SPECIAL.fullmatch(text):
        raise AmbiguousScalar(f"{text} is not a number that can be used here; write a finite number, or quote the word")
    if _FLOAT.fullmatch(text):
        return _finite(text)
    return text


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise AmbiguousScalar(f"{text[:24]} is too large for a number")
    return value


def _sexagesimal(text: str) -> str:
    total = 0.0
    for part in text.lstrip("+-").replace("_", "").split(":"):
        total = total * 60 + float(part)
    return f"{total:.15g}"


# The builder of plain values from libyaml's parser events.


MAX_DEPTH: Final = 32


@dataclass
class _Open:
    """A mapping or list whose end has not been seen."""

    value: dict[str, Any] | list[Any]
    place: Place
    key: str | None = None


class Builder:
    """The builder that takes parser events one by one; its stack of open containers is a list, so depth is a comparison and no
    recursion."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root: Any = None
        self.lines: dict[Place, int] = {}
        self.documents = 0
        self.stack: list[_Open] = []

    def take(self, event: Any) -> None:
        """Take one event of the parser. Raises ConfigError for what is not allowed here."""
        action = _ACTIONS.get(type(event))
        if action is not None:
            action(self, event)

    def document(self, event: Any) -> None:
        self.documents += 1
        if self.documents > 1:
            raise self.error(event, "a second YAML document starts here; one file holds one")

    def alias(self, event: Any) -> None:
        raise self.error(event, f"the alias *{event.anchor} is not allowed: write the value out, so that a reader sees it where it counts")

    def open(self, event: Any) -> None:
        self.refuse_marks(event)
        if len(self.stack) >= MAX_DEPTH:
            raise self.error(event, f"more than {MAX_DEPTH} levels of nesting")
        if self.wants_key():
            raise self.error(event, "a key must be a word, not a list or a mapping")
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.stack.append(_Open(value, self.add(value, event)))

    def close(self, _event: Any) -> None:
        self.stack.pop()

    def scalar(self, event: Any) -> None:
        self.refuse_marks(event)
        if self.wants_key():
            self.take_key(event)
        else:
            self.add(self.resolve(event), event)

    def take_key(self, event: Any) -> None:
        top = self.stack[-1]
        key = event.value
        if event.implicit[0] and not isinstance(self.resolve(event), str):
            raise self.error(event, f"the key {key or '(empty)'} is not a word; keys are words, quoted if they look like numbers")
        assert isinstance(top.value, dict)
        place = (*top.place, key)
        if key in top.value:
            raise self.error(event, f"the key {key!r} stands here a second time; the first is on line {self.lines[place]}. Keep one")
        self.lines[place] = event.start_mark.line + 1
        top.key = key

    def resolve(self, event: Any) -> Any:
        if not event.implicit[0]:
            return event.value
        try:
            return plain_scalar(event.value)
        except AmbiguousScalar as error:
            raise self.error(event, str(error)) from error

    def wants_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None

    def add(self, value: Any, event: Any) -> Place:
        """Put `value` where it belongs; its place."""
        if not self.stack:
            self.root = value
            return ()
        top = self.stack[-1]
        if isinstance(top.value, list):
            place: Place = (*top.place, len(top.value))
            top.value.append(value)
            self.lines[place] = event.start_mark.line + 1
            return place
        assert top.key is not None
        place = (*top.place, top.key)
        top.value[top.key] = value
        top.key = None
        return place

    def refuse_marks(self, event: Any) -> None:
        if event.anchor is not None:
            raise self.error(event, f"the anchor &{event.anchor} is not allowed: write the value out where it is used")
        if event.tag is not None:
            raise self.error(event, f"the tag {event.tag} is not allowed: values are plain text, numbers, lists and mappings")

    def error(self, event: Any, message: str) -> ConfigError:
        top = self.stack[-1] if self.stack else _Open([], ())
        place = top.place if top.key is None else (*top.place, top.key)
        inside = f"{dotted(place)}: " if place else ""
        return ConfigError(f"{self.path}:{event.start_mark.line + 1}: {inside}{printable(message)}")


_ACTIONS: Final[dict[type, Callable[[Builder, Any], None]]] = {
    yaml.DocumentStartEvent: Builder.document,
    yaml.AliasEvent: Builder.alias,
    yaml.MappingStartEvent: Builder.open,
    yaml.SequenceStartEvent: Builder.open,
    yaml.MappingEndEvent: Builder.close,
    yaml.SequenceEndEvent: Builder.close,
    yaml.ScalarEvent: Builder.scalar,
}


MAX_BYTES: Final = 1 << 20

_NAME_IT: Final = {
    "study": "name a study: `slipway run STUDY`, or `--study STUDY` where a command takes other words; `slipway init DIR` writes one",
    "site": "name a site: `--site NAME_OR_PATH`",
}
_WRITE_IT: Final = "; `slipway init DIR` writes one with comments"
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, kw_only=True)
class Document:
    """The content of a file as plain dict, list and scalars.

    `lines` has the 1-based line of every key and value by its place; `text` is the file as it was typed.
    """

    path: Path
    value: dict[str, Any]
    lines: dict[Place, int] = field(repr=False)
    text: str = field(repr=False)
    files: dict[Place, Path] = field(default_factory=dict, repr=False)
    """Places whose keys, and all below, stand in another file: their lines are those of that file."""

    def where(self, place: Place) -> str:
        """Return `file:line` of the innermost part of `place` that is in the file."""
        for end in range(len(place), 0, -1):
            if place[:end] in self.lines:
                file = next((self.files[place[:length]] for length in range(end, 0, -1) if place[:length] in self.files), self.path)
                return f"{file}:{self.lines[place[:end]]}"
        return f"{self.path}:1"


def read_document(path: Path, kind: str) -> Document:
    """Read the document in `path`; `kind` ("study", "site") is for messages. Raises ConfigError only."""
    return parse_document(_read_text(path, kind), path, kind)


def parse_document(text: str, path: Path, kind: str) -> Document:
    """Parse the document in `text`; `path` is for messages. Raises ConfigError only."""
    builder = Builder(path)
    try:
        reader = _Loader(text)
        try:
            while reader.check_event():
                builder.take(reader.get_event())
        finally:
            reader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        words = ", ".join(word for word in (error.context, error.problem) if word)
        raise ConfigError(f"{path}:{line}: this is not YAML: {printable(words)}{_tab_hint(text, line)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: this is not YAML: {printable(str(error))}") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: this cannot be read as YAML: {printable(str(error))}") from error
    if builder.root is None:
        raise ConfigError(f"{path}: the {kind} file is empty{_WRITE_IT if kind in _NAME_IT else ''}")
    if not isinstance(builder.root, dict):
        raise ConfigError(f"{path}:1: a {kind} file is a mapping of keys to values; found {kind_of(builder.root)}")
    return Document(path=path, value=builder.root, lines=builder.lines, text=text)


def _read_text(path: Path, kind: str) -> str:
    try:
        if path.is_dir():
            raise ConfigError(f"{path} is a directory; name the {kind} file in it")
        content = read_fed(path, MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"the {kind} file {path} cannot be read: {error.strerror}{_elsewhere(path, kind)}") from error
    except OSError as error:
        raise ConfigError(f"the {kind} file {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not a path of a {kind} file: {error}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path} holds more than {MAX_BYTES} bytes; a {kind} file has at most 1 MiB: use axes instead of long lists")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: byte {content[error.start]:#04x} is not UTF-8; save the {kind} file as UTF-8") from error


def _elsewhere(path: Path, kind: str) -> str:
    """Advise what to do about a relative path that leads nowhere: mostly the command was started outside of the checkout."""
    if path.is_absolute():
        return f"; {_NAME_IT[kind]}" if kind == "site" else ""
    return f" in {Path.cwd()}; {_NAME_IT[kind]}"


def _tab_hint(text: str, line: int) -> str:
    lines = text.split("\n")
    here = lines[line - 1] if line <= len(lines) else ""
    return "; YAML indents with spaces, and this line has a tab" if "\t" in here[: len(here) - len(here.lstrip())] else ""
