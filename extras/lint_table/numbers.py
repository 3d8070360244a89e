"""Parse printed numbers: what a cell says, and between what bounds the true value lies that was rounded to it."""

import re
from typing import Final, NamedTuple

from base.sanitize import MAX_NUMBER

BYTES: Final = (
    {"b": 1.0} | {p + "b": 1e3 ** (i + 1) for i, p in enumerate("kmgtp")} | {p + "ib": 2.0 ** (10 * (i + 1)) for i, p in enumerate("kmgtp")}
)
BYTE_RATES: Final = {f"{unit}/s": factor for unit, factor in BYTES.items()}
SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SPELLED: Final = {
    **{"byte": "b", "minute": "min", "mins": "min", "hr": "h", "hour": "h", "day": "d", "second": "s", "sec": "s"},
    **{"nanosecond": "ns", "nsec": "ns", "microsecond": "us", "usec": "us", "μs": "us", "millisecond": "ms", "msec": "ms"},
}
"""Units as people write them, without the s of the plural."""
_NUMBER: Final = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.)?(?:[eE][+-]?\d{1,3})?")
_CLOCK: Final = re.compile(r"(\d{1,4}):([0-5]\d):([0-5]\d(?:\.\d+)?)")
_LIST: Final = re.compile(r"\s+and\s+|\s*/\s*|\s*,\s+|\s+,\s*|\s+:\s+|\s*;\s*|(?<=\d),(?=\d{1,2}(?!\d))", re.IGNORECASE)
_UNIT: Final = re.compile(r"\s*(%|[×x](?![a-z])|[a-zµμ]+(?:\s*(?:/|per)\s*[a-zµμ]+)?)?\.?\s*", re.IGNORECASE)


class Interval(NamedTuple):
    """All values that a printed number may stand for."""

    low: float
    high: float

    def times(self, other: "Interval") -> "Interval":
        ends = [a * b for a in self for b in other]
        return Interval(min(ends), max(ends))

    def scaled(self, factor: float) -> "Interval":
        return Interval(self.low * factor, self.high * factor)

    def over(self, other: "Interval") -> "Interval | None":
        """Return the quotient; None where the divisor may be 0 or negative."""
        return self.times(Interval(1 / other.high, 1 / other.low)) if other.low > 1 / MAX_NUMBER else None

    def meets(self, other: "Interval") -> bool:
        """Return True if a value is in both, but for what floating point rounds."""
        slack = 1e-9 * max(abs(self.low), abs(self.high), abs(other.low), abs(other.high))
        return self.low <= other.high + slack and other.low <= self.high + slack

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


class Printed(NamedTuple):
    """A number as it was printed. `step`: one unit of its last digit; `unit`: what stands behind it, in lower case, or empty."""

    value: float
    step: float
    unit: str = ""

    @property
    def rounded(self) -> Interval:
        """Return half a unit of the last digit to both sides."""
        return Interval(self.value - self.step / 2, self.value + self.step / 2)

    @property
    def rounded_or_cut(self) -> Interval:
        """Return what was rounded or cut off to this number: results are often cut."""
        return Interval(self.value - self.step / 2, self.value + self.step)

    def scaled(self, factor: float) -> "Printed":
        return Printed(self.value * factor, self.step * factor, self.unit)


def parse_cell(text: str) -> tuple[Printed, ...]:
    """Return the numbers of a cell, several where it is a list such as `16 and 8`; nothing where any part is no plain number."""
    text = text.strip().lstrip("~≈").strip()
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, seconds = clock.groups()
        return (Printed(3600.0 * int(hours) + 60.0 * int(minutes) + float(seconds), 1.0, "s"),)
    one = _parse_number(text)
    if one:
        return (one,)
    parts = [_parse_number(part) for part in _LIST.split(text)]
    return tuple(part for part in parts if part) if len(parts) in (2, 3, 4) and all(parts) else ()


def _parse_number(text: str) -> Printed | None:
    main, _, error = re.sub(r"\+\s?/\s?-|\+-", "±", text).partition("±")
    if error:
        inner, outer = _parse_number(error.strip()), _parse_number(main.strip())
        return outer and Printed(outer.value, max(outer.step, 2 * inner.value if inner else 0.0), outer.unit)
    found = _NUMBER.match(text)
    if not found or not any(map(str.isdigit, found[0])) or not found[0].isascii():
        return None
    behind = _UNIT.fullmatch(text, found.end())
    if not behind:
        return None
    plain = found[0].replace(",", "")
    mantissa, _, exponent = plain.lower().partition("e")
    value = float(plain)
    if not abs(value) <= MAX_NUMBER:
        return None
    step = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    unit = (behind[1] or "").lower()
    if unit == "k" or behind[1] == "M":
        factor = 1e3 if unit == "k" else 1e6
        return Printed(value * factor, step * factor, "k")
    return Printed(value, step, "x" if unit == "×" else unit)


def canonical_unit(text: str) -> str:
    """Return a unit of time or bytes as a key of SECONDS or BYTES, a rate of bytes as such a key and `/s`; other units as they are."""
    unit, _, per = re.sub(r"\s*(/|per)\s*", "/", text.strip().lower()).partition("/")
    unit, per = (_SPELLED.get(one, _SPELLED.get(one.removesuffix("s"), one)) for one in (unit, per))
    return f"{unit}/{per}" if per else unit


def spelled_unit(unit: str) -> str:
    """Return a unit as it is written: a key of BYTES such as `mb` as MB, a rate of them likewise, others as they are."""
    name, slash, per = unit.partition("/")
    if name not in BYTES:
        return unit
    prefix = name[:-1]
    return (prefix if prefix.startswith("k") else prefix.capitalize()) + "B" + slash + per
