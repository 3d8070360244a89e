"""Which node or link is slow: from rates to findings. Pure.

A node is slow where most of its exchanges are: a single slow exchange is its partner's fault, or the link's, or chance. The reference is
the median over the nodes of the best that each reached. Time in which one of the two ends was busy, or waited for a core, is not the
network's. Nobody is named who reaches half of the reference, nor for a few milliseconds, nor where there is nobody to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cluster.preflight.results import Finding, Place, Rates, Sample, told

SLOW_RATIO: Final = 0.5
EXCESS_S: Final = 0.010
"""Longer by this in every measurement: named."""
FLOOR_MBIT: Final = 100.0
"""Below it no network of a cluster is; that of a wrong interface may be."""


def best_of(attempts: Sequence[Rates]) -> dict[tuple[int, int], Sample]:
    """The best of several measurements: what makes one slow by chance does not come three times."""
    found: dict[tuple[int, int], Sample] = {}
    for attempt in attempts:
        for pair, sample in attempt.items():
            if pair not in found or sample.mbit > found[pair].mbit:
                found[pair] = sample
    return found


def judge_rates(places: Sequence[Place], rates: Rates, excess_s: float = EXCESS_S) -> list[Finding]:
    """Slow nodes, then slow links between nodes that are not, links through which nothing passes, a network that is slow as a whole."""
    dead = [_dead(places, pair) for pair, sample in sorted(rates.items()) if sample.bytes == 0]
    if dead or not rates:
        return dead
    pairs = _pairs(rates)
    reference = _reference(pairs, len(places))
    slow = _slow_nodes(pairs, len(places), reference, excess_s)
    return [
        *[_slow_node(places, rates, index, reference) for index in slow],
        *_slow_links(places, rates, set(slow), excess_s),
        *_slow_network(places, reference),
    ]


def _dead(places: Sequence[Place], pair: tuple[int, int]) -> Finding:
    problem = "they connect, but no data passes: packets of full size are lost (compare the MTU of interfaces and switches)"
    text = told(places, pair, problem)
    return Finding(text=text, nodes=tuple(sorted(pair)), fatal=True)


def _pairs(rates: Rates) -> dict[tuple[int, int], Sample]:
    """(smaller, larger index) -> the slower direction."""
    found: dict[tuple[int, int], Sample] = {}
    for (origin, target), sample in rates.items():
        pair = (min(origin, target), max(origin, target))
        if pair not in found or sample.mbit < found[pair].mbit:
            found[pair] = sample
    return found


def _of(pairs: Rates, index: int, among: set[int] | None = None) -> list[Sample]:
    """The samples of one node, slowest first."""
    chosen = [sample for pair, sample in pairs.items() if index in pair and (among is None or among.issuperset(pair))]
    return sorted(chosen, key=lambda sample: sample.mbit)


def _reference(pairs: Rates, nodes: int) -> float:
    best = sorted(samples[-1].mbit for index in range(nodes) if (samples := _of(pairs, index)))
    return best[len(best) // 2]


def _slow(sample: Sample, reference: float, excess_s: float) -> bool:
    """Whether the network took twice as long as at the rate `reference`, and by so much longer."""
    expected_s = sample.bytes * 8e-6 / reference if reference else 0.0
    return sample.network_s > expected_s / SLOW_RATIO and sample.network_s - expected_s >= excess_s


def _slow_nodes(pairs: Rates, nodes: int, reference: float, excess_s: float) -> list[int]:
    """The worst by the median of its exchanges, then the worst of what is left without it, and so on: at most half of them."""
    left = set(range(nodes))
    found: list[int] = []
    while len(found) < nodes // 2:
        samples = {index: own for index in sorted(left) if (own := _of(pairs, index, left))}
        if not samples:
            break
        worst = min(samples, key=lambda index: (_middle(samples[index]).mbit, sum(sample.mbit for sample in samples[index])))
        if not _slow(_middle(samples[worst]), reference, excess_s):
            break
        found.append(worst)
        left.remove(worst)
    return sorted(found)


def _middle(ordered: Sequence[Sample]) -> Sample:
    """The median, the better of two."""
    return ordered[len(ordered) // 2]


def _slow_node(places: Sequence[Place], rates: Rates, index: int, reference: float) -> Finding:
    sends = sorted(sample.mbit for (origin, _), sample in rates.items() if origin == index)
    takes = sorted(sample.mbit for (_, target), sample in rates.items() if target == index)
    told = f"it sends at {_mbit(sends[len(sends) // 2])} and receives at {_mbit(takes[len(takes) // 2])} (medians)"
    over = f" over {places[index].interface}" if places[index].interface else ""
    advice = "what runs on it will hold up the others; look at its cable, port and link speed, or leave it out"
    return Finding(
        text=f"{places[index].name} is slow on the network{over}: {told}, the others at {_mbit(reference)}; {advice}", nodes=(index,)
    )


def _slow_links(places: Sequence[Place], rates: Rates, slow: set[int], excess_s: float) -> list[Finding]:
    best = {
        index: max(sample.mbit for pair, sample in rates.items() if index in pair) for index in {node for pair in rates for node in pair}
    }
    found = []
    for (origin, target), sample in sorted(rates.items()):
        reference = min(best[origin], best[target])
        if not slow.intersection((origin, target)) and _slow(sample, reference, excess_s):
            names = f"from {places[origin].name} to {places[target].name}"
            text = f"the link {names} is slow: {_mbit(sample.mbit)}, where both reach {_mbit(reference)} otherwise"
            found.append(Finding(text=text, nodes=(origin, target)))
    return found


def _slow_network(places: Sequence[Place], reference: float) -> list[Finding]:
    if reference >= FLOOR_MBIT:
        return []
    over = ", ".join(sorted({place.interface for place in places if place.interface})) or "their addresses"
    text = f"the network between the nodes is slow: {_mbit(reference)} over {over}; the site key network_interface chooses another one"
    return [Finding(text=text)]


def _mbit(value: float) -> str:
    return f"{value:,.0f} Mbit/s" if value >= 10 else f"{value:.2g} Mbit/s"


def summary(rates: Rates) -> dict[str, float | tuple[int, int] | None]:
    """Median and least rate over the ordered pairs, and the pair that has it."""
    ordered = sorted((sample.mbit, pair) for pair, sample in rates.items())
    if not ordered:
        return {"rate_mbit_median": None, "rate_mbit_min": None, "slowest": None}
    return {"rate_mbit_median": ordered[len(ordered) // 2][0], "rate_mbit_min": ordered[0][0], "slowest": ordered[0][1]}
