"""Paths that people write in files and on command lines."""

from __future__ import annotations

import os
from pathlib import Path


def absolute_path(text: str, base: Path) -> Path:
    """`text` as an absolute path: relative to `base`, with `~` and `~user` for a home directory; links are kept.

    Raises ValueError, with the reason, for what can be no path: a user without a home directory, a control character, half a character.
    """
    if any(character < " " or character == "\x7f" for character in text):
        raise ValueError(f"{text!r} is no path: it holds a control character")
    try:
        os.fsencode(text)
        return Path(os.path.abspath(base / Path(text).expanduser()))
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is no path: it holds half of a character") from error
    except RuntimeError as error:
        raise ValueError(f"{text!r}: {text.split('/', 1)[0]} has no home directory on this machine; write the path itself") from error
