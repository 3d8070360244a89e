"""Read a YAML file of ours: values with the line of each, and nothing that YAML can do to surprise a reader.

Built on the events of libyaml's parser, not on its object tree, so that nesting is bounded before anything recurses, anchors and aliases
(306 bytes can mean 9^9 nodes) are refused where they stand, and a duplicate key is an error that names both lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from base.errors import ConfigError
from base.logs import printable
from base.untrusted import read_fed
from workflow.study.places import Place, kind_of
from workflow.study.yaml_events import Builder

MAX_BYTES: Final = 1 << 20

_NAME_IT: Final = {
    "study": "name a study: `slipway run STUDY`, or `--study STUDY` where a command takes other words; `slipway init DIR` writes one",
    "site": "name a site: `--site NAME_OR_PATH`",
}
_WRITE_IT: Final = "; `slipway init DIR` writes one with comments"
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file's content as plain dict, list and scalars; `lines` has the 1-based line of every key and value by its place; `text` is
    the file as it was typed."""

    path: Path
    value: dict[str, Any]
    lines: dict[Place, int] = field(repr=False)
    text: str = field(repr=False)
    files: dict[Place, Path] = field(default_factory=dict, repr=False)
    """Places whose keys, and all below, stand in another file: their lines are those of that file."""

    def where(self, place: Place) -> str:
        """`file:line` of the innermost part of `place` that is in the file."""
        for end in range(len(place), 0, -1):
            if place[:end] in self.lines:
                file = next((self.files[place[:length]] for length in range(end, 0, -1) if place[:length] in self.files), self.path)
                return f"{file}:{self.lines[place[:end]]}"
        return f"{self.path}:1"


def read_document(path: Path, kind: str) -> Document:
    """The document in `path`; `kind` ("study", "site") is for messages. Raises ConfigError only."""
    return parse_document(_read_text(path, kind), path, kind)


def parse_document(text: str, path: Path, kind: str) -> Document:
    """The document in `text`; `path` is for messages. Raises ConfigError only."""
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
    """What to do about a relative path that leads nowhere: mostly the command was started in another directory than the checkout."""
    if path.is_absolute():
        return f"; {_NAME_IT[kind]}" if kind == "site" else ""
    return f" in {Path.cwd()}; {_NAME_IT[kind]}"


def _tab_hint(text: str, line: int) -> str:
    lines = text.split("\n")
    here = lines[line - 1] if line <= len(lines) else ""
    return "; YAML indents with spaces, and this line has a tab" if "\t" in here[: len(here) - len(here.lstrip())] else ""
