"""Find slow nodes from measured rates. Pure.

A node is slow where the best of its exchanges is: any other is its partner's fault, or the link's, or chance. The reference is the median
over the nodes of the best that each reached. Time in which one of the two ends was busy, or waited for a core, is not the network's. Nobody
is named who reaches half of the reference, nor for a few milliseconds, nor where there is nobody to compare with.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from base.humanize import some
from cluster.limits import LATE_PARTNER_S

# What a preflight measures and finds: values.


class Endpoint(NamedTuple):
    """The address and port at which a node listens."""

    name: str
    address: str
    port: int
    interface: str | None = None


class Reach(NamedTuple):
    """One node's connection to another: how long it took, or what happened instead."""

    seconds: float | None
    problem: str | None


class Sample(NamedTuple):
    """The bytes that one node received from another, and the time they took."""

    bytes: int
    seconds: float
    busy_s: float = 0.0
    """The time that the processes of both ends had a core, or waited for one."""

    @property
    def mbit(self) -> float:
        return self.bytes * 8e-6 / self.seconds if self.seconds > 0 else 0.0

    @property
    def network_s(self) -> float:
        """Return the time in which neither end was busy, so that only the network can be the cause."""
        return max(0.0, self.seconds - self.busy_s)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence that names a node or a link. `fatal`: the run cannot work on it."""

    text: str
    nodes: tuple[int, ...] = ()
    fatal: bool = False


Rates = Mapping[tuple[int, int], Sample]
"""(from, to) -> what came."""


def describe_failure(places: Sequence[Endpoint], pair: tuple[int, int], problem: str) -> str:
    """Describe a failed connection: from where, to where, over what, and what happened."""
    origin, target = places[pair[0]], places[pair[1]]
    over = f" over {origin.interface}" if origin.interface else ""
    return f"{origin.name} ({origin.address}{over}) to {target.name} ({target.address} port {target.port}): {problem}"


SLOW_RATIO: Final = 0.5
EXCESS_S: Final = 0.010
"""Longer by this in every measurement: named."""
FLOOR_MBIT: Final = 100.0
"""Every network of a cluster is faster; that of a wrong interface may not be."""


def best_of(attempts: Sequence[Rates]) -> dict[tuple[int, int], Sample]:
    """Return the best of several measurements: a chance event does not slow three of them."""
    found: dict[tuple[int, int], Sample] = {}
    for attempt in attempts:
        for pair, sample in attempt.items():
            if pair not in found or sample.mbit > found[pair].mbit:
                found[pair] = sample
    return found


def judge_rates(places: Sequence[Endpoint], rates: Rates, excess_s: float = EXCESS_S) -> list[Finding]:
    """Find slow nodes, links that pass no data, and a network that is slow as a whole."""
    lost = "they connect, but no data passes: packets of full size are lost (compare the MTU of interfaces and switches)"
    dead = [
        Finding(text=describe_failure(places, pair, lost), nodes=tuple(sorted(pair)), fatal=True)
        for pair, sample in sorted(rates.items())
        if sample.bytes == 0
    ]
    if dead or not rates:
        return dead
    best: dict[int, Sample] = {}
    for (origin, target), sample in rates.items():
        slower = min(sample, rates.get((target, origin), sample), key=lambda way: way.mbit)
        best[origin] = max(slower, best.get(origin, slower), key=lambda way: way.mbit)
    reference = sorted(sample.mbit for sample in best.values())[len(best) // 2]
    slow = [index for index, sample in sorted(best.items()) if _is_slow(sample, reference, excess_s)]
    return [*(_slow_node(places, rates, index, reference) for index in slow), *_slow_network(places, reference)]


def _is_slow(sample: Sample, reference: float, excess_s: float) -> bool:
    """Return True if the network took twice as long as at the rate `reference`, and longer by `excess_s`."""
    expected_s = sample.bytes * 8e-6 / reference if reference else 0.0
    return sample.network_s > expected_s / SLOW_RATIO and sample.network_s - expected_s >= excess_s


def _slow_node(places: Sequence[Endpoint], rates: Rates, index: int, reference: float) -> Finding:
    sends = sorted(sample.mbit for (origin, _), sample in rates.items() if origin == index)
    takes = sorted(sample.mbit for (_, target), sample in rates.items() if target == index)
    told = f"it sends at {_mbit(sends[len(sends) // 2])} and receives at {_mbit(takes[len(takes) // 2])} (medians)"
    over = f" over {places[index].interface}" if places[index].interface else ""
    advice = "what runs on it will hold up the others; look at its cable, port and link speed, or leave it out"
    return Finding(
        text=f"{places[index].name} is slow on the network{over}: {told}, the others at {_mbit(reference)}; {advice}", nodes=(index,)
    )


def _slow_network(places: Sequence[Endpoint], reference: float) -> list[Finding]:
    if reference >= FLOOR_MBIT:
        return []
    over = ", ".join(sorted({place.interface for place in places if place.interface})) or "their addresses"
    text = f"the network between the nodes is slow: {_mbit(reference)} over {over}; the site key network_interface chooses another one"
    return [Finding(text=text)]


def _mbit(value: float) -> str:
    return f"{value:,.0f} Mbit/s" if value >= 10 else f"{value:.2g} Mbit/s"


class RateSummary(NamedTuple):
    """Median and least rate over the ordered pairs of nodes, and the pair that has the least."""

    median_mbit: float | None = None
    min_mbit: float | None = None
    slowest: tuple[int, int] | None = None


def summary(rates: Rates) -> RateSummary:
    """Return the median and the least rate, and the slowest pair."""
    ordered = sorted((sample.mbit, pair) for pair, sample in rates.items())
    return RateSummary(ordered[len(ordered) // 2][0], *ordered[0]) if ordered else RateSummary()


# What the measurements of a preflight mean so far, and whether more of them are needed: pure.


SUSPECT_S: Final = 0.004
"""Longer than the reference by this: measured again."""
ATTEMPTS: Final = 3
MAX_PAIRS: Final = 8


def unreachable(places: Sequence[Endpoint], reached: Mapping[tuple[int, int], Reach]) -> Finding | None:
    """Describe the ordered pairs (from, to) that cannot connect, and the node in most of them. Returns None if all can."""
    failed = {pair: reach for pair, reach in sorted(reached.items()) if reach.problem is not None}
    if not failed:
        return None
    shown = some([describe_failure(places, pair, str(reach.problem)) for pair, reach in failed.items()], MAX_PAIRS, "; ")
    counts = Counter(index for pair in failed for index in pair)
    (accused, most), *others = counts.most_common(2)
    nodes, blame = tuple(sorted(counts)), ""
    if others[0][1] < most:  # else nobody is in most of them
        nodes = (accused,)
        blame = f". {places[accused].name} is in {most} of these {len(failed)}: look there first (address, interface, firewall, cable)"
    what = "this pair of nodes" if len(failed) == 1 else f"these pairs of nodes ({len(failed)} of {len(reached)})"
    return Finding(text=f"the network does not connect {what}: {shown}{blame}", nodes=nodes, fatal=True)


def network_verdict(places: Sequence[Endpoint], attempts: Sequence[Rates]) -> tuple[list[Finding], bool]:
    """Return what the measurements so far mean, and whether they are enough: nobody looks slow, or there were three."""
    findings = judge_rates(places, best_of(attempts), SUSPECT_S if len(attempts) == 1 else EXCESS_S)
    return findings, not findings or len(attempts) >= ATTEMPTS


# Who exchanges with whom, and how much: pure. Every node is in one pair at a time, so a slow one delays its partner and nobody else.


MIB: Final = 1 << 20
MAX_ROUNDS: Final = 16
"""The most rounds: with more than 17 nodes not every pair exchanges, but each node does with 16 others, whatever their number."""
AGAIN: Final = 4
"""Exchanges of a second tournament are so many times as large, and may take so much longer."""


def rounds(nodes: int) -> list[int]:
    """Return the rounds of a tournament that are played: all of them, or as many as time allows, evenly spread."""
    every = _even(nodes) - 1
    if every <= MAX_ROUNDS:
        return list(range(every))
    return [place * every // MAX_ROUNDS for place in range(MAX_ROUNDS)]


def partner(nodes: int, number: int, index: int) -> int | None:
    """Return the partner of node `index` in round `number` by the circle method, or None if the node rests."""
    last = _even(nodes) - 1
    if index == last:
        found = number * (last + 1) // 2 % last
    else:
        found = (number - index) % last
        found = last if found == index else found
    return found if found < nodes else None


def exchange_bytes(nodes: int, again: bool = False) -> int:
    """Return the bytes that each of a pair sends: fewer with more rounds, more `again` where a node looks slow."""
    return (AGAIN if again else 1) * max(MIB, min(4 * MIB, 16 * MIB // len(rounds(nodes))))


def exchange_s(nodes: int, again: bool = False) -> float:
    """Return the time limit of an exchange, after which the bytes so far give the rate."""
    limit_s = max(0.05, min(0.25, 0.8 / len(rounds(nodes))))
    return max(0.5, AGAIN * limit_s) if again else limit_s


def tournament_s(nodes: int, limit_s: float) -> float:
    """Return the time limit of a tournament of exchanges of at most `limit_s`."""
    return len(rounds(nodes)) * limit_s + LATE_PARTNER_S


def _even(nodes: int) -> int:
    return nodes + nodes % 2
