"""Order statistics of some numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def summarise(values: Sequence[float]) -> dict[str, Any]:
    """Order statistics of at least one value. Percentiles interpolate linearly; `stdev` is the sample's, `mad` the median distance."""
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    mean = math.fsum(ordered) / len(ordered)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / (len(ordered) - 1)) if len(ordered) > 1 else None
    return {
        "n": len(ordered),
        "p50": middle,
        "p90": quantile(ordered, 0.9),
        "p95": quantile(ordered, 0.95),
        "p99": quantile(ordered, 0.99),
        "mean": mean,
        "stdev": spread,
        "mad": quantile(sorted(abs(value - middle) for value in ordered), 0.5),
        "min": ordered[0],
        "max": ordered[-1],
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted values, linear between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """The middle of at least one value."""
    return quantile(sorted(values), 0.5)
