"""Names that become directory names, and the closest word to a mistyped one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def is_name(text: str) -> bool:
    """Whether `text` may name a study, a dataset, a model or a cell: `[a-z0-9][a-z0-9._-]{0,63}`, so no separator, no shell character."""
    return NAME.fullmatch(text) is not None and ".." not in text


def slug(*words: object, length: int = 40) -> str:
    """A short readable name from some words, valid by `is_name` unless there is nothing to take."""
    text = "-".join(re.sub(r"[^a-z0-9.]+", "-", str(word).lower()).strip("-.") for word in words)
    return re.sub(r"-{2,}", "-", re.sub(r"\.{2,}", ".", text))[:length].strip("-.")


def closest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word a user most likely meant, or None."""
    found = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.6)
    return found[0] if found else None


def choices(word: str, valid: Iterable[str]) -> str:
    """The tail of an error message about an unknown word: the valid ones, and the closest."""
    known = sorted(valid)
    near = closest(word, known)
    return f"valid: {', '.join(known)}" + (f"; did you mean {near!r}?" if near else "")
