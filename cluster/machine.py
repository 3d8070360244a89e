"""Facts of the machine this runs on. Each function costs well under a millisecond per core and touches no network storage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from base.foreign import digits, text
from base.machine_files import machine_text
from cluster.cgroups import memory_cgroups
from cluster.interconnect import interfaces

Topology = Mapping[int, tuple[int, int]]
"""CPU number -> (package, core): two hardware threads of one core have the same pair."""


def usable_cores() -> tuple[int, ...]:
    """The CPU numbers we may run on, in order."""
    return tuple(sorted(os.sched_getaffinity(0)))


def read_topology(cores: tuple[int, ...], root: Path = Path("/sys/devices/system/cpu")) -> dict[int, tuple[int, int]]:
    """Package and core of each CPU number; a number the kernel does not describe is a core of its own."""
    found = {}
    for number in cores:
        directory = root / f"cpu{number}" / "topology"
        try:
            found[number] = (int((directory / "physical_package_id").read_text()), int((directory / "core_id").read_text()))
        except (OSError, ValueError):
            found[number] = (0, number)
    return found


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str | None:
    """Such as `Intel(R) Xeon(R) Platinum 8481C`; None where the kernel does not say."""
    for line in machine_text(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return text(value.strip(), 200)
    return os.uname().machine or None


def core_counts() -> dict[str, int]:
    """`sockets`, `cores` and `cpus` (hardware threads) of the whole machine, whatever we may use of it."""
    topology = read_topology(tuple(range(os.cpu_count() or 1)))
    return {"sockets": len({package for package, _ in topology.values()}), "cores": len(set(topology.values())), "cpus": len(topology)}


def memory_bytes(path: Path = Path("/proc/meminfo")) -> int | None:
    """Installed memory."""
    for line in machine_text(path).splitlines():
        if line.startswith("MemTotal:"):
            amount = digits((line.split() + [""])[1])
            return None if amount is None else amount * 1024
    return None


def os_name(path: Path = Path("/etc/os-release")) -> str | None:
    """Such as `Debian GNU/Linux 12 (bookworm)`."""
    for line in machine_text(path).splitlines():
        if line.startswith("PRETTY_NAME="):
            return text(line.partition("=")[2].strip().strip("'\""), 200)
    return None


def oom_kills(cgroups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How many processes of our cgroup the kernel has killed for want of memory; None where it does not count them."""
    return next((count for path in oom_counters(cgroups, root) if (count := read_oom_kills(path)) is not None), None)


def oom_counters(cgroups: Path, root: Path = Path("/sys/fs/cgroup")) -> tuple[Path, ...]:
    """The files that may hold that count for the process whose `cgroups` these are: those of cgroup v1 and v2. None if it has ended."""
    return tuple(path / ("memory.oom_control" if is_v1 else "memory.events") for is_v1, path in memory_cgroups(cgroups, root))


def read_oom_kills(path: Path) -> int | None:
    """The count in one of those files; None where it is not there (any more)."""
    entries = [entry.split() for entry in machine_text(path).splitlines()]
    return next((digits(words[1]) for words in entries if len(words) == 2 and words[0] == "oom_kill"), None)


def driver_version(path: Path = Path("/sys/module/nvidia/version")) -> str | None:
    """Of NVIDIA's kernel module, such as `550.54.15`: what nvidia-smi calls the driver's version; None where it is not loaded."""
    return machine_text(path)[:40] or None


def facts() -> dict[str, Any]:
    """What the record says of a node."""
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
