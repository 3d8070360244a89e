"""What a plain (unquoted) YAML scalar means here: YAML 1.2, and a refusal with the reason wherever 1.1 and 1.2 disagree.

PyYAML reads YAML 1.1, editors mostly 1.2: `12:30:00` is 45000 to one and text to the other, `no` is false or text, `1e3` text or 1000,
`010` eight or ten. A study must not mean two things, so these are errors, except `1e3`, which everybody means as a number.
"""

from __future__ import annotations

import re

from base.units import meant_duration

Scalar = str | int | float | bool | None

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_OLD_TRUTH = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_CLOCK = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_ODD_INTEGER = re.compile(r"[-+]?0[0-9_]+|[-+]?0[xX][0-9a-fA-F_]+|[-+]?0[oO][0-7_]+|[-+]?0[bB][01_]+|[-+]?[0-9]+(?:_[0-9]+)+")
_MAX_DIGITS = 18


class AmbiguousScalar(ValueError):
    """A plain scalar that two YAML readers understand differently."""


def plain_scalar(text: str) -> Scalar:
    """The value of an unquoted scalar. Raises AmbiguousScalar, whose message says what to write instead."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text.lower() in _OLD_TRUTH:
        truth = _OLD_TRUTH[text.lower()]
        raise AmbiguousScalar(
            f"{text} is the truth value {truth} to some YAML readers and a word to others; write {truth}, or '{text}' for the word"
        )
    return _number(text) if text[0] in "+-.0123456789" else text


def _number(text: str) -> Scalar:
    if _INTEGER.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise AmbiguousScalar(f"{text[:24]}... has more than {_MAX_DIGITS} digits; quote it if it is a word")
        return int(text)
    if _CLOCK.fullmatch(text):
        raise AmbiguousScalar(
            f"{text} is the number {_sexagesimal(text)} to some YAML readers; write a duration with units, such as "
            f"{meant_duration(text) or '1h30m'}, or '{text}' for the word"
        )
    if _ODD_INTEGER.fullmatch(text):
        raise AmbiguousScalar(
            f"{text} is read as different numbers by different YAML readers; write it in plain decimal, or quote the word"
        )
    if _SPECIAL.fullmatch(text):
        raise AmbiguousScalar(f"{text} is not a number that can be used here; write a finite number, or quote the word")
    if _FLOAT.fullmatch(text):
        return _finite(text)
    return text


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise AmbiguousScalar(f"{text[:24]} is too large for a number")
    return value


def _sexagesimal(text: str) -> str:
    total = 0.0
    for part in text.lstrip("+-").replace("_", "").split(":"):
        total = total * 60 + float(part)
    return f"{total:.15g}"
