"""Whether the steps of a window get slower or faster. Pure: a straight line, and what the same steps do at other slow changes.

Steps are no independent numbers: one that was slow is often followed by another slow one, and a line through them then tilts by chance
much further than the usual standard error says. So it is judged by slow changes that no drift makes: the line is the polynomial of degree
1, and those of degree 2 to 9, orthogonal to it, show how large such things are by chance. Their mean square is the line's own variance,
with 8 degrees of freedom (Student's t). Before, the dependence of neighbours is taken out with a correlation that is rather too large than
too small, since a too small one makes false alarms. All of it is done on the means of at most 50 blocks of steps: what changes from one
step to the next only hides how long a slow phase lasts.

Runs of a cell are put together degree by degree (workflow/report/cells.py): what the same pattern of input does in every run then stays
in the line and in the others alike.

Batches that were read ahead before the window, and steps that the device has not computed yet, make its first steps short, and the rate
of the window higher than that of all that follows (`early`).

benchmarks/marks.py simulates how often both tests are wrong, and what they find; docs/tables.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

MIN_STEPS: Final = 100
"""Fewer do not tell a drift from steps that depend on each other."""
LEAST_EARLY: Final = 20
OTHERS: Final = 8
MOST_BLOCKS: Final = 50
MOST_CORRELATION: Final = 0.99
CAUTION: Final = 1.5
"""Standard errors that are added to the correlation of neighbours."""


def drift(seconds: Sequence[float]) -> dict[str, Any] | None:
    """The record's `drift`: `change_ratio`, how far a line through the steps' seconds rises from begin to end of the window, in parts of
    their mean; `others_ratio`, as much at OTHERS other slow changes; `stderr_ratio`, their root mean square, which is the standard error
    of the line; `steps`. None for fewer than MIN_STEPS, or where no time passed."""
    size = math.ceil(len(seconds) / MOST_BLOCKS)
    mean = math.fsum(seconds) / len(seconds) if seconds else 0.0
    if len(seconds) < MIN_STEPS or not mean:
        return None
    places = range(0, len(seconds) - size + 1, size)
    blocks = [math.fsum(seconds[place : place + size]) / size / mean - 1 for place in places]
    rho = _correlation(blocks)
    fresh = [after - rho * before for before, after in zip(blocks, blocks[1:], strict=False)]
    width = 2 * len(blocks) / len(fresh) / (1 - rho) / math.sqrt(math.fsum(x * x for x in _grid(len(fresh))))
    _, line, *others = (width * found for found in _projections(fresh, OTHERS + 2))
    error = math.sqrt(math.fsum(other * other for other in others) / OTHERS)
    return {"change_ratio": line, "stderr_ratio": error, "others_ratio": others, "steps": len(seconds)}


def early(seconds: Sequence[float]) -> tuple[float, float] | None:
    """Return the rate of the window over that of its last half; and the mean of its first steps, a twentieth, over that of the shortest as
    many in a row of the last half. Return None for fewer than LEAST_EARLY steps, or where no time passed.

    The last step belongs to neither half: where the device is waited for at the window's end, it lasts until all steps in flight are
    computed.
    """
    last = seconds[len(seconds) - len(seconds) // 2 : -1]
    size = max(1, len(seconds) // 20)
    if len(seconds) < LEAST_EARLY or not math.fsum(last):
        return None
    shortest = min(math.fsum(last[place : place + size]) for place in range(0, len(last) - size + 1, size))
    ratio = math.fsum(last) / len(last) * len(seconds) / math.fsum(seconds)
    return (ratio, math.fsum(seconds[:size]) / shortest) if shortest else None


def _correlation(values: Sequence[float]) -> float:
    """Of neighbours, without the line through them; corrected for what estimating does to it, and on the side of caution."""
    n, grid = len(values), _grid(len(values))
    mean = math.fsum(values) / n
    slope = math.fsum(x * value for x, value in zip(grid, values, strict=True)) / math.fsum(x * x for x in grid)
    rest = [value - mean - slope * x for x, value in zip(grid, values, strict=True)]
    square = math.fsum(value * value for value in rest)
    found = math.fsum(before * after for before, after in zip(rest, rest[1:], strict=False)) / square if square else 0.0
    rho = min(max((found * n + 2) / (n - 4), 0.0), MOST_CORRELATION)  # it comes out too small, by about (2 + 4 rho) / n
    return min(rho + CAUTION * math.sqrt((1 - rho * rho) / n), MOST_CORRELATION)


def _projections(values: Sequence[float], count: int) -> Iterator[float]:
    """The parts of `values` along the first `count` polynomials that are orthonormal on an even grid (three-term recurrence)."""
    grid = _grid(len(values))
    before, now, norm_before = [0.0] * len(grid), [1.0] * len(grid), 1.0
    for _ in range(count):
        norm = math.fsum(value * value for value in now)
        yield math.fsum(value * own for value, own in zip(values, now, strict=True)) / math.sqrt(norm)
        before, now = now, [x * own - norm / norm_before * last for x, own, last in zip(grid, now, before, strict=True)]
        norm_before = norm


def _grid(count: int) -> list[float]:
    """Even places between -1 and 1, symmetric."""
    return [(2 * place + 1) / count - 1 for place in range(count)]
