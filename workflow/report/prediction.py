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

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from base.humanize import counted
from workflow.report.cells import quantile

LEVEL: Final = 0.9
"""The nominal share of true values that an interval holds."""
FARTHEST: Final = 4
"""Predictions go to so many times the nodes of the largest measured point, and no farther: no series shows what comes then."""
LEAST_GROWTH: Final = 0.1
"""Errors grow with the growth of t(n) that is predicted. So much is added to it, since a fit without growth is not exact either."""
MISFIT: Final = 0.05
CERTAIN: Final = 3.0
"""Where the model misses a measured point by more than MISFIT, and by more than so many standard errors, something else goes on. So are 11
of 185 predictions of published series left out, which were off by 7 % at the median, by up to 36 %."""
NODES: Final = 10**6
RATES: Final = (1e-9, 1e18)
"""More nodes, and rates outside of these, are slips of the pen."""
ERRORS_FILE: Final = Path(__file__).with_name("prediction_errors.json")


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


class FactorErrors(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What predictions of published series up to `factor` times the nodes were off by.

    `scaled`: the quantile at LEVEL of |log error| / (LEAST_GROWTH + growth); `median` and `p90` are relative errors of the rate;
    `covered`: the share of them that an interval held which was made from the other documents.
    """

    factor: int
    predictions: int
    series: int
    documents: int
    scaled: float
    median: float
    p90: float
    covered: float


class Errors(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of prediction_errors.json."""

    made_by: str
    level: float
    factors: tuple[FactorErrors, ...]

    def of(self, factor: float) -> FactorErrors | None:
        """Return the errors of the least factor that is as large; None if there is none."""
        return next((one for one in self.factors if factor <= one.factor), None)


@cache
def published_errors() -> Errors:
    """Read the errors of the published series, which lie beside this module."""
    return msgspec.json.decode(ERRORS_FILE.read_bytes(), type=Errors)


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


def serial_fraction(rates: Iterable[tuple[int, float]]) -> float | None:
    """Explain rates inside a node, (processes, rate), by the part of the work that does not get faster: Amdahl's s, as n / X = 1/X1 (1 +
    s (n - 1)). None for fewer than three numbers of processes, or where it fits no better than s = 1. It predicts nothing: beyond the
    measured processes it is off by 13 % at the median on published series of threads, by 46 % in one of ten."""
    values = [(float(n - 1), n / rate) for n, rate in rates]
    if len({x for x, _ in values}) < 3:
        return None
    model = fit(values)
    return model.growth / model.constant if 0 <= model.growth < model.constant else None


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
    model = exchange_fit(points)
    for point in fitted_points(points):
        miss = math.log(model.at(1 - 1 / point.nodes) * point.rate / point.nodes)
        if abs(miss) > max(MISFIT, CERTAIN * point.error):
            return f"c + b (1 - 1/n) misses the measured rate of {counted(point.nodes, 'node')} by {abs(math.expm1(miss)):.0%}"
    return None


def predict(points: Sequence[Point], nodes: int, errors: Errors | None = None) -> Prediction | str:
    """Predict the rate of `nodes` nodes from merged points, or return why not."""
    errors = errors or published_errors()
    if reason := why_no_model(points):
        return reason
    largest = points[-1].nodes
    if nodes <= largest:
        return f"{nodes} nodes are not beyond the {largest} that were measured"
    factor = nodes / largest
    known = errors.of(factor)
    if factor > FARTHEST or known is None:
        return f"{nodes} nodes are more than {FARTHEST} times the {largest} that were measured"
    model = exchange_fit(points)
    rate = nodes / model.at(1 - 1 / nodes)
    of_series = known.scaled * (LEAST_GROWTH + growth(model, largest, nodes))
    half = math.hypot(of_series, quantile(math.inf, errors.level) * own_error(points, nodes))
    return Prediction(nodes, rate, rate * math.exp(-half), rate * math.exp(half), factor, known.covered)


def own_error(points: Sequence[Point], nodes: int) -> float:
    """Return the standard error of the logarithm of the predicted rate that comes from those of the points."""
    x = 1 - 1 / nodes
    center = math.log(exchange_fit(points).at(x))

    def moved(index: int, by: float) -> float:
        point = points[index]
        changed = [*points[:index], point._replace(rate=point.rate * math.exp(by)), *points[index + 1 :]]
        return abs(math.log(exchange_fit(changed).at(x)) - center)

    return math.hypot(*[max(moved(index, point.error), moved(index, -point.error)) for index, point in enumerate(points) if point.error])


# How far predictions of published series are off, and how often an interval holds that was made from other documents.


class Trial(NamedTuple):
    """A prediction whose truth is known. `log_error`: logarithm of the predicted rate over the true one."""

    document: str
    series: int
    factor: float
    log_error: float
    growth: float

    @property
    def scaled(self) -> float:
        return abs(self.log_error) / (LEAST_GROWTH + self.growth)


def points_of_series(values: Any, gpus_per_node: int) -> tuple[Point, ...] | str:
    """Return the merged points of whole nodes of a published series, [[GPUs, rate], ...], or why it has none."""
    points = []
    for entry in values if isinstance(values, list) else ():
        if (
            not isinstance(entry, list)
            or len(entry) != 2
            or any(isinstance(one, bool) or not isinstance(one, int | float) for one in entry)
        ):
            return "not pairs of numbers"
        gpus, rate = entry
        if not (0 < gpus <= NODES * gpus_per_node and 0 < rate < math.inf and gpus == int(gpus)):
            return "a number of GPUs, or a rate, that is none"
        if gpus % gpus_per_node == 0:
            points.append(Point(int(gpus) // gpus_per_node, float(rate)))
    try:
        return merged(points) if points else f"no whole node of {gpus_per_node} GPUs"
    except ValueError as error:
        return str(error)


def trials_of(document: str, series: int, points: Sequence[Point]) -> list[Trial]:
    """Predict each point of a series, but for the first two, from those before any that FARTHEST allows."""
    trials = []
    for count in range(2, len(points)):
        known = points[:count]
        if why_no_model(known):
            continue
        model, largest = exchange_fit(known), known[-1].nodes
        for target in points[count:]:
            if target.nodes <= FARTHEST * largest:
                predicted = target.nodes / model.at(1 - 1 / target.nodes)
                error = math.log(predicted / target.rate)
                trials.append(Trial(document, series, target.nodes / largest, error, growth(model, largest, target.nodes)))
    return trials


def conformal_quantile(scores: Sequence[float], level: float) -> float:
    """Return what the next score does not exceed with probability `level`: the (n + 1) level-th smallest, at the most the largest."""
    return sorted(scores)[min(len(scores), math.ceil((len(scores) + 1) * level)) - 1]


def covered(trials: Sequence[Trial], level: float) -> tuple[float, int] | None:
    """Return the share of trials whose interval, made from the other documents, holds the truth, and their number; None without another."""
    held, count = 0, 0
    for document in {one.document for one in trials}:
        others = [one.scaled for one in trials if one.document != document]
        if others:
            limit = conformal_quantile(others, level)
            own = [one.scaled <= limit for one in trials if one.document == document]
            held, count = held + sum(own), count + len(own)
    return (held / count, count) if count else None


def by_factor(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    """Group trials by the least of the factors 2 and FARTHEST that they do not exceed; a factor without any is left out."""
    groups: dict[int, list[Trial]] = {2: [], FARTHEST: []}
    for one in trials:
        groups[2 if one.factor <= 2 else FARTHEST].append(one)
    return {factor: group for factor, group in groups.items() if group}


def relative_errors(trials: Sequence[Trial]) -> tuple[float, float]:
    """Return the median and the 90th percentile of the relative errors of the rate."""
    errors = sorted(abs(math.expm1(one.log_error)) for one in trials)

    def percentile(level: float) -> float:
        place = level * (len(errors) - 1)
        below = math.floor(place)
        return errors[below] + (place - below) * (errors[min(below + 1, len(errors) - 1)] - errors[below])

    return percentile(0.5), percentile(0.9)


def errors_of(trials: Sequence[Trial], made_by: str) -> Errors:
    """Make the contents of prediction_errors.json. Raises ValueError where a factor has fewer than two documents."""
    factors = []
    for factor, group in by_factor(trials).items():
        held = covered(group, LEVEL)
        if held is None:
            raise ValueError(f"x{factor}: one document says nothing about another")
        median, p90 = relative_errors(group)
        factors.append(
            FactorErrors(
                factor=factor,
                predictions=len(group),
                series=len({one.series for one in group}),
                documents=len({one.document for one in group}),
                scaled=round(conformal_quantile([one.scaled for one in group], LEVEL), 4),
                median=round(median, 4),
                p90=round(p90, 4),
                covered=round(held[0], 3),
            )
        )
    return Errors(made_by=made_by, level=LEVEL, factors=tuple(factors))


def errors_text(errors: Errors) -> str:
    """Return the text of prediction_errors.json."""
    return json.dumps(msgspec.to_builtins(errors), indent=1) + "\n"
