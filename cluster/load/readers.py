"""Read the counters of this machine, one reader for each kind. A reader returns what it finds, and nothing where there is nothing."""

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from base.errors import SlipwayError
from base.sanitize import ascii_int, printable
from base.system import machine_number, machine_text
from cluster.gpus.energy import EnergyCounters
from cluster.gpus.listing import ECC, THROTTLE, App, query_apps, query_fields
from cluster.limits import GPU_WATCH_ANSWER_S, GPU_WATCH_EVERY_S
from cluster.processes import TICKS_PER_S, ProcessState, all_pids, all_processes, owner_of, state_of

# Whose processor time it is: of the run's own processes, of the kernel's threads, or of others.
#
# Ours are the roots (the node program, the supervisor) and all below them; what has the mark of the attempt in its environment, such as in
# a container, and all below that; and of what the roots descend from, each process itself. A process that has ended goes on counting in its
# parent, which waited for it.


KERNEL: Final = 2
"""kthreadd, the parent of the kernel's own threads: they work for whoever reads and writes, us included."""
Share = Callable[[int], float]
"""Map a pid to the share of its time on the run's cores."""


@dataclass(frozen=True)
class ProcessTrees:
    """The pids of our processes, and of their ancestors (`above`)."""

    ours: frozenset[int]
    above: frozenset[int]


def process_trees(
    states: Mapping[int, ProcessState], roots: Collection[int], is_marked: Callable[[ProcessState], bool], kernel: int | None = KERNEL
) -> ProcessTrees:
    """Sort processes into ours and what ours descend from. `is_marked` is asked of what is neither below the roots nor the kernel's.
    `kernel`: None where kthreadd cannot be seen, and a process of that number is an ordinary one."""
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
    return ProcessTrees(frozenset(ours | _below(children, marked)), frozenset(above))


def ancestors(states: Mapping[int, ProcessState], members: Iterable[int]) -> set[int]:
    """Return the ancestors of the members, without the members."""
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


def own_seconds(states: Mapping[int, ProcessState], trees: ProcessTrees, share: Share) -> float:
    """Return the processor time that ours have used since they began."""
    below = (share(pid) * (states[pid].cpu + states[pid].waited) for pid in trees.ours if pid in states)
    above = (share(pid) * states[pid].cpu for pid in trees.above)
    return (sum(below) + sum(above)) / TICKS_PER_S


def used_since(before: Mapping[int, ProcessState], states: Iterable[ProcessState]) -> dict[int, float]:
    """Return the seconds that each has used since `before`. A new process has used all its ticks since then."""
    used = {}
    for state in states:
        earlier = before.get(state.pid)
        ticks = state.cpu - (earlier.cpu if earlier is not None and earlier.start == state.start else 0)
        if ticks > 0:
            used[state.pid] = ticks / TICKS_PER_S
    return used


def share_of(cores: Collection[int]) -> Share:
    """Return a share by the cores that each may run on."""
    wanted = frozenset(cores)

    def share(pid: int) -> float:
        try:
            allowed = os.sched_getaffinity(pid)
        except OSError:  # it has ended
            return 1.0
        return len(wanted & allowed) / len(allowed)

    return share


# Parsers for the texts of /proc and /sys that tell how loaded a machine is: text in, numbers out; None for anything else.


PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Cpu(NamedTuple):
    """Seconds since boot, of some cores together: doing nothing, taken by the host of a virtual machine, serving interrupts."""

    idle: float
    steal: float
    interrupts: float


def parse_cpu(text: str, cores: Collection[int]) -> Cpu | None:
    """Parse /proc/stat. Seconds idle are measured by the kernel where all others are estimated by its tick, so that what is busy is what is
    not idle. Interrupts stand apart: they serve whoever sends and reads, us included."""
    idle = steal = interrupts = found = 0
    for line in text.splitlines():
        if not line.startswith("cpu"):
            break
        words = line.split()
        number = ascii_int(words[0][3:])
        if number is None or number not in cores:
            continue
        ticks = [ascii_int(word) for word in words[1:9]]
        if len(ticks) < 8 or None in ticks:
            return None
        _, _, _, nothing, waiting, hard, soft, stolen = (tick or 0 for tick in ticks)
        idle, steal, interrupts, found = idle + nothing + waiting, steal + stolen, interrupts + hard + soft, found + 1
    return Cpu(idle / TICKS_PER_S, steal / TICKS_PER_S, interrupts / TICKS_PER_S) if found and found == len(cores) else None


def parse_pressure(text: str) -> dict[str, float] | None:
    """Parse /proc/pressure/*: seconds since boot in which `some` tasks waited for it, and in which all (`full`) did. Older kernels have no
    `full` for cpu."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or words[0] not in ("some", "full") or not words[-1].startswith("total="):
            return None
        micros = ascii_int(words[-1].removeprefix("total="))
        if micros is None:
            return None
        found[words[0]] = micros / 1e6
    return found if "some" in found else None


def parse_counts(text: str, names: Mapping[str, str]) -> dict[str, int]:
    """Parse `name number ...` lines, as in /proc/meminfo and /proc/vmstat: those in `names`, under the names there."""
    found = {}
    for line in text.splitlines():
        words = line.split(None, 2)
        name = names.get(words[0].rstrip(":")) if len(words) > 1 else None
        count = ascii_int(words[1]) if name is not None else None
        if name is not None and count is not None:
            found[name] = count
    return found


Found = dict[str, Any]
Reader = Callable[[float], Found]
"""A reader gets the monotonic time and returns fields for that moment's line."""

OWN_SHARE: Final = 0.0015
ALL_SHARE: Final = 0.0007
CHEAP_SHARE: Final = 0.0004
RAPL_SHARE: Final = 0.0001
"""Shares of one core that readers may use: 0.4 % in all. On a machine with thousands of processes the pauses get longer instead."""
MAX_NAMED: Final = 3
MIN_NAMED: Final = 0.05
"""Processes of others that use more cores than this are named."""
_MEMORY: Final = {"MemAvailable": "available"}
_PAGING: Final = {"pswpin": "swapped_in", "pswpout": "swapped_out"}


def kernel_seen(proc: Path = Path("/proc")) -> bool:
    """Return True if the kernel's threads can be seen. In a pid namespace, and where /proc is mounted with hidepid, they cannot."""
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
        self.trees = ProcessTrees(frozenset(), frozenset())

    def read_own(self, now: float) -> Found:  # noqa: ARG002 - as all
        """Read what the cores did, and ours on them. Of all other processes only those that are new are looked at."""
        pids = frozenset(all_pids())
        look_at = (pids - self._known) | self.trees.ours | self.trees.above
        states = {pid: state for pid in look_at if (state := state_of(pid)) is not None}
        cpu = parse_cpu(machine_text(self._proc / "stat"), self._cores)
        self.trees = process_trees(states, (*self._roots, *self.trees.ours), self._is_marked, self._kthreadd)
        self._known = pids
        if cpu is None:
            return {}
        faults = sum(states[pid].faults for pid in self.trees.ours if pid in states)
        return {**cpu._asdict(), "own": round(own_seconds(states, self.trees, self._share), 3), "faults": faults}

    def read_all(self, now: float) -> Found:
        """Read the time of the kernel's threads, and the busiest of others: of every process there is."""
        states = {state.pid: state for state in all_processes()}
        self.trees = process_trees(states, self._roots, self._is_marked, self._kthreadd)
        used = used_since(self._before, states.values()) if self._before else {}
        kernel = {pid for pid in used if self._kthreadd in (pid, states[pid].parent)}
        self._kernel += sum(self._share(pid) * used[pid] for pid in kernel)
        ours = self.trees.ours | self.trees.above
        others = {pid: self._share(pid) * seconds for pid, seconds in used.items() if pid not in kernel and pid not in ours}
        busiest = sorted((pid for pid in others if others[pid] > MIN_NAMED * (now - self._then)), key=lambda pid: -others[pid])
        named = [(name_of(pid), round(others[pid], 3)) for pid in busiest[:MAX_NAMED]]
        self._before, self._then = states, now
        self._looked = {key: marked for key, marked in self._looked.items() if key[0] in states}
        return {"busiest": named} if self._kthreadd is None else {"kernel": round(self._kernel, 3), "busiest": named}

    def _is_marked(self, state: ProcessState) -> bool:
        key = (state.pid, state.start)
        if key not in self._looked:
            environment = machine_text(self._proc / str(state.pid) / "environ")
            self._looked[key] = self._mark in environment.split("\0") and bool(self._mark)
        return self._looked[key]


def name_of(pid: int) -> str:
    """Name a process for people: `python3 of alice`."""
    command, owner = machine_text(f"/proc/{pid}/comm"), owner_of(pid)
    return "a process that has ended" if not command or owner is None else printable(f"{command} of {owner}")


def read_memory(now: float, proc: Path = Path("/proc")) -> Found:  # noqa: ARG001 - as all
    """Read the available memory, and what went out to the swap space and came back, since boot."""
    available = parse_counts(machine_text(proc / "meminfo"), _MEMORY)
    paged = parse_counts(machine_text(proc / "vmstat"), _PAGING)
    found: Found = {name: 1024 * kib for name, kib in available.items()}
    return found | {name: pages * PAGE_BYTES for name, pages in paged.items()}


def read_pressure(now: float, proc: Path = Path("/proc")) -> Found:  # noqa: ARG001 - as all
    """Read the seconds since boot in which tasks waited for processors, memory, disks; nothing where the kernel does not count them."""
    told = {kind: parse_pressure(machine_text(proc / "pressure" / kind)) for kind in ("cpu", "memory", "io")}
    return {f"{kind}_{who}": seconds for kind, found in told.items() if found is not None for who, seconds in found.items()}


class Throttling:
    """How often the hardware has slowed the cores down because of heat."""

    def __init__(self, cores: Collection[int], root: Path = Path("/sys/devices/system/cpu")) -> None:
        self._counters = [root / f"cpu{core}" / "thermal_throttle" / "core_throttle_count" for core in sorted(cores)]

    def __call__(self, now: float) -> Found:  # noqa: ARG002 - as all
        counts = [value for path in self._counters if (value := machine_number(path)) is not None]
        return {"throttled": sum(counts)} if counts else {}


POWERCAP: Final = Path("/sys/class/powercap")
WHOLE: Final = "package"
MEMORY: Final = "dram"
MICRO: Final = 1e-6
RAPL_PAUSE_S: Final = 60.0
"""The longest pause between two looks at RAPL: the smallest range in use, 65 kJ on AMD, lasts 65 s at MAX_W."""
MAX_W: Final = 1000.0
"""More than a socket takes: a pause in which it could have used the whole range leaves open how often the counter began again."""


class Rapl:
    """The energy of the machine's processors and their memory, in joules since the first look, by RAPL (Intel and AMD).

    A zone is a counter of microjoules that begins again beyond its range (Documentation/power/powercap in the kernel's sources); a socket
    has the zone `package-N`, and on servers `dram` beside the cores in it. Since CVE-2020-8694 most machines let only root read them.
    """

    def __init__(self, root: Path = POWERCAP, clock: float | None = None) -> None:
        zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if _is_counted(zone)]
        self._counters = {zone / "energy_uj": machine_number(zone / "max_energy_range_uj") for zone in zones}
        self._before = {path: machine_number(path) for path in self._counters}
        self._then = time.monotonic() if clock is None else clock
        self._sum = 0
        self.state = "none" if not zones else "not permitted" if None in self._before.values() else "read"

    def __call__(self, now: float) -> Found:
        if self.state != "read":
            return {}
        found = {path: machine_number(path) for path in self._counters}
        for path, after in found.items():
            before, most = self._before[path], self._counters[path]
            if after is None or before is None or not most or (now - self._then) * MAX_W > most * MICRO:
                self.state = "none"
                return {}
            self._sum += (after - before) % most
        self._before, self._then = found, now
        return {"package_j": round(self._sum * MICRO, 3)}


def _is_counted(zone: Path) -> bool:
    """Return True for a socket, and for the memory in one. Cores and graphics are parts of their socket; `psys` holds all of it."""
    name = machine_text(zone / "name")
    return name.startswith(WHOLE) if zone.name.count(":") == 1 else name == MEMORY


def machine_readers(cores: Collection[int], roots: Collection[int], mark: str, rapl: Rapl) -> list[tuple[Reader, float, float]]:
    """Return the readers of every node, how much of one core each may cost, and its longest pause where it has one."""
    processors = Processors(cores, roots, mark)
    cheap = (read_memory, read_pressure, Throttling(cores))
    energy = [(rapl, RAPL_SHARE, RAPL_PAUSE_S)] if rapl.state == "read" else []
    own = (processors.read_own, OWN_SHARE, math.inf), (processors.read_all, ALL_SHARE, math.inf)
    return [*own, *((reader, CHEAP_SHARE, math.inf) for reader in cheap), *energy]


# What nvidia-smi tells of the run's GPUs while they work: clocks and what holds them down, heat, power, errors, processes of others.


logger = logging.getLogger(__name__)

TIMES_TOOK: Final = 50
"""A question that takes long is asked so seldom that it is 2 % of the time."""
MAX_FAILURES: Final = 3
LOOK_FIELDS: Final = {
    "uuid": "uuid",
    "mhz": "clocks.sm",
    "max_mhz": "clocks.max.sm",
    "reasons": THROTTLE,
    "celsius": "temperature.gpu",
    "watts": "power.draw",
    "busy_ratio": "utilization.gpu",
    "ecc_errors": ECC,
}
"""The fields of nvidia-smi by their names in the lines of the watcher."""


def look_of(words: Mapping[str, str]) -> dict[str, Any]:
    """Convert the fields of one GPU. Values in brackets, such as `[N/A]`, are unknown, as are fields that the driver does not know."""
    found: dict[str, Any] = {name: None if name == "reasons" else _number(words.get(name, "")) for name in LOOK_FIELDS if name != "uuid"}
    busy = found["busy_ratio"]
    return {
        "uuid": words["uuid"][:100],
        **found,
        "reasons": _bits(words.get("reasons", "")),
        "busy_ratio": None if busy is None else busy / 100,
    }


def _number(word: str) -> float | None:
    whole, dot, part = word.partition(".")
    if ascii_int(whole) is None or (dot and ascii_int(part) is None):
        return None
    return float(word)


def _bits(word: str) -> int | None:
    if not word.startswith("0x") or len(word) > 18:
        return None
    try:
        return int(word, 16) & ((1 << 62) - 1)
    except ValueError:
        return None


def with_others(
    looks: Sequence[dict[str, object]], wanted: Collection[str], apps: Sequence[App] | None, ours: Collection[int]
) -> list[dict[str, object]]:
    """Select the run's own GPUs, with the number of processes that are not ours, None where nobody lists them."""
    return [
        {**look, "others": None if apps is None else sum(app.gpu == look["uuid"] and app.pid not in ours for app in apps)}
        for look in looks
        if look["uuid"] in wanted
    ]


class Gpus:
    """A reader that waits for nvidia-smi, so it is the only one of its process. Its moment is that of the answer."""

    def __init__(self, uuids: Collection[str], processors: Processors, energy: EnergyCounters) -> None:
        self._uuids, self._processors, self._energy = frozenset(uuids), processors, energy
        self._asked = dict(LOOK_FIELDS)
        self._failures = 0
        self._next = 0.0

    def __call__(self, now: float) -> Found:
        if self._failures >= MAX_FAILURES or now < self._next:
            return {}
        self._processors.read_all(now)
        began = time.monotonic()
        looks = self._look()
        if looks is None:
            self._failures += 1
            return {}
        self._failures = 0
        for look in looks:
            look["joules"] = self._energy.joules(look["uuid"]) if look["uuid"] in self._uuids else None
        answered = time.monotonic()
        found = with_others(looks, self._uuids, self._apps(), self._processors.trees.ours)
        self._next = now + max(GPU_WATCH_EVERY_S, TIMES_TOOK * (time.monotonic() - began)) - GPU_WATCH_EVERY_S / 2
        return {"t": round(answered, 6), "gpus": found} if found else {}

    def _look(self) -> list[dict[str, object]] | None:
        try:
            return [look_of(words) for words in query_fields(self._asked, GPU_WATCH_ANSWER_S)]
        except SlipwayError as error:
            logger.debug("the GPUs are not watched: %s", error)
            return None

    def _apps(self) -> Sequence[App] | None:
        try:
            return query_apps(GPU_WATCH_ANSWER_S)
        except (SlipwayError, ValueError) as error:
            logger.debug("the processes on GPUs are not watched: %s", error)
            return None
