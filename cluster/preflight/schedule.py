"""Who exchanges with whom, and how much: pure. Every node is in one pair at a time, so a slow one delays its partner and nobody else."""

from __future__ import annotations

from typing import Final

from cluster.limits import LATE_PARTNER_S, RING_S

MIB: Final = 1 << 20
MOST_ROUNDS: Final = 16
"""Of a tournament: with more than 17 nodes not every pair exchanges, but each node does with 16 others, whatever their number."""
RING_BYTES: Final = 2 * MIB
LANE: Final = 8
"""Bytes of a number of the all-reduce."""
AGAIN: Final = 4
"""Exchanges of a second tournament are so many times as large, and may take so much longer."""


def rounds(nodes: int) -> list[int]:
    """The rounds of a tournament that are played: all of them, or as many as time allows, evenly spread."""
    every = _even(nodes) - 1
    if every <= MOST_ROUNDS:
        return list(range(every))
    return [place * every // MOST_ROUNDS for place in range(MOST_ROUNDS)]


def partner(nodes: int, number: int, index: int) -> int | None:
    """Whom node `index` meets in round `number`: the circle method. None: it rests, as one of an odd number does in every round."""
    last = _even(nodes) - 1
    if index == last:
        found = number * (last + 1) // 2 % last
    else:
        found = (number - index) % last
        found = last if found == index else found
    return found if found < nodes else None


def exchange_bytes(nodes: int, again: bool = False) -> int:
    """What each of a pair sends to the other: less with more rounds, more where somebody looks slow."""
    return (AGAIN if again else 1) * max(MIB, min(4 * MIB, 16 * MIB // len(rounds(nodes))))


def exchange_s(nodes: int, again: bool = False) -> float:
    """When an exchange is cut: then what has come tells the rate."""
    limit_s = max(0.05, min(0.25, 0.8 / len(rounds(nodes))))
    return max(0.5, AGAIN * limit_s) if again else limit_s


def tournament_s(nodes: int, limit_s: float) -> float:
    """The longest a tournament of exchanges of at most `limit_s` may take."""
    return len(rounds(nodes)) * limit_s + LATE_PARTNER_S


def measure_s(nodes: int, limit_s: float) -> float:
    """The longest that all-reduce and tournament may take."""
    return RING_S + tournament_s(nodes, limit_s)


def chunk_lanes(nodes: int) -> int:
    """Numbers in each of the `nodes` chunks of the ring all-reduce."""
    return max(1, RING_BYTES // LANE // nodes)


def _even(nodes: int) -> int:
    return nodes + nodes % 2
