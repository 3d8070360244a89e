"""Paths that people write in files and on command lines."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from base.sanitize import printable

_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)


def has_variables(text: str) -> bool:
    """Return True if `$NAME` or `${NAME}` is in the text."""
    return _VARIABLE.search(text) is not None


def variables_of(text: str) -> tuple[str, ...]:
    """List the names of the variables in a text, in order. Raises ValueError for a `$` that begins none: nothing else of a shell's is
    read."""
    rest = _VARIABLE.sub("", text)
    if "$" in rest:
        raise ValueError(f"{text!r} holds a $ that begins neither $NAME nor ${{NAME}}; no other form of a shell is read here")
    return tuple(match[1] or match[2] for match in _VARIABLE.finditer(text))


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}` by their values. Raises ValueError where one is not set, or is empty, and for any other `$`."""
    variables_of(text)

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = environ.get(name, "")
        if not found:
            raise ValueError(f"{text!r}: ${name} is not set on {os.uname().nodename}")
        return found

    return _VARIABLE.sub(value, text)


def expanded_path(text: str, environ: Mapping[str, str]) -> Path:
    """Replace the variables of a text and return it as an absolute path. Raises ValueError."""
    path = expanded(text, environ)
    if not path.startswith("/"):
        raise ValueError(f"{text!r} is {path!r} on {os.uname().nodename}, which does not begin with a /")
    return absolute_path(path, Path("/"))


def absolute_path(text: str, base: Path) -> Path:
    """Return `text` as an absolute path: relative to `base`, with `~` and `~user` for a home directory; links are kept. Raises
    ValueError, with the reason, for what can be no path: a user without a home directory, a control character, half a character; or
    where what `base` adds cannot be written into our files, of which many hold paths."""
    try:
        os.fsencode(text)
        path = os.path.abspath(base / Path(text).expanduser())
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not a path: it holds half of a character") from error
    except RuntimeError as error:
        raise ValueError(f"{text!r}: {text.split('/', 1)[0]} has no home directory on this machine; write the path itself") from error
    if any(character < " " or character == "\x7f" for character in text + path):
        raise ValueError(f"{path!r} is not a path: it holds a control character")
    if not _is_utf8(path):
        raise ValueError(f"{printable(path)!r} is not UTF-8, as the names in our files are; choose another path, or link to it")
    return Path(path)


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
