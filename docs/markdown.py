"""Format tables of Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table; a bar in a cell is escaped, and a line break becomes a blank."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("|" + "".join(f" {_cell(text)} |" if text else " |" for text in line) + "\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", r"\|").split())


def code(words: Iterable[object], between: str = ", ") -> str:
    """Format words as code."""
    return between.join(f"`{word}`" for word in words)


def wrapped(paragraph: str) -> str:
    """Format a paragraph of prose in lines of 140 characters."""
    return textwrap.fill(paragraph, 140, break_long_words=False, break_on_hyphens=False)
