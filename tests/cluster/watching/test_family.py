"""Whose processor time it is: ours, the kernel's, or somebody else's; by what /proc tells of every process."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.processes import TICKS_PER_S, ProcessState
from cluster.watching.readers import kin_of, own_seconds, used_since

PARENTS = {1: 0, 2: 0, 10: 1, 11: 10, 12: 11, 13: 12, 20: 1, 21: 20, 30: 2, 40: 1, 41: 40}
"""init, kthreadd; a shell 10, Snakemake 11, supervisor 12, its node program 13; another's shell 20 and program 21; a kernel thread 30; a
container's shim 40, and what runs in it 41."""


def states(waited: dict[int, float] | None = None, **seconds: float) -> dict[int, ProcessState]:
    return {
        pid: ProcessState(pid, "R", parent, 0, ticks(seconds.get(f"p{pid}", 0)), ticks((waited or {}).get(pid, 0)))
        for pid, parent in PARENTS.items()
    }


def ticks(seconds: float) -> int:
    return round(seconds * TICKS_PER_S)


def test_ours_are_below_the_roots_and_what_is_marked() -> None:
    asked: list[int] = []

    def marked(state: ProcessState) -> bool:
        asked.append(state.pid)
        return state.pid == 41

    kin = kin_of(states(), [13, 12], marked)
    assert kin.ours == {12, 13, 41}
    assert kin.above == {1, 10, 11}
    assert set(asked) == {20, 21, 40, 41}, "nobody asks the kernel's threads, nor ours, for their environment"


def test_where_kthreadd_cannot_be_seen_its_number_is_anybody_s() -> None:
    """As in a pid namespace."""
    assert kin_of(states(), [13, 12], lambda state: state.pid == 30).ours == {12, 13}
    assert kin_of(states(), [13, 12], lambda state: state.pid == 30, kernel=None).ours == {12, 13, 30}


def test_what_has_ended_goes_on_counting_in_its_parent() -> None:
    kin = kin_of(states(), [13, 12], lambda _state: False)
    before = own_seconds(states(p13=1.0), kin, everywhere)
    after = own_seconds(states({12: 1.5}, p11=0.25), kin, everywhere)
    assert (before, after) == (1.0, 1.75)
    assert own_seconds(states({11: 9.0}), kin, everywhere) == 0.0, "what a shell above has waited for was none of ours"


def test_only_the_part_on_the_runs_cores_counts() -> None:
    kin = kin_of(states(), [13], lambda _state: False)
    assert own_seconds(states(p13=4.0), kin, lambda pid: 0.5 if pid == 13 else 1.0) == 2.0


def test_one_that_came_meanwhile_used_all_its_ticks_now() -> None:
    before = {pid: state for pid, state in states(p21=1.0, p20=1.0).items() if pid != 30}
    assert only(used_since(before, states(p20=1.0, p21=3.0, p30=0.5).values())) == {21: 2.0, 30: 0.5}
    again = {**states(), 21: ProcessState(21, "R", 20, start=5, cpu=ticks(0.5))}
    assert only(used_since(before, again.values())) == {21: 0.5}, "another process with the same number"


def only(used: dict[int, float], but: Iterable[int] = ()) -> dict[int, float]:
    return {pid: seconds for pid, seconds in used.items() if pid not in but}


def everywhere(_pid: int) -> float:
    return 1.0
