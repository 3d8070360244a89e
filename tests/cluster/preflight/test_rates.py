"""Who is named by the results of a preflight, and who is not."""

import random
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from cluster.preflight import rates as judgement
from cluster.preflight.rates import (
    EXCESS_S,
    MAX_ROUNDS,
    MIB,
    SUSPECT_S,
    Endpoint,
    Reach,
    Sample,
    best_of,
    exchange_bytes,
    exchange_s,
    judge_rates,
    network_verdict,
    partner,
    rounds,
    summary,
    unreachable,
)

Pair = tuple[int, int]


def places(nodes: int) -> list[Endpoint]:
    return [Endpoint(f"n{index}", f"10.0.0.{index}", 40000 + index, "eth0") for index in range(nodes)]


def reached(nodes: int, failed: Iterable[Pair] = (), problem: str = "no answer within 4 s") -> dict[Pair, Reach]:
    failed = set(failed)
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    return {pair: Reach(None, problem) if pair in failed else Reach(0.001, None) for pair in pairs}


def rates(nodes: int, mbit: Callable[[int, int], float], size: int = 4 * MIB) -> dict[Pair, Sample]:
    """A tournament at these rates, from one node to another."""
    met = {(a, b) for number in rounds(nodes) for a in range(nodes) if (b := partner(nodes, number, a)) is not None}
    return {(a, b): Sample(size, size * 8e-6 / mbit(a, b)) for a, b in met}


def slow_with(*slow: int, fast: float = 10_000.0, by: float = 10.0) -> Callable[[int, int], float]:
    return lambda a, b: fast / by if a in slow or b in slow else fast


def named(nodes: int, mbit: Callable[[int, int], float]) -> list[tuple[int, ...]]:
    return [finding.nodes for finding in judge_rates(places(nodes), rates(nodes, mbit))]


# -- reaching


def test_all_that_connect_are_no_finding() -> None:
    assert unreachable(places(4), reached(4)) is None


ONE_PAIR = "the network does not connect this pair of nodes: n2 (10.0.0.2 over eth0) to n3 (10.0.0.3 port 40003): Connection refused"


@pytest.mark.parametrize(
    ("nodes", "failed", "involved", "words"),
    [
        (4, [(2, 3)], (2, 3), ONE_PAIR),
        (4, [(a, b) for a in range(4) for b in range(4) if a != b and 1 in (a, b)], (1,), "pairs of nodes (6 of 12)"),
        (4, [(1, 0), (0, 1), (1, 2)], (1,), "n1 is in 3 of these 3: look there first"),
        (5, [(a, 3) for a in (0, 1, 2, 4)], (3,), "n3 is in 4 of these 4: look there first"),
        (4, [(0, 1), (2, 3)], (0, 1, 2, 3), "pairs of nodes (2 of 12)"),
        (8, [(a, b) for a in range(8) for b in range(8) if a != b], tuple(range(8)), "and 48 more"),
    ],
)
def test_pairs_that_do_not_connect_are_named_and_the_node_in_most_of_them_is_accused(
    nodes: int, failed: list[Pair], involved: tuple[int, ...], words: str
) -> None:
    finding = unreachable(places(nodes), reached(nodes, failed, "Connection refused"))
    assert finding is not None
    assert finding.fatal
    assert finding.nodes == involved
    assert words in finding.text
    assert (finding.text == words) == (words == ONE_PAIR)
    assert ("look there first" in finding.text) == (len(involved) == 1)


# -- rates


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 16, 17, 64, 65])
def test_a_healthy_network_with_noise_names_nobody(nodes: int) -> None:
    for seed in range(20 if nodes < 64 else 5):  # of 64 nodes each one has a thousand pairs
        chance = random.Random(seed)
        assert named(nodes, lambda _a, _b, chance=chance: 9000 * chance.uniform(0.6, 1.0)) == []  # type: ignore[misc]


def test_what_a_busy_core_costs_names_nobody() -> None:
    """A few milliseconds on top of three: a third of the rate, and no fault of the network's."""
    size = 4 * MIB
    found = {pair: Sample(size, 0.003 + (0.009 if 2 in pair else 0)) for pair in rates(4, slow_with())}
    assert judge_rates(places(4), found) == []
    assert [finding.nodes for finding in judge_rates(places(4), found, SUSPECT_S)] == [(2,)]
    assert SUSPECT_S < EXCESS_S


def test_time_that_an_end_was_busy_is_not_the_network_s() -> None:
    size = 16 * MIB
    found = {pair: Sample(size, 0.09 if 2 in pair else 0.012, 0.08 if 2 in pair else 0.01) for pair in rates(4, slow_with())}
    assert judge_rates(places(4), found) == []
    idle = {pair: sample._replace(busy_s=0.01) for pair, sample in found.items()}
    assert [finding.nodes for finding in judge_rates(places(4), idle)] == [(2,)]


@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 16, 64, 100])
def test_one_slow_node_is_named_and_nobody_else(nodes: int) -> None:
    for slow in (0, nodes // 2, nodes - 1):
        assert named(nodes, slow_with(slow)) == [(slow,)]


def test_a_node_that_is_slow_one_way_only() -> None:
    (finding,) = judge_rates(places(4), rates(4, lambda a, _b: 95.0 if a == 2 else 940.0))
    assert finding.nodes == (2,)
    assert finding.text.startswith(
        "n2 is slow on the network over eth0: it sends at 95 Mbit/s and receives at 940 Mbit/s (medians), the others"
    )
    assert not finding.fatal


@pytest.mark.parametrize(
    ("nodes", "mbit", "found"),
    [
        (4, slow_with(1, 3), [(1,), (3,)]),
        (5, slow_with(0, 4), [(0,), (4,)]),
        (8, slow_with(1, 2, 6), [(1,), (2,), (6,)]),
        (64, slow_with(3, 30, 31, 60), [(3,), (30,), (31,), (60,)]),
        (8, lambda a, b: 10_000 / max({1: 100.0, 4: 10.0}.get(node, 1) for node in (a, b)), [(1,), (4,)]),
        (4, lambda a, b: 100 if (a, b) == (3, 0) else 10_000, []),  # a link: the record has the slowest pair
        (2, lambda _a, _b: 900, []),
        (5, lambda a, b: 10_000 if a < 2 and b < 2 else 1000, []),  # a link is as fast as the slower of its ends
    ],
)
def test_slow_nodes_are_all_named_and_no_others(nodes: int, mbit: Callable[[int, int], float], found: list[tuple[int, ...]]) -> None:
    assert named(nodes, mbit) == found


def test_a_network_slow_as_a_whole_is_told_once() -> None:
    (finding,) = judge_rates(places(4), rates(4, lambda _a, _b: 9.4))
    assert finding.nodes == ()
    assert finding.text == (
        "the network between the nodes is slow: 9.4 Mbit/s over eth0; the site key network_interface chooses another one"
    )


def test_a_pair_through_which_nothing_passes_is_fatal() -> None:
    found = {**rates(3, slow_with()), (0, 1): Sample(0, 0.5)}
    (finding,) = judge_rates(places(3), found)
    assert finding.fatal
    assert finding.text.startswith("n0 (10.0.0.0 over eth0) to n1 (10.0.0.1 port 40001): they connect, but no data passes")


def test_the_best_of_several_measurements_counts() -> None:
    slow, fast = rates(4, slow_with(1)), rates(4, slow_with())
    assert judge_rates(places(4), best_of([slow, fast])) == []
    assert best_of([slow]) == slow
    assert judge_rates(places(4), {}) == []


def test_the_summary_names_the_slowest_pair() -> None:
    found = summary(rates(4, lambda a, b: 50 if (a, b) == (2, 1) else 900))
    assert found.slowest == (2, 1)
    assert found.min_mbit == pytest.approx(50)
    assert found.median_mbit == pytest.approx(900)
    assert set(summary({})) == {None}


def test_it_is_measured_again_until_it_is_clear() -> None:
    slow, fast, other = rates(4, slow_with(2)), rates(4, slow_with()), rates(4, slow_with(1))
    assert network_verdict(places(4), [fast]) == ([], True)
    findings, clear = network_verdict(places(4), [slow])
    assert findings
    assert not clear
    assert network_verdict(places(4), [slow, fast]) == ([], True)
    findings, clear = network_verdict(places(4), [slow, slow, slow])
    assert ([finding.nodes for finding in findings], clear) == ([(2,)], True)
    assert network_verdict(places(4), [slow, other]) == ([], True), "each of the two is fast in one of them"
    dead = {**fast, (0, 1): Sample(0, 0.5)}
    assert [network_verdict(places(4), [dead] * count)[1] for count in (1, 2, 3)] == [False, False, True]
    assert network_verdict(places(4), [dead] * 3)[0][0].fatal


# -- the schedule


@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 16, 17, 64, 65, 1000])
def test_everybody_meets_everybody_once_or_sixteen_of_them(nodes: int) -> None:
    met: set[Pair] = set()
    for number in rounds(nodes):
        for index in range(nodes):
            other = partner(nodes, number, index)
            if other is None:
                assert nodes % 2
                continue
            assert other != index
            assert partner(nodes, number, other) == index
            assert (index, other) not in met
            met.add((index, other))
    expected = nodes - 1 if nodes <= 17 and nodes % 2 == 0 else None
    each = Counter(index for index, _ in met)
    assert len(each) == nodes
    assert expected is None or set(each.values()) == {expected}
    assert min(each.values()) >= min(nodes - 1, MAX_ROUNDS - 1)


@pytest.mark.parametrize("nodes", [2, 4, 16, 64, 1000])
def test_the_time_is_bounded_whatever_the_number_of_nodes(nodes: int) -> None:
    assert len(rounds(nodes)) <= MAX_ROUNDS
    assert len(rounds(nodes)) * exchange_bytes(nodes) <= 16 * MIB
    assert len(rounds(nodes)) * exchange_s(nodes) <= 0.81
    assert exchange_s(nodes, again=True) >= 0.5


def test_judgement_imports_nothing_that_acts() -> None:
    assert not {"socket", "asyncio", "time", "os"} & {*vars(judgement)}
