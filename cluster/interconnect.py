"""What connects this machine to others, as the kernel says: its network interfaces and InfiniBand ports with their rates.

Reads /sys alone: no network storage, no program, well under a millisecond per interface.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypedDict

from base.foreign import text
from base.machine_files import machine_number, machine_text

MOST: Final = 64
_RATE: Final = re.compile(r"(\d{1,6}(?:\.\d+)?) Gb/sec")


class Interface(TypedDict):
    """`mbit_per_s`: None where the kernel does not know, as of many virtual ones."""

    name: str
    kind: str
    mbit_per_s: int | None


def interfaces(net: Path = Path("/sys/class/net"), infiniband: Path = Path("/sys/class/infiniband")) -> list[Interface]:
    """Those that are up and are no software of this machine, such as bridges and loopback; sorted, at most MOST."""
    return [*_ports(infiniband), *_cards(net)][:MOST]


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
    """Ethernet: type 1. InfiniBand's own interfaces (32) are told by their ports."""
    found: list[Interface] = []
    for card in sorted(root.glob("*")):
        if (card / "device").exists() and machine_text(card / "operstate") == "up" and machine_text(card / "type") == "1":
            found.append({"name": text(card.name, 64), "kind": "Ethernet", "mbit_per_s": machine_number(card / "speed") or None})
    return found
