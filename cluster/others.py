"""Who else works on this machine: processes that are neither ours nor the kernel's, and how many cores they used for a moment."""

from __future__ import annotations

import pwd
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from base.logs import printable
from cluster.processes import TICKS_PER_S, ProcessState, all_processes, descendants

LOOK_S: Final = 1.0
BUSY_CORES: Final = 0.2
"""What a quiet machine's own services use at most."""
MOST_NAMED: Final = 3
KERNEL: Final = 2
"""kthreadd, the parent of the kernel's own threads: they work for whoever reads and writes, us included."""


def others_busy(ours: int, look_s: float = LOOK_S) -> dict[str, Any]:
    """`cores` that processes of others used during `look_s` seconds, `busy` if that is more than BUSY_CORES, and the busiest by `names`.
    Ours are the process `ours`, what it descends from and what descends from it."""
    before = all_processes()
    started = time.monotonic()
    time.sleep(look_s)
    after = {state.pid: state for state in all_processes()}
    cores = used_cores({state.pid: state.cpu for state in before}, after, ours, time.monotonic() - started)
    busiest = sorted(cores, key=lambda pid: -cores[pid])[:MOST_NAMED]
    total = sum(cores.values())
    return {"cores": total, "busy": total > BUSY_CORES, "names": [_name(pid) for pid in busiest]}


def used_cores(before: Mapping[int, int], after: Mapping[int, ProcessState], ours: int, seconds: float) -> dict[int, float]:
    """Pure: cores that each process of others used; `before` has the ticks of each pid. One that came meanwhile used all its ticks now."""
    own = family(after, ours)
    return {
        pid: (state.cpu - before.get(pid, 0)) / TICKS_PER_S / seconds
        for pid, state in after.items()
        if pid not in own and state.parent != KERNEL and state.cpu > before.get(pid, 0)
    }


def family(states: Mapping[int, ProcessState], member: int) -> frozenset[int]:
    """Pure: the process, what it descends from, and what descends from it."""
    above = {member}
    pid = states[member].parent if member in states else 0
    while pid in states and pid not in above:
        above.add(pid)
        pid = states[pid].parent
    return frozenset([*above, *descendants(member, states.values())])


def _name(pid: int) -> str:
    """`python3 of alice`."""
    try:
        command = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return f"process {pid}"
    try:
        user = pwd.getpwuid(owner).pw_name
    except KeyError:
        user = f"user {owner}"
    return printable(f"{command} of {user}")
