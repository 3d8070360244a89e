"""What is read of the machine, one reader for each kind of counter. A reader gives what it finds, and nothing where there is nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from base.foreign import printable
from base.machine_files import machine_number, machine_text
from cluster.processes import ProcessState, all_pids, all_processes, owner_of, state_of
from cluster.watching.family import KERNEL, Kin, kin_of, own_seconds, share_of, used_since
from cluster.watching.texts import PAGE_BYTES, parse_counts, parse_cpu, parse_pressure

Found = dict[str, Any]
Reader = Callable[[float], Found]
"""Is given the monotonic time; what it finds goes into that moment's line."""

OWN_SHARE: Final = 0.0015
ALL_SHARE: Final = 0.0007
CHEAP_SHARE: Final = 0.0004
"""Of one core: 0.4 % in all. On a machine with thousands of processes the pauses get longer instead."""
MOST_NAMED: Final = 3
LEAST_NAMED: Final = 0.05
"""Cores that somebody uses who is named."""
MOST_CLOCKS: Final = 8
"""Cores whose frequency is asked: the question wakes a core that sleeps."""
_MEMORY: Final = {"MemAvailable": "available"}
_PAGING: Final = {"pswpin": "swapped_in", "pswpout": "swapped_out"}
_SWITCHES: Final = {"voluntary_ctxt_switches": "voluntary", "nonvoluntary_ctxt_switches": "involuntary"}


def kernel_seen(proc: Path = Path("/proc")) -> bool:
    """Whether the kernel's threads are to be seen. In a pid namespace, and where /proc is mounted with hidepid, they are not."""
    return machine_text(proc / str(KERNEL) / "comm") == "kthreadd"


class Processors:
    """Processor time on the run's `cores`: all told, of ours, of the kernel's threads; and who of others used most of it."""

    def __init__(self, cores: Collection[int], roots: Collection[int], mark: str, proc: Path = Path("/proc")) -> None:
        self._cores, self._roots, self._mark, self._proc = frozenset(cores), tuple(roots), mark, proc
        self._share = share_of(cores)
        self._looked: dict[tuple[int, int], bool] = {}
        self._before: dict[int, ProcessState] = {}
        self._then = 0.0
        self._known: frozenset[int] = frozenset()
        self._kthreadd = KERNEL if kernel_seen(proc) else None
        self._kernel = 0.0
        self.kin = Kin(frozenset(), frozenset())

    def read_own(self, now: float) -> Found:  # noqa: ARG002 - as all
        """What the cores did, and ours on them. Of all other processes only those that are new are looked at."""
        pids = frozenset(all_pids())
        look_at = (pids - self._known) | self.kin.ours | self.kin.above
        states = {pid: state for pid in look_at if (state := state_of(pid)) is not None}
        cpu = parse_cpu(machine_text(self._proc / "stat"), self._cores)
        self.kin = kin_of(states, (*self._roots, *self.kin.ours), self._is_marked, self._kthreadd)
        self._known = pids
        if cpu is None:
            return {}
        faults = sum(states[pid].faults for pid in self.kin.ours if pid in states)
        return {**cpu._asdict(), "own": round(own_seconds(states, self.kin, self._share), 3), "faults": faults}

    def read_all(self, now: float) -> Found:
        """The kernel's threads, and the busiest of others: of every process there is."""
        states = {state.pid: state for state in all_processes()}
        self.kin = kin_of(states, self._roots, self._is_marked, self._kthreadd)
        used = used_since(self._before, states.values()) if self._before else {}
        kernel = {pid for pid in used if self._kthreadd in (pid, states[pid].parent)}
        self._kernel += sum(self._share(pid) * used[pid] for pid in kernel)
        ours = self.kin.ours | self.kin.above
        others = {pid: self._share(pid) * seconds for pid, seconds in used.items() if pid not in kernel and pid not in ours}
        busiest = sorted((pid for pid in others if others[pid] > LEAST_NAMED * (now - self._then)), key=lambda pid: -others[pid])
        named = [(name_of(pid), round(others[pid], 3)) for pid in busiest[:MOST_NAMED]]
        self._before, self._then = states, now
        self._looked = {key: marked for key, marked in self._looked.items() if key[0] in states}
        return {"busiest": named} if self._kthreadd is None else {"kernel": round(self._kernel, 3), "busiest": named}

    def _is_marked(self, state: ProcessState) -> bool:
        """Asked once of each process."""
        key = (state.pid, state.start)
        if key not in self._looked:
            environment = machine_text(self._proc / str(state.pid) / "environ")
            self._looked[key] = self._mark in environment.split("\0") and bool(self._mark)
        return self._looked[key]


def name_of(pid: int) -> str:
    """`python3 of alice`."""
    command, owner = machine_text(f"/proc/{pid}/comm"), owner_of(pid)
    return "a process that has ended" if not command or owner is None else printable(f"{command} of {owner}")


class Switches:
    """Context switches of the threads of our processes. A thread that ends takes what it did since the last look along."""

    def __init__(self, processors: Processors) -> None:
        self._processors = processors
        self._before: dict[str, tuple[int, int]] = {}
        self._sums = [0, 0]

    def __call__(self, now: float) -> Found:  # noqa: ARG002 - as all
        counts = {}
        for pid in self._processors.kin.ours:
            try:
                threads = os.listdir(f"/proc/{pid}/task")
            except OSError:
                continue
            for thread in threads:
                told = parse_counts(machine_text(f"/proc/{pid}/task/{thread}/status"), _SWITCHES)
                if len(told) == len(_SWITCHES):
                    counts[thread] = (told["voluntary"], told["involuntary"])
        for thread, now_counts in counts.items():
            before = self._before.get(thread, (0, 0))
            for place, (after, earlier) in enumerate(zip(now_counts, before, strict=True)):
                self._sums[place] += after - earlier if after >= earlier else after
        self._before = counts
        return {"switches": list(self._sums)} if counts else {}


def read_memory(now: float, proc: Path = Path("/proc")) -> Found:  # noqa: ARG001 - as all
    """What could be had of the memory, and what went out to the swap space and came back, since boot."""
    available = parse_counts(machine_text(proc / "meminfo"), _MEMORY)
    paged = parse_counts(machine_text(proc / "vmstat"), _PAGING)
    found: Found = {name: 1024 * kib for name, kib in available.items()}
    return found | {name: pages * PAGE_BYTES for name, pages in paged.items()}


def read_pressure(now: float, proc: Path = Path("/proc")) -> Found:  # noqa: ARG001 - as all
    """Seconds since boot in which tasks waited for processors, memory, disks; nothing where the kernel does not count them."""
    told = {kind: parse_pressure(machine_text(proc / "pressure" / kind)) for kind in ("cpu", "memory", "io")}
    return {f"{kind}_{who}": seconds for kind, found in told.items() if found is not None for who, seconds in found.items()}


class Clocks:
    """How fast some of the cores run, and how often the hardware has slowed all of them down because of heat."""

    def __init__(self, cores: Collection[int], root: Path = Path("/sys/devices/system/cpu")) -> None:
        every = sorted(cores)
        step = max(1, len(every) // MOST_CLOCKS)
        self._clocks = [root / f"cpu{core}" / "cpufreq" / "scaling_cur_freq" for core in every[::step][:MOST_CLOCKS]]
        self._counters = [root / f"cpu{core}" / "thermal_throttle" / "core_throttle_count" for core in every]

    def __call__(self, now: float) -> Found:  # noqa: ARG002 - as all
        khz = [value for path in self._clocks if (value := machine_number(path)) is not None]
        counts = [value for path in self._counters if (value := machine_number(path)) is not None]
        found: Found = {"mhz": [sum(khz) / len(khz) / 1e3, min(khz) / 1e3]} if khz else {}
        return found | ({"throttled": sum(counts)} if counts else {})


def machine_readers(cores: Collection[int], roots: Collection[int], mark: str) -> tuple[tuple[Reader, float], ...]:
    """Those of every node, and how much of one core each may cost."""
    processors = Processors(cores, roots, mark)
    cheap = (Switches(processors), read_memory, read_pressure, Clocks(cores))
    return (processors.read_own, OWN_SHARE), (processors.read_all, ALL_SHARE), *((reader, CHEAP_SHARE) for reader in cheap)
