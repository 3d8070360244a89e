"""Read a YAML file of ours: values with the line of each, and nothing that YAML can do to surprise a reader.

It reads the events of libyaml's parser, not its object tree, so that nesting is bounded, anchors and aliases (306 bytes can mean 9^9
nodes) are refused where they stand, and a duplicate key is an error that names both lines.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from base.errors import ConfigError
from base.logs import printable
from base.untrusted import read_fed

# Places and kinds of values, in the words of YAML's users.


KeyPath = tuple[str | int, ...]  # keys and list positions from the top of the file: ("axes", "nodes", 0)


def dotted(place: KeyPath) -> str:
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

_WORDS: Final[Mapping[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_ODD = re.compile(
    r"(?i)yes|on|no|off|[-+]?\.(?:inf|nan)|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
    r"|[-+]?0[0-9_]+|[-+]?0x[0-9a-f_]+|[-+]?0o[0-7_]+|[-+]?0b[01_]+|[-+]?[0-9]+(?:_[0-9]+)+|[-+]?[0-9]{19,}"
)
"""Words that YAML 1.1 and 1.2 read differently, and numbers that no value here can be."""


class AmbiguousScalar(ValueError):
    """A plain scalar that two YAML readers understand differently."""


def plain_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar. Raises AmbiguousScalar, whose message says what to write instead.

    PyYAML reads YAML 1.1, editors mostly 1.2: `12:30:00` is 45000 to one and text to the other, `no` is false or text, `1e3` text or
    1000, `010` eight or ten. A study must not mean two things, so these are errors, except `1e3`, which everybody means as a number.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    value = float(text) if _FLOAT.fullmatch(text) else text
    if _ODD.fullmatch(text) or value == float("inf") or value == float("-inf"):
        raise AmbiguousScalar(
            f"{text[:24]} is not the same to all YAML readers, or no finite number; write true or false, a plain decimal number, a "
            f"duration with units such as 1h30m, or '{text[:24]}' for the word"
        )
    return value


# The reader of plain values from libyaml's parser events.


MAX_DEPTH: Final = 32
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Reader:
    """A reader of one YAML text. `lines` has the 1-based line of every key and list entry that was read, by its place."""

    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        self.lines: dict[KeyPath, int] = {}
        self._events = _Loader(text)

    def read(self) -> Any:
        """Return the one document of the text, None where there is none. Raises ConfigError for what is not allowed in our files."""
        try:
            self._events.get_event()  # the start of the stream
            root = self._document() if self._events.check_event(yaml.DocumentStartEvent) else None
            if self._events.check_event(yaml.DocumentStartEvent):
                raise self._error(self._events.get_event(), (), "a second YAML document starts here; one file holds one")
            return root
        finally:
            self._events.dispose()

    def _document(self) -> Any:
        self._events.get_event()
        root = self._value(())
        self._events.get_event()  # the end of the document
        return root

    def _value(self, place: KeyPath) -> Any:
        event = self._next(place)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, place)
        if len(place) >= MAX_DEPTH:
            raise self._error(event, place, f"more than {MAX_DEPTH} levels of nesting")
        return self._list(place) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(place)

    def _list(self, place: KeyPath) -> list[Any]:
        found: list[Any] = []
        while not self._events.check_event(yaml.SequenceEndEvent):
            inner = (*place, len(found))
            self.lines[inner] = self._events.peek_event().start_mark.line + 1
            found.append(self._value(inner))
        self._events.get_event()
        return found

    def _mapping(self, place: KeyPath) -> dict[str, object]:
        found: dict[str, object] = {}
        while not self._events.check_event(yaml.MappingEndEvent):
            event = self._next(place)
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error(event, place, "a key must be a word, not a list or a mapping")
            key = event.value
            if event.implicit[0] and not isinstance(self._scalar(event, place), str):
                words = f"the key {key or '(empty)'} is not a word; keys are words, quoted if they look like numbers"
                raise self._error(event, place, words)
            inner = (*place, key)
            if key in found:
                first = self.lines[inner]
                raise self._error(event, place, f"the key {key!r} stands here a second time; the first is on line {first}. Keep one")
            self.lines[inner] = line
            found[key] = self._value(inner)
        self._events.get_event()
        return found

    def _next(self, place: KeyPath) -> Any:
        """Return the next event, which begins a value or a key."""
        event = self._events.get_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None or event.tag is not None:
            raise self._error(event, place, "anchors, aliases and tags are not allowed: write the value out where it is used")
        return event

    def _scalar(self, event: Any, place: KeyPath) -> Scalar:
        if not event.implicit[0]:
            return str(event.value)
        try:
            return plain_scalar(event.value)
        except AmbiguousScalar as error:
            raise self._error(event, place, str(error)) from error

    def _error(self, event: Any, place: KeyPath, message: str) -> ConfigError:
        inside = f"{dotted(place)}: " if place else ""
        return ConfigError(f"{self.path}:{event.start_mark.line + 1}: {inside}{printable(message)}")


MAX_BYTES: Final = 1 << 20

_NAME_IT: Final = {
    "study": "name a study, as in `slipway plan STUDY` or `slipway logs RUN --study STUDY`; `slipway init DIR` writes one",
    "site": "name a site: `--site NAME_OR_PATH`",
}
_WRITE_IT: Final = "; `slipway init DIR` writes one with comments"


@dataclass(frozen=True, kw_only=True)
class Document:
    """The content of a file as plain dict, list and scalars.

    `lines` has the 1-based line of every key and value by its place; `text` is the file as it was typed.
    """

    path: Path
    value: dict[str, Any]
    lines: dict[KeyPath, int] = field(repr=False)
    text: str = field(repr=False)
    files: dict[KeyPath, Path] = field(default_factory=dict, repr=False)
    """Places whose keys, and all below, stand in another file: their lines are those of that file."""

    def where(self, place: KeyPath) -> str:
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
    try:
        reader = _Reader(text, path)
        root = reader.read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        words = ", ".join(word for word in (error.context, error.problem) if word)
        raise ConfigError(f"{path}:{line}: this is not YAML: {printable(words)}{_tab_hint(text, line)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: this is not YAML: {printable(str(error))}") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: this cannot be read as YAML: {printable(str(error))}") from error
    if root is None:
        raise ConfigError(f"{path}: the {kind} file is empty{_WRITE_IT if kind in _NAME_IT else '; write its command, or remove it'}")
    if not isinstance(root, dict):
        raise ConfigError(f"{path}:1: a {kind} file is a mapping of keys to values; found {kind_of(root)}")
    return Document(path=path, value=root, lines=reader.lines, text=text)


def _read_text(path: Path, kind: str) -> str:
    try:
        content = read_fed(path, MAX_BYTES + 1)
    except OSError as error:
        where = "" if path.is_absolute() else f" in {Path.cwd()}"  # mostly it is misspelt, or the command was started elsewhere
        advice = _NAME_IT.get(kind, "remove what lies there")
        raise ConfigError(f"the {kind} file {path} cannot be read: {error.strerror or error}{where}; {advice}") from error
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not a path of a {kind} file: {error}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path} holds more than {MAX_BYTES} bytes; a {kind} file has at most 1 MiB: use axes instead of long lists")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: byte {content[error.start]:#04x} is not UTF-8; save the {kind} file as UTF-8") from error


def _tab_hint(text: str, line: int) -> str:
    lines = text.split("\n")
    here = lines[line - 1] if line <= len(lines) else ""
    return "; YAML indents with spaces, and this line has a tab" if "\t" in here[: len(here) - len(here.lstrip())] else ""
