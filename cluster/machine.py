"""Read facts of this machine. Each function costs well under a millisecond per core and touches no network storage."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypedDict

from base.sanitize import ascii_int, text
from base.system import machine_number, machine_text


def memory_cgroups(membership: Path, root: Path) -> list[tuple[bool, Path]]:
    """Return the cgroups that count the memory of the process of `membership` (/proc/PID/cgroup), each as (is of v1, its directory).
    `root` is the mount point of cgroups. The list is empty if the process has ended."""
    found = []
    for line in machine_text(membership).splitlines():
        _, controllers, path = (line.split(":", 2) + ["?", "?"])[:3]
        if controllers in ("", "memory") and "\0" not in path:
            found.append((bool(controllers), root / ("memory" if controllers else ".") / path.lstrip("/")))
    return found


# What connects this machine to others, as the kernel says: its network interfaces and InfiniBand ports with their rates.
#
# Reads /sys alone: no network storage, no program, well under a millisecond per interface.


MAX_INTERFACES: Final = 64
_RATE: Final = re.compile(r"(\d{1,6}(?:\.\d+)?) Gb/sec")


class Interface(TypedDict):
    """A network interface. `mbit_per_s` is None where the kernel does not know it, as for many virtual ones."""

    name: str
    kind: str
    mbit_per_s: int | None


def interfaces(net: Path = Path("/sys/class/net"), infiniband: Path = Path("/sys/class/infiniband")) -> list[Interface]:
    """Return the interfaces that are up and belong to hardware, which bridges and loopback do not; sorted, at most MAX_INTERFACES."""
    return [*_ports(infiniband), *_cards(net)][:MAX_INTERFACES]


def _ports(root: Path) -> list[Interface]:
    found: list[Interface] = []
    for port in sorted(root.glob("*/ports/*")):
        rate = _RATE.match(machine_text(port / "rate"))
        if "ACTIVE" not in machine_text(port / "state") or rate is None:
            continue
        kind = "InfiniBand" if machine_text(port / "link_layer") == "InfiniBand" else "RDMA over Ethernet"
        name = text(f"{port.parents[1].name}:{port.name}", 64)
        found.append({"name": name, "kind": kind, "mbit_per_s": round(float(rate[1]) * 1000)})
    return found


def _cards(root: Path) -> list[Interface]:
    """Return the cards of type 1. InfiniBand's own interfaces (32) appear as ports."""
    found: list[Interface] = []
    for card in sorted(root.glob("*")):
        if (card / "device").exists() and machine_text(card / "operstate") == "up" and machine_text(card / "type") == "1":
            found.append({"name": text(card.name, 64), "kind": "Ethernet", "mbit_per_s": machine_number(card / "speed") or None})
    return found


Topology = Mapping[int, tuple[int, int]]
"""CPU number -> (package, core): two hardware threads of one core have the same pair."""


def usable_cores() -> tuple[int, ...]:
    """Return the CPU numbers that this process may run on, in order."""
    return tuple(sorted(os.sched_getaffinity(0)))


def read_topology(cores: tuple[int, ...], root: Path = Path("/sys/devices/system/cpu")) -> dict[int, tuple[int, int]]:
    """Return package and core of each CPU number. A number that the kernel does not describe is a core of its own."""
    found = {}
    for number in cores:
        directory = root / f"cpu{number}" / "topology"
        try:
            found[number] = (int((directory / "physical_package_id").read_text()), int((directory / "core_id").read_text()))
        except (OSError, ValueError):
            found[number] = (0, number)
    return found


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return a name such as `Intel(R) Xeon(R) Platinum 8481C`, or None if the kernel has none."""
    for line in machine_text(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return text(value.strip(), 200)
    return os.uname().machine or None


def core_counts() -> dict[str, int]:
    """Count the `sockets`, `cores` and `cpus` (hardware threads) of the whole machine."""
    topology = read_topology(tuple(range(os.cpu_count() or 1)))
    return {"sockets": len({package for package, _ in topology.values()}), "cores": len(set(topology.values())), "cpus": len(topology)}


def memory_bytes(path: Path = Path("/proc/meminfo")) -> int | None:
    """Return the installed memory."""
    for line in machine_text(path).splitlines():
        if line.startswith("MemTotal:"):
            amount = ascii_int((line.split() + [""])[1])
            return None if amount is None else amount * 1024
    return None


def os_name(path: Path = Path("/etc/os-release")) -> str | None:
    """Return a name such as `Debian GNU/Linux 12 (bookworm)`."""
    for line in machine_text(path).splitlines():
        if line.startswith("PRETTY_NAME="):
            return text(line.partition("=")[2].strip().strip("'\""), 200)
    return None


def oom_kills(cgroups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Count the processes of our cgroup that the kernel has killed for lack of memory, or return None if it does not count them."""
    return next((count for path in oom_counters(cgroups, root) if (count := read_oom_kills(path)) is not None), None)


def oom_counters(cgroups: Path, root: Path = Path("/sys/fs/cgroup")) -> tuple[Path, ...]:
    """Return the files of cgroup v1 and v2 that may hold that count for the process of `cgroups`; empty if it has ended."""
    return tuple(path / ("memory.oom_control" if is_v1 else "memory.events") for is_v1, path in memory_cgroups(cgroups, root))


def read_oom_kills(path: Path) -> int | None:
    """Read the count in one of those files. Returns None if it is missing."""
    entries = [entry.split() for entry in machine_text(path).splitlines()]
    return next((ascii_int(words[1]) for words in entries if len(words) == 2 and words[0] == "oom_kill"), None)


def driver_version(path: Path = Path("/sys/module/nvidia/version")) -> str | None:
    """Return the version of NVIDIA's kernel module, such as `550.54.15`, or None if it is not loaded."""
    return machine_text(path)[:40] or None


def facts() -> dict[str, Any]:
    """Collect what the record holds about a node."""
    name = os.uname()
    return {
        "hostname": name.nodename,
        "cpu_model": cpu_model(),
        "machine_cores": core_counts(),
        "memory_bytes": memory_bytes(),
        "network": interfaces(),
        "kernel": name.release,
        "os": os_name(),
        "driver_version": driver_version(),
    }
