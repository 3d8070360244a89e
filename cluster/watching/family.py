"""Whose processor time it is: of the run's own processes, of the kernel's threads, or of others.

Ours are the roots (the node program, the supervisor) and all below them; what has the mark of the attempt in its environment, such as in
a container, and all below that; and of what the roots descend from, each process itself. A process that has ended goes on counting in its
parent, which waited for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cluster.processes import TICKS_PER_S, ProcessState

KERNEL: Final = 2
"""kthreadd, the parent of the kernel's own threads: they work for whoever reads and writes, us included."""
Share = Callable[[int], float]
"""Of a process: how much of its time is on the run's cores."""


@dataclass(frozen=True)
class Kin:
    """Pids. `above`: what ours descend from."""

    ours: frozenset[int]
    above: frozenset[int]


def kin_of(
    states: Mapping[int, ProcessState], roots: Collection[int], is_marked: Callable[[ProcessState], bool], kernel: int | None = KERNEL
) -> Kin:
    """Pure but for `is_marked`, which is asked of what is neither below the roots nor the kernel's. `kernel`: None where kthreadd cannot be
    seen, and a process of that number is an ordinary one."""
    above = ancestors(states, roots)
    children: dict[int, list[int]] = {}
    for state in states.values():
        children.setdefault(state.parent, []).append(state.pid)
    ours = _below(children, roots)
    marked = [
        pid
        for pid, state in states.items()
        if pid not in ours and pid not in above and kernel not in (pid, state.parent) and is_marked(state)
    ]
    return Kin(frozenset(ours | _below(children, marked)), frozenset(above))


def ancestors(states: Mapping[int, ProcessState], members: Iterable[int]) -> set[int]:
    """What the members descend from, themselves left out."""
    above: set[int] = set()
    for member in members:
        pid = states[member].parent if member in states else 0
        while pid in states and pid not in above:
            above.add(pid)
            pid = states[pid].parent
    return above.difference(members)


def _below(children: Mapping[int, list[int]], roots: Iterable[int]) -> set[int]:
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def own_seconds(states: Mapping[int, ProcessState], kin: Kin, share: Share) -> float:
    """What ours have used since they began."""
    below = (share(pid) * (states[pid].cpu + states[pid].waited) for pid in kin.ours if pid in states)
    above = (share(pid) * states[pid].cpu for pid in kin.above)
    return (sum(below) + sum(above)) / TICKS_PER_S


def used_since(before: Mapping[int, ProcessState], states: Iterable[ProcessState]) -> dict[int, float]:
    """Seconds that each has used since `before`. One that came meanwhile used all its ticks now."""
    used = {}
    for state in states:
        earlier = before.get(state.pid)
        ticks = state.cpu - (earlier.cpu if earlier is not None and earlier.start == state.start else 0)
        if ticks > 0:
            used[state.pid] = ticks / TICKS_PER_S
    return used


def share_of(cores: Collection[int]) -> Share:
    """By the cores that each may run on."""
    wanted = frozenset(cores)

    def share(pid: int) -> float:
        try:
            allowed = os.sched_getaffinity(pid)
        except OSError:  # it has ended
            return 1.0
        return len(wanted & allowed) / len(allowed)

    return share
