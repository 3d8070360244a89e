"""Define a table as a value: columns of values, of which the text for people, the value for machines and the marks are made."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from typing import Any, Final

from msgspec import Struct

from base.logs import printable
from workflow.report.cells import MARKS, MIN_RUNS, Estimate

LETTERS: Final = "abcdefghijklmnoprstuvwxyzABDEGHIJKLMNPRTUVW"  # no q, C, F: Unicode has no raised ones
_RAISED: Final = str.maketrans(LETTERS, "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴾᴿᵀᵁⱽᵂ")
MAX_ROWS: Final = 1000
"""Rows of a table for people: nobody reads more. CSV has all."""
Marks = frozenset[str]
NO_MARKS: Final[Marks] = frozenset()


class Reason(str):
    """Text in the place of a measurement: why there is none."""


class Value(Struct, frozen=True):
    """One value of a table as it is shown; `raw` as CSV has it (None: empty)."""

    text: str
    raw: str | float | int | None = None
    marks: Marks = NO_MARKS
    is_reason: bool = False
    link: str = ""
    """The name of the place in the page that it leads to."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table. `key` heads it in CSV, where values are in SI units; `title` everywhere else.

    `show` makes the text of a value, of None too, and `raw` what CSV has. `marks` are empty, or one set for each value; `links` may end
    before the values do. `wrap`: sentences, which may be broken. `stated`: the caption, or another column, has the values too, and only
    CSV has the column. `folds`: it tells the rows apart; on a narrow screen the first columns that do so are joined into one.
    """

    key: str
    title: str
    values: Sequence[Any]
    show: Callable[[Any], str] = str
    raw: Callable[[Any], str | float | int | None] | None = None
    marks: Sequence[Marks] = ()
    links: Sequence[str] = ()
    number: bool = True
    wrap: bool = False
    stated: bool = False
    folds: bool = False

    @property
    def raws(self) -> Sequence[Any]:
        """Return the values as CSV has them."""
        return self.values if self.raw is None else [None if value is None else self.raw(value) for value in self.values]

    def first(self, most: int) -> list[Value]:
        raw = self.raw or (lambda value: value)
        marks = self.marks or repeat(NO_MARKS)
        links = [*self.links[:most], *[""] * (min(most, len(self.values)) - len(self.links))]
        return [
            Value(self.show(value), None if value is None else raw(value), found, value is None or isinstance(value, Reason), link)
            for value, found, link in zip(self.values[:most], marks, links, strict=False)
        ]


def words(key: str, title: str, values: Iterable[object], *, number: bool = False, wrap: bool = False, **more: Any) -> Column:
    """Make a column of values that are their own text. Control characters are removed: texts come from studies, programs and archives."""
    return Column(key=key, title=title, values=[_clean(value) for value in values], number=number, wrap=wrap, **more)


def _clean(value: object) -> str | float | int:
    if isinstance(value, str):
        return value if value.isprintable() else type(value)(printable(value))
    return value if isinstance(value, int | float) else "" if value is None else printable(str(value))


def numbers(
    key: str, title: str, show: Callable[[Any], str], values: Sequence[Any], marks: Iterable[Marks] | None = None, **more: Any
) -> Column:
    """Make a column of numbers; a missing number has no mark."""
    marked = () if marks is None else [NO_MARKS if value is None else found for value, found in zip(values, marks, strict=True)]
    return Column(key=key, title=title, values=values, show=show, marks=marked, **more)


def estimates(key: str, title: str, values: Sequence[Estimate | None], marks: Iterable[Marks] | None = None) -> Column:
    """Make a column of estimates with their errors; CSV has the values alone."""
    return numbers(key, title, estimate_text, values, marks, raw=value_of)


def with_interval(
    key: str, title: str, show: Callable[[Any], str], values: Sequence[Estimate | None], marks: Iterable[Marks] | None = None
) -> list[Column]:
    """Make a column that shows `value [low, high]`, and two for the ends, which only CSV has."""
    return [
        numbers(key, title, partial(range_text, show), values, marks, raw=value_of),
        numbers(f"{key}_low", f"{title} low", show, [one and one.low for one in values], stated=True),
        numbers(f"{key}_high", f"{title} high", show, [one and one.high for one in values], stated=True),
    ]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; `name` names its files, and all columns have as many values."""

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    empty: str = "No rows."

    def __post_init__(self) -> None:
        if wrong := [column.key for column in self.columns if len(column.values) != self.num_rows]:
            raise ValueError(f"table {self.name}: columns {wrong[:3]} do not have {self.num_rows} values")

    @property
    def num_rows(self) -> int:
        return len(self.columns[0].values)

    @property
    def rows(self) -> list[tuple[Value, ...]]:
        return self.first(self.num_rows)

    @cached_property
    def first_rows(self) -> list[tuple[Value, ...]]:
        return self.first(MAX_ROWS)

    def first(self, most: int) -> list[tuple[Value, ...]]:
        return list(zip(*(column.first(most) for column in self.columns), strict=True))

    def footnotes(self) -> list[tuple[str, str, str]]:
        """Return letter, name and sentence of each mark in this table, in the order of MARKS: the same table has the same letters."""
        return [(letter, mark, MARKS[mark]) for mark, letter in self.letters.items()]

    @cached_property
    def letters(self) -> dict[str, str]:
        used = set().union(*{marks for column in self.columns for marks in column.marks})
        return dict(zip((mark for mark in MARKS if mark in used), LETTERS, strict=False))


def raised(letters: Sequence[str]) -> str:
    """Return the letters as Unicode superscripts, for text without markup."""
    return "".join(letters).translate(_RAISED)


# Format numbers as text, with the digits that they carry and no more.


NONE: Final = "\N{EN DASH}"
PLUS_MINUS: Final = "\N{PLUS-MINUS SIGN}"
WIDE: Final = 0.5
MICRO, MILLI, MEGA, GIGA, TERA = 1e-6, 1e-3, 1e6, 1e9, 1e12
MIB, GIB = 2**20, 2**30


def significant(value: float | None, digits: int = 3) -> str:
    """Format a number, such as `0.0347`, `3.31`, `921`; whole numbers are never cut: 12345 stays 12345. What is none is a dash."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    return _fixed(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))), digits)


def whole(value: int | None) -> str:
    """Format a count."""
    return NONE if value is None else str(value)


def scaled(unit: float, value: float | None, digits: int = 3) -> str:
    """Format a number in a unit of so many, such as 1e9."""
    return significant(None if value is None else value / unit, digits)


def with_error(estimate: Estimate | None) -> tuple[str, str]:
    """Format value and error, such as `1.707` and `±0.034`; `n=2, no CI` where there is none.

    Two digits of the error decide, within 3 or 4 of the value.
    An error below the last digit, or none at all because all runs gave the same number, is shown as that digit: `±<0.001`.
    An interval that is wide against its value is far from symmetric, and `±` would reach below zero: then (`1.02`, `[0.371, 2.80]`).
    """
    if estimate is None:
        return NONE, ""
    error = estimate.plus_minus
    if error is None or estimate.low is None:
        return significant(estimate.value, 4), "" if estimate.n >= MIN_RUNS else f"n={estimate.n}, no CI"
    if error > WIDE * estimate.value:
        return significant(estimate.value), f"[{significant(estimate.low)}, {significant(estimate.high)}]"
    most = max(0, 3 - math.floor(math.log10(abs(estimate.value))))
    carried = most if error == 0 else max(0, 1 - math.floor(math.log10(error)))
    decimals = min(most, max(carried, most - 1))
    text = f"{error:.{decimals}f}"
    shown = f"{PLUS_MINUS}{text}" if float(text) > 0 else f"{PLUS_MINUS}<{10.0**-decimals:.{decimals}f}"
    return f"{estimate.value:.{decimals}f}", shown


def estimate_text(estimate: Estimate | None) -> str:
    """Format an estimate and its error, such as `1.707 ±0.034`."""
    return " ".join(filter(None, with_error(estimate)))


def range_text(show: Callable[[Any], str], estimate: Estimate | None) -> str:
    """Format an estimate and the ends of its interval, such as `2.7 [2.5, 2.9]`."""
    if estimate is None:
        return NONE
    return show(estimate.value) + ("" if estimate.low is None else f" [{show(estimate.low)}, {show(estimate.high)}]")


def value_of(estimate: Estimate) -> float:
    """Return the value alone."""
    return estimate.value


def percent(value: float | None, decimals: int = 1) -> str:
    """Format a share, such as `77.4 %`."""
    return NONE if value is None else f"{100 * value:.{decimals}f} %"


def time_unit(seconds: Iterable[float | None], *, short: bool = False) -> tuple[str, float]:
    """Return the unit for times, and its seconds: `s`, `min` from ten minutes on, `h` from ten hours on.

    `short`: times may be those of a step, and get `ms` below a second and `µs` below a millisecond.
    """
    longest = max((value for value in seconds if value is not None), default=0.0)
    if short and longest < 1:
        return ("ms", MILLI) if longest >= MILLI else ("\N{MICRO SIGN}s", MICRO)
    return ("s", 1.0) if longest < 600 else ("min", 60.0) if longest < 36000 else ("h", 3600.0)


def _fixed(value: float, decimals: int, digits: int) -> str:
    rounded = round(value, decimals)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))  # 9.996 is 10.0, not 10.00
    return f"{rounded:.{decimals}f}"
