"""Who else works on this machine: from two readings of /proc, ours left out."""

from __future__ import annotations

import os

from cluster.others import BUSY_CORES, family, others_busy, used_cores
from cluster.processes import TICKS_PER_S, ProcessState

PARENTS = {1: 0, 2: 0, 10: 1, 11: 10, 12: 11, 13: 12, 20: 1, 21: 20, 30: 2}
"""init, kthreadd; a shell 10, Snakemake 11, supervisor 12, its node program 13; another's shell 20 and program 21; a kernel thread 30."""


def states(**ticks: int) -> dict[int, ProcessState]:
    return {pid: ProcessState(pid, "R", parent, 0, ticks.get(f"p{pid}", 0)) for pid, parent in PARENTS.items()}


def test_the_family_is_what_is_above_and_below() -> None:
    assert family(states(), 12) == {1, 10, 11, 12, 13}
    assert family(states(), 99) == {99}


def test_only_others_count_and_the_kernel_does_not() -> None:
    before = {pid: 0 for pid in PARENTS}
    after = states(p11=TICKS_PER_S, p13=5 * TICKS_PER_S, p21=TICKS_PER_S, p30=TICKS_PER_S)
    assert used_cores(before, after, 12, 2.0) == {21: 0.5}


def test_one_that_came_meanwhile_counts() -> None:
    assert used_cores({}, states(p21=TICKS_PER_S), 12, 1.0) == {21: 1.0}


def test_a_look_at_this_machine() -> None:
    found = others_busy(os.getpid(), look_s=0.01)
    assert found["busy"] == (found["cores"] > BUSY_CORES)
    assert len(found["names"]) <= 3
