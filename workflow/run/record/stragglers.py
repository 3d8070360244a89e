"""Which rank keeps the others waiting. Pure.

In training a step ends after the exchange of gradients, at the same time on every rank: the longest step is that of an arbitrary rank.
What tells ranks apart is their own work: the step without the time in which the rank waited in the exchange. Only a program that tells
that time (`exchange_s`) lets a straggler be named; in inference nothing is exchanged, and the step is the rank's own work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from workflow.run.record.events import Step
from workflow.run.record.quantiles import median, quantile

SLOWER: Final = 1.1
QUARTERS: Final = 4
MIN_STEPS: Final = 20
"""A rank is named whose median work is SLOWER times the others', or more, in each quarter of a window of MIN_STEPS or more: noise that
goes on for many steps makes some rank the slowest of every window, but seldom the same one in all (`python -m benchmarks.stragglers`)."""

Work = Sequence[Sequence[float] | None]


def own_work(ranks: Sequence[Mapping[int, Step]], step: int, mode: str) -> list[float] | None:
    """Seconds that each rank worked in a step; None where one does not tell what it waited."""
    if mode == "infer":
        return [steps[step].seconds for steps in ranks]
    work = [took.seconds - took.exchange_s for steps in ranks if (took := steps[step]).exchange_s is not None]
    return work if len(work) == len(ranks) else None


def skew(work: Work) -> float | None:
    """95th percentile over steps of slowest rank / median rank, by their own work; None for one rank, and where that is not known."""
    ratios = []
    for own in work:
        if own is None or len(own) < 2:
            return None
        if (middle := median(own)) > 0:
            ratios.append(max(own) / middle)
    return quantile(sorted(ratios), 0.95) if ratios else None


def straggler(work: Work) -> int | None:
    """The rank whose own work is longer than that of the others; None where there is none, for one rank, and where that is not known."""
    known = [own for own in work if own is not None and len(own) > 1]
    if len(known) < max(len(work), MIN_STEPS):
        return None
    length = len(known) / QUARTERS
    quarters = [known[round(index * length) : round((index + 1) * length)] for index in range(QUARTERS)]
    named = {_slow_rank(quarter) for quarter in quarters}
    return named.pop() if len(named) == 1 else None


def _slow_rank(work: Sequence[Sequence[float]]) -> int | None:
    medians = [median(own) for own in zip(*work, strict=True)]
    rank = max(range(len(medians)), key=medians.__getitem__)
    others = median([seconds for index, seconds in enumerate(medians) if index != rank])
    return rank if medians[rank] >= SLOWER * others else None
