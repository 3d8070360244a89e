"""Parsers for the texts of /proc and /sys that tell how loaded a machine is: text in, numbers out; None for anything else."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from base.foreign import digits
from cluster.processes import TICKS_PER_S

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Cpu(NamedTuple):
    """Seconds since boot, of some cores together: doing nothing, taken by the host of a virtual machine, serving interrupts."""

    idle: float
    steal: float
    interrupts: float


def parse_cpu(text: str, cores: Collection[int]) -> Cpu | None:
    """Of /proc/stat. Seconds idle are measured by the kernel where all others are estimated by its tick, so that what is busy is what is
    not idle. Interrupts stand apart: they serve whoever sends and reads, us included."""
    idle = steal = interrupts = found = 0
    for line in text.splitlines():
        if not line.startswith("cpu"):
            break
        words = line.split()
        number = digits(words[0][3:])
        if number is None or number not in cores:
            continue
        ticks = [digits(word) for word in words[1:9]]
        if len(ticks) < 8 or None in ticks:
            return None
        _, _, _, nothing, waiting, hard, soft, stolen = (tick or 0 for tick in ticks)
        idle, steal, interrupts, found = idle + nothing + waiting, steal + stolen, interrupts + hard + soft, found + 1
    return Cpu(idle / TICKS_PER_S, steal / TICKS_PER_S, interrupts / TICKS_PER_S) if found and found == len(cores) else None


def parse_pressure(text: str) -> dict[str, float] | None:
    """Of /proc/pressure/*: seconds since boot in which `some` tasks waited for it, and in which all (`full`) did. Older kernels have no
    `full` for cpu."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or words[0] not in ("some", "full") or not words[-1].startswith("total="):
            return None
        micros = digits(words[-1].removeprefix("total="))
        if micros is None:
            return None
        found[words[0]] = micros / 1e6
    return found if "some" in found else None


def parse_counts(text: str, names: Mapping[str, str]) -> dict[str, int]:
    """`name number ...` lines, as in /proc/meminfo, /proc/vmstat and /proc/PID/status: those in `names`, under the names there."""
    found = {}
    for line in text.splitlines():
        words = line.split(None, 2)
        name = names.get(words[0].rstrip(":")) if len(words) > 1 else None
        count = digits(words[1]) if name is not None else None
        if name is not None and count is not None:
            found[name] = count
    return found
