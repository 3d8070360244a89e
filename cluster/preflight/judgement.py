"""What the measurements of a preflight mean so far, and whether more of them are needed: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from base.units import some
from cluster.preflight.rates import EXCESS_S, best_of, judge_rates
from cluster.preflight.results import Finding, Place, Rates, Reach, told

SUSPECT_S: Final = 0.004
"""Longer than the reference by this: measured again."""
ATTEMPTS: Final = 3
MOST_PAIRS: Final = 8


def unreachable(places: Sequence[Place], reached: Mapping[tuple[int, int], Reach]) -> Finding | None:
    """The ordered pairs (from, to) that cannot connect, and the node that most of them accuse; None if all can."""
    failed = {pair: reach for pair, reach in sorted(reached.items()) if reach.problem is not None}
    if not failed:
        return None
    shown = some([told(places, pair, str(reach.problem)) for pair, reach in failed.items()], MOST_PAIRS, "; ")
    accused = _most_accused(failed, len(places))
    blame = ""
    if accused is not None:
        count = sum(accused in pair for pair in failed)
        blame = f". {places[accused].name} is in {count} of these {len(failed)}: look there first (address, interface, firewall, cable)"
    what = "this pair of nodes" if len(failed) == 1 else f"these pairs of nodes ({len(failed)} of {len(reached)})"
    return Finding(text=f"the network does not connect {what}: {shown}{blame}", nodes=_involved(failed, accused), fatal=True)


def _most_accused(failed: Iterable[tuple[int, int]], nodes: int) -> int | None:
    """The node in more failed pairs than any other; None where two share that, or only one pair of nodes is concerned."""
    counts = [0] * nodes
    for pair in failed:
        for index in pair:
            counts[index] += 1
    most = max(counts)
    return counts.index(most) if counts.count(most) == 1 else None


def _involved(failed: Iterable[tuple[int, int]], accused: int | None) -> tuple[int, ...]:
    return tuple(sorted({index for pair in failed for index in pair})) if accused is None else (accused,)


def verdict(places: Sequence[Place], attempts: Sequence[Rates], rings: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[list[Finding], bool]:
    """What the measurements so far say, and whether that is all there is to ask: nobody looks slow, two in a row name the same, or there
    were three. `rings`: all-reduces, of fewer measurements."""
    excess_s = SUSPECT_S if len(attempts) == 1 else EXCESS_S
    findings = [*judge_all_reduce(places, rings), *judge_rates(places, best_of(attempts), excess_s)]
    if not findings or len(attempts) >= ATTEMPTS:
        return findings, True
    last = [[(finding.nodes, finding.fatal) for finding in judge_rates(places, attempt)] for attempt in attempts[-2:]]
    agreed = len(last) == 2 and last[0] == last[1] and not any(fatal for _, fatal in last[0])
    return findings, agreed and (len(rings) >= 2 or any(all_reduced(ring) for ring in rings))


def all_reduced(ring: Sequence[Mapping[str, Any]]) -> bool:
    """Whether this all-reduce ended well on all nodes."""
    return all(answer["problem"] is None for answer in ring)


def judge_all_reduce(places: Sequence[Place], rings: Sequence[Sequence[Mapping[str, Any]]]) -> list[Finding]:
    """`rings`: per measurement and node {seconds, problem, damaged}. Wrong bytes count at once, an all-reduce that does not end when none
    of them did."""
    found = []
    for ring in rings:
        for index, answer in enumerate(ring):
            if answer["damaged"]:
                previous = places[index - 1].name
                seen = f"seen on {places[index].name}, to which {previous} sends"
                text = f"an all-reduce over the network went wrong: {answer['problem']}, {seen}"
                found.append(Finding(text=text, nodes=((index - 1) % len(places), index), fatal=True))
    if not found and rings and not any(all_reduced(ring) for ring in rings):
        told = {str(answer["problem"]): places[index].name for index, answer in enumerate(rings[-1]) if answer["problem"]}
        found = [
            Finding(text=f"the all-reduce over the network did not work: {'; '.join(f'{name}: {text}' for text, name in told.items())}")
        ]
    return found
