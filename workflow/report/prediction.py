"""Predict the rate of a study on more nodes than were measured, with an interval, or say why not.

Over n nodes of equal size the time that a node needs for its part is t(n) = n / X(n), with X the samples per second of all nodes. In
weak scaling it has a part that does not depend on n, and a ring exchange, in which each node sends 2 (n - 1) / n times the gradients
(Patarasuk and Yuan, 2009): t(n) = c + b (1 - 1/n), with c, b >= 0, fitted to the relative errors. Two numbers of nodes determine it, one
of them beyond the first node: what the network costs is not seen in a node. The first node is left out where two larger ones are there.

How far such a prediction is from the truth, nobody knows from a fit through two points. The interval is that of predictions of published
series whose truth is known (split conformal, Papadopoulos et al., 2002; scaled by the growth of t(n) that is predicted, after Lei et al.,
2018), together with the variation of the runs. `python -m benchmarks.prediction` makes it and tells how often it held, each document by the
others.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from base.humanize import counted
from workflow.report.cells import quantile

LEVEL: Final = 0.9
"""The nominal share of true values that an interval holds."""
FARTHEST: Final = 4
"""Predictions go to so many times the nodes of the largest measured point, and no farther: no series shows what comes then."""
MIN_GROWTH: Final = 0.1
"""Errors grow with the growth of t(n) that is predicted. So much is added to it, since a fit without growth is not exact either."""
MAX_TIMES: Final = 1_000_000
MISFIT: Final = 0.05
CERTAIN: Final = 3.0
"""A model that misses a measured point by more than MISFIT and by more than so many standard errors does not hold. So are 11 of 185
predictions of published series left out, which were off by 7 % at the median, by up to 36 %."""
NODES: Final = 10**6
RATES: Final = (1e-9, 1e18)
"""More nodes, and rates outside of these, are slips of the pen."""


class Point(NamedTuple):
    """A measured rate of `nodes` nodes; `error` is the standard error of its logarithm, 0 where it is not known."""

    nodes: int
    rate: float
    error: float = 0.0


class Prediction(NamedTuple):
    """A predicted rate with its interval at LEVEL. `factor`: how many times the nodes of the largest measured point."""

    nodes: int
    rate: float
    low: float
    high: float
    factor: float
    covered: float
    """The share of the published series that such an interval held."""


class Fit(NamedTuple):
    """t(x) = constant + growth * x, both at least 0."""

    constant: float
    growth: float

    def at(self, x: float) -> float:
        return self.constant + self.growth * x


class FactorErrors(NamedTuple):
    """What predictions of published series up to `factor` times the nodes were off by.

    `scaled`: the quantile at LEVEL of |log error| / (MIN_GROWTH + growth); `covered`: the share of them that an interval held which was
    made from the other documents.
    """

    factor: int
    scaled: float
    covered: float


ERRORS: Final = (
    FactorErrors(2, 0.5163, 0.902),
    FactorErrors(FARTHEST, 0.7461, 0.885),
)
"""What `benchmarks.prediction.errors_of` finds in benchmarks/series; a test compares them."""


def fit(values: Sequence[tuple[float, float]]) -> Fit:
    """Fit (x, t) with t > 0 by least squares of the relative errors, both parameters at least 0.

    Raises ValueError where all x are the same: they determine no line.
    """
    if len({x for x, _ in values}) < 2:
        raise ValueError("one x determines no line")
    u, v = [1 / t for _, t in values], [x / t for x, t in values]
    uu, vv, uv = (math.fsum(a * b for a, b in zip(*pair, strict=True)) for pair in ((u, u), (v, v), (u, v)))
    su, sv = math.fsum(u), math.fsum(v)
    determinant = uu * vv - uv * uv
    constant, growth = (su * vv - sv * uv) / determinant, (sv * uu - su * uv) / determinant
    if growth < 0:
        return Fit(su / uu, 0.0)
    return Fit(0.0, sv / vv) if constant < 0 else Fit(constant, growth)


def exchange_fit(points: Sequence[Point]) -> Fit:
    """Fit t(n) = c + b (1 - 1/n) to the points that tell what the network costs."""
    return fit([(1 - 1 / point.nodes, point.nodes / point.rate) for point in fitted_points(points)])


def fitted_points(points: Sequence[Point]) -> Sequence[Point]:
    """Return the points beyond the first node, or all where that is only one."""
    beyond = [point for point in points if point.nodes > 1]
    return beyond if len(beyond) > 1 else points


def growth(model: Fit, largest: int, nodes: int) -> float:
    """Return the share of t(`nodes`) by which it is longer than t(`largest`)."""
    return 1 - model.at(1 - 1 / largest) / model.at(1 - 1 / nodes)


def merged(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return one point for each number of nodes, in their order: the geometric mean of several. Raises ValueError for what is none."""
    by_nodes: dict[int, list[Point]] = {}
    for point in points:
        if not 1 <= point.nodes <= NODES:
            raise ValueError(f"{point.nodes} nodes")
        if not RATES[0] <= point.rate <= RATES[1]:
            raise ValueError(f"a rate of {point.rate:g}")
        by_nodes.setdefault(point.nodes, []).append(point)
    return tuple(
        Point(
            nodes,
            math.exp(math.fsum(math.log(one.rate) for one in alike) / len(alike)),
            math.sqrt(math.fsum(one.error**2 for one in alike)) / len(alike),
        )
        for nodes, alike in sorted(by_nodes.items())
    )


def why_no_model(points: Sequence[Point]) -> str | None:
    """Explain why nothing is predicted from merged points, whatever the nodes; None if something is."""
    if not points or points[-1].nodes == 1:
        return "no point beyond the first node: what the network costs is not seen inside of a node"
    if len(points) < 2:
        return f"one number of nodes ({points[0].nodes}): a prediction needs two"
    if max(point.rate for point in points) > MAX_TIMES * min(point.rate for point in points):
        return f"the rates differ by more than {MAX_TIMES:,} times"
    model = exchange_fit(points)
    for point in fitted_points(points):
        miss = math.log(model.at(1 - 1 / point.nodes) * point.rate / point.nodes)
        if abs(miss) > max(MISFIT, CERTAIN * point.error):
            return f"c + b (1 - 1/n) misses the measured rate of {counted(point.nodes, 'node')} by {abs(math.expm1(miss)):.0%}"
    return None


def predict(points: Sequence[Point], nodes: int) -> Prediction | str:
    """Predict the rate of `nodes` nodes from merged points, or return why not."""
    if reason := why_no_model(points):
        return reason
    largest = points[-1].nodes
    if nodes <= largest:
        return f"{counted(nodes, 'node')}: not more than the {largest} that were measured"
    factor = nodes / largest
    if factor > FARTHEST:
        return f"{nodes} nodes are more than {FARTHEST} times the {largest} that were measured"
    model = exchange_fit(points)
    rate = nodes / model.at(1 - 1 / nodes)
    known = next(one for one in ERRORS if factor <= one.factor)
    of_series = known.scaled * (MIN_GROWTH + growth(model, largest, nodes))
    half = math.hypot(of_series, quantile(math.inf, LEVEL) * own_error(points, nodes))
    return Prediction(nodes, rate, rate * math.exp(-half), rate * math.exp(half), factor, known.covered)


def crossing(points: Sequence[tuple[int, float]], level: float) -> float | None:
    """Return where a curve of (count, value), in the order of the counts, first falls below `level`: linear in log2 of them."""
    if points and points[0][1] < level:
        return float(points[0][0])
    for (before, above), (after, below) in pairwise(points):
        if below < level <= above:
            share = (above - level) / (above - below)
            return float(2 ** (math.log2(before) + share * math.log2(after / before)))
    return None


def own_error(points: Sequence[Point], nodes: int) -> float:
    """Return the standard error of the logarithm of the predicted rate that comes from those of the points."""
    x = 1 - 1 / nodes
    center = math.log(exchange_fit(points).at(x))

    def moved(index: int, by: float) -> float:
        point = points[index]
        changed = [*points[:index], point._replace(rate=point.rate * math.exp(by)), *points[index + 1 :]]
        return abs(math.log(exchange_fit(changed).at(x)) - center)

    return math.hypot(*[max(moved(index, point.error), moved(index, -point.error)) for index, point in enumerate(points) if point.error])
