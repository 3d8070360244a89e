"""Format tables as text of a given width: no number, word or path is ever cut; what does not fit is folded.

Rows stand in lines as long as they fit; else the columns of words are wrapped at their blanks; else the first column stands on a line of
its own above the others; else every value does, beside its header.
"""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

GAP: Final = 2
INDENT: Final = 2
MIN_WRAPPED: Final = 16
"""Columns of words are not made narrower than this, if their words allow it."""
HARD: Final = "\N{NO-BREAK SPACE}"
_KEPT: Final = re.compile(r"(?<=\d) (?=[kMGTP]?i?B(?:/s)?\b|m?s\b|%)|(?<=~) (?=\d)")
"""The blank between a number and its unit."""
Row = Sequence[str]


def tabulated(headers: Row, rows: Sequence[Row], width: int | None = None) -> tuple[list[str], list[str]]:
    """Return (the lines of the headers, those of the rows) in at most `width` columns (None: as many as it takes), where words allow it."""
    natural = _widths(headers, rows)
    if width is None or _total(natural) <= width:
        return [_line(headers, natural)], [_line(row, natural) for row in rows]
    wrapped = _narrowed(headers, rows, width)
    if wrapped is not None:
        return _folded(headers, wrapped), [line for row in rows for line in _folded(row, wrapped)]
    rest = _narrowed(headers[1:], [row[1:] for row in rows], width - INDENT)
    if rest is not None:
        lines = [line for row in rows for line in (row[0], *_indented(_folded(row[1:], rest)))]
        return [headers[0], *_indented(_folded(headers[1:], rest))], lines
    return [], [line for number, row in enumerate(rows) for line in _block(headers, row, width, first=number == 0)]


def wrapped(text: str, width: int) -> list[str]:
    """Wrap `text` in lines of at most `width`, broken at blanks only, and never between a number and its unit."""
    lines = [""]
    for word in _kept(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return [line.replace(HARD, " ") for line in lines]


def _block(headers: Row, row: Row, width: int, *, first: bool) -> list[str]:
    """Put every value beside its header, the first one above them all."""
    room = max(map(len, headers[1:]), default=0)
    lines = [] if first else [""]
    lines.append(row[0])
    for header, text in zip(headers[1:], row[1:], strict=True):
        for number, part in enumerate(wrapped(text, width - INDENT - room - GAP)):
            lines.append(f"{' ' * INDENT}{header if number == 0 else '':{room}}{' ' * GAP}{part}".rstrip())
    return lines


def _narrowed(headers: Row, rows: Sequence[Row], width: int) -> list[int] | None:
    """Compute the widths of the columns, the widest made narrower first; None where even the longest words are too wide together."""
    widths = _widths(headers, rows)
    least = [
        max(min(MIN_WRAPPED, have), *(len(word) for text in column for word in _kept(text).split(" ")))
        for have, column in zip(widths, _columns(headers, rows), strict=True)
    ]
    while _total(widths) > width:
        spare = [have - want for have, want in zip(widths, least, strict=True)]
        most = max(range(len(widths)), key=lambda index: (spare[index] > 0, widths[index]), default=None)
        if most is None or spare[most] <= 0:
            return None
        widths[most] -= 1
    return widths


def _columns(headers: Row, rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return list(zip(headers, *rows, strict=True))


def _widths(headers: Row, rows: Sequence[Row]) -> list[int]:
    return [max(map(len, column)) for column in _columns(headers, rows)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _kept(text: str) -> str:
    return _KEPT.sub(HARD, text)


def _folded(row: Row, widths: Sequence[int]) -> list[str]:
    return [
        _line(parts, widths)
        for parts in zip_longest(*(wrapped(text, width) for text, width in zip(row, widths, strict=True)), fillvalue="")
    ]


def _line(row: Row, widths: Sequence[int]) -> str:
    return (" " * GAP).join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _indented(lines: Sequence[str]) -> list[str]:
    return [" " * INDENT + line for line in lines]
