"""A table as a value: columns, rows, and for each number its text for people, its value for machines and its marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final

from msgspec import Struct

from base.logs import printable
from workflow.report.cells import MARKS

LETTERS: Final = "abcdefghijklmnoprstuvwxyzABDEGHIJKLMNPRTUVW"  # no q, C, F: Unicode has no raised ones
_RAISED: Final = str.maketrans(LETTERS, "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴾᴿᵀᵁⱽᵂ")
MOST_ROWS: Final = 1000
"""Of a table for people: nobody reads more. CSV has all."""
NO_MARKS: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """`key` heads the column in CSV, where values are in SI units; `title` everywhere else. `wrap`: sentences, which may be broken.
    `stated`: the caption has the one value of all rows, and only CSV has the column."""

    key: str
    title: str
    number: bool = True
    wrap: bool = False
    stated: bool = False


class Value(Struct, frozen=True):
    """`shown`: its text, or what makes it of a number, since of 10^5 rows few are shown; `raw` as CSV has it (None: empty). `muted`: no
    measurement but the reason why there is none."""

    shown: str | Callable[[Any], str]
    raw: str | float | int | None = None
    marks: frozenset[str] = NO_MARKS
    muted: bool = False

    @property
    def text(self) -> str:
        """As shown."""
        return self.shown if isinstance(self.shown, str) else self.shown(self.raw)


@dataclass(frozen=True, kw_only=True)
class Table:
    """`name` names the files. Every row has one value per column. `leads`, where it is not empty: for each value of the first MOST_ROWS
    rows the name of the place in the page that it leads to, or nothing."""

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    empty: str = "No rows."
    leads: tuple[tuple[str, ...], ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Mark -> what is said of it beside its own sentence, of this study."""
    folds: int = 0
    """So many of the first columns, which tell the rows apart, stand in one on a narrow screen."""

    def __post_init__(self) -> None:
        if wrong := [index for index, row in enumerate(self.rows) if len(row) != len(self.columns)]:
            raise ValueError(f"table {self.name}: rows {wrong[:3]} do not have {len(self.columns)} values")

    def footnotes(self) -> list[tuple[str, str]]:
        """(letter, sentence) of the marks in this table, in the order of MARKS, so that the same table has the same letters."""
        return [(letter, explained(mark, self.reasons)) for mark, letter in self.letters().items()]

    def letters(self) -> dict[str, str]:
        """Mark -> its letter in this table."""
        return self._letters

    @cached_property
    def _letters(self) -> dict[str, str]:
        used = set().union(*{value.marks for row in self.rows for value in row if value.marks})
        return dict(zip((mark for mark in MARKS if mark in used), LETTERS, strict=False))


def explained(mark: str, reasons: Mapping[str, str]) -> str:
    """Return the sentence of a mark, and after it what is said of it in this study."""
    return ". ".join(filter(None, (MARKS[mark], reasons.get(mark))))


def text(value: object, *, marks: Iterable[str] = (), muted: bool = False) -> Value:
    """A value that is its own text, with control characters replaced: names and reasons come from studies, programs and archives."""
    if type(value) is int:
        return Value(str, value, frozenset(marks), muted) if marks or muted else _whole(value)
    shown = "" if value is None else str(value)
    shown = shown if shown.isprintable() else printable(shown)
    return Value(shown, value if isinstance(value, int | float) else shown, frozenset(marks), muted)


@lru_cache(maxsize=1 << 14)
def _whole(value: int) -> Value:
    return Value(str, value)


def number(show: Callable[[Any], str], raw: float | int | None, marks: Iterable[str] = ()) -> Value:
    """A number with what makes its text, also of None; without a number there is no mark either."""
    return Value(show, raw, frozenset(marks)) if raw is not None else Value(show, muted=True)


def raised(letters: Sequence[str]) -> str:
    """The letters as Unicode superscripts, for text without markup."""
    return "".join(letters).translate(_RAISED)
