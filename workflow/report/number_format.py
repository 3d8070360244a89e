"""Format numbers as text, with the digits that they carry and no more."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from workflow.report.cells import MIN_RUNS, Estimate

NONE: Final = "\N{EN DASH}"
PLUS_MINUS: Final = "\N{PLUS-MINUS SIGN}"
WIDE: Final = 0.5


def significant(value: float | None, digits: int = 3) -> str:
    """Format a number, such as `0.0347`, `3.31`, `921`; whole numbers are never cut: 12345 stays 12345."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    return _fixed(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))), digits)


def with_error(estimate: Estimate | None, digits: int = 4) -> tuple[str, str]:
    """Format value and error, such as `1.707` and `±0.034`; `n=2, no CI` where there is none.

    Two digits of the error decide, within 3 to `digits` of the value.
    An error below the last digit, or none at all because all runs gave the same number, is shown as that digit: `±<0.001`.
    An interval that is wide against its value is far from symmetric, and `±` would reach below zero: then (`1.02`, `[0.371, 2.80]`).
    """
    if estimate is None:
        return NONE, ""
    error = estimate.plus_minus
    if error is None or estimate.low is None:
        return significant(estimate.value, digits), "" if estimate.n >= MIN_RUNS else f"n={estimate.n}, no CI"
    if error > WIDE * estimate.value:
        return significant(estimate.value), f"[{significant(estimate.low)}, {significant(estimate.high)}]"
    most = max(0, digits - 1 - math.floor(math.log10(abs(estimate.value))))
    carried = most if error == 0 else max(0, 1 - math.floor(math.log10(error)))
    decimals = min(most, max(carried, most - digits + 3))
    text = f"{error:.{decimals}f}"
    shown = f"{PLUS_MINUS}{text}" if float(text) > 0 else f"{PLUS_MINUS}<{10.0**-decimals:.{decimals}f}"
    return f"{estimate.value:.{decimals}f}", shown


def estimate_text(estimate: Estimate | None) -> str:
    """Format an estimate and its error, such as `1.707 ±0.034`."""
    return " ".join(filter(None, with_error(estimate)))


def value_of(estimate: Estimate) -> float:
    """Return the value alone."""
    return estimate.value


def percent(value: float | None, decimals: int = 1) -> str:
    """Format a share, such as `77.4 %`."""
    return NONE if value is None else f"{100 * value:.{decimals}f} %"


def time_unit(seconds: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit for a column of times, and its seconds: `s`, `min` from ten minutes on, `h` from ten hours on."""
    longest = max((value for value in seconds if value is not None), default=0.0)
    return ("s", 1.0) if longest < 600 else ("min", 60.0) if longest < 36000 else ("h", 3600.0)


def _fixed(value: float, decimals: int, digits: int) -> str:
    rounded = round(value, decimals)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))  # 9.996 is 10.0, not 10.00
    return f"{rounded:.{decimals}f}"
