"""Network interfaces: which one the ranks should use, and whether the ports of the rendezvous are out of the kernel's way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.finding import Finding, Level
from base.machine_files import machine_number, machine_text
from cluster.addresses import ipv4_addresses, source_address

SUBJECT: Final = "network"
INFINIBAND: Final = 32
LOOPBACK: Final = 772
SMALLEST_MTU: Final = 1280
VIRTUAL: Final = re.compile(r"docker|virbr|veth|br-|cni|cali|flannel|tun|tap|podman|lxc|lxd|vnet|dummy|wg|tailscale")
RDMA_ADVICE: Final = "ranks find InfiniBand by themselves (NCCL_IB_HCA); the interface only carries their first words"


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface that is up. `speed_mbit` None: not said."""

    name: str
    address: str
    mtu: int
    speed_mbit: int | None = None
    infiniband: bool = False

    def describe(self) -> str:
        """Such as `ib0 10.1.0.7, InfiniBand, 100 Gbit/s, MTU 4092`."""
        speed = f", {self.speed_mbit / 1000:g} Gbit/s" if self.speed_mbit else ""
        return f"{self.name} {self.address}{', InfiniBand' if self.infiniband else ''}{speed}, MTU {self.mtu}"


def read_interfaces(root: Path = Path("/sys/class/net")) -> tuple[Interface, ...]:
    """Those that are up, have an IPv4 address, and lead out of this machine."""
    found = []
    addresses = ipv4_addresses()
    for directory in sorted(root.iterdir()):
        kind = machine_number(directory / "type")
        address = addresses.get(directory.name)
        state = machine_text(directory / "operstate")
        if kind != LOOPBACK and not VIRTUAL.match(directory.name) and address and state in ("up", "unknown"):
            found.append(
                Interface(
                    name=directory.name,
                    address=address,
                    mtu=machine_number(directory / "mtu") or 0,
                    speed_mbit=machine_number(directory / "speed") or None,
                    infiniband=kind == INFINIBAND,
                )
            )
    return tuple(found)


def recommended(interfaces: Sequence[Interface], towards: str | None) -> Interface | None:
    """Pure: InfiniBand first, then the fastest, then the one whose address leads to the other nodes; None where there is none."""
    return max(interfaces, key=lambda one: (one.infiniband, one.speed_mbit or 0, one.address == towards), default=None)


def judge_interfaces(interfaces: Sequence[Interface], chosen: str | None, towards: str | None, on_node: bool) -> tuple[Finding, ...]:
    """Pure. `chosen`: network_interface of the site file; `towards`: our address on the way to another node; on a compute node or not."""
    if not interfaces:
        return (Finding(SUBJECT, "warning" if on_node else "note", "no network interface with an IPv4 address is up: one node only"),)
    all_of_them = "; ".join(one.describe() for one in interfaces)
    if chosen is not None:
        own = next((one for one in interfaces if one.name == chosen), None)
        if own is None:
            text = f"network_interface {chosen!r} of the site file is not up here; there: {all_of_them}"
            advice = (
                "the name that it has on every compute node" if on_node else "login nodes often have others: check inside an allocation"
            )
            return (Finding(SUBJECT, "error" if on_node else "note", text, advice),)
        return (Finding(SUBJECT, "ok", f"the site's interface {own.describe()}"), *(_mtu(own) if on_node else ()))
    best = recommended(interfaces, towards)
    assert best is not None
    findings = [Finding(SUBJECT, "ok", f"interfaces: {all_of_them}")]
    if len(interfaces) > 1 and on_node:
        text = f"{len(interfaces)} interfaces, and the site file chooses none; best by kind and speed: {best.name}"
        advice = f"network_interface: {best.name} in the site file; it becomes NCCL_SOCKET_IFNAME={best.name} and GLOO_SOCKET_IFNAME"
        findings.append(Finding(SUBJECT, "note", text, f"{advice}. {RDMA_ADVICE}" if best.infiniband else advice))
    return (*findings, *(_mtu(best) if on_node else ()))


def judge_ports(ephemeral: tuple[int, int], wanted: tuple[int, int]) -> tuple[Finding, ...]:
    """Pure: the kernel's range for outgoing connections against the ports that the rendezvous takes."""
    said = f"{ephemeral[0]}-{ephemeral[1]}"
    if ephemeral[1] < wanted[0] or ephemeral[0] > wanted[1]:
        return (Finding(SUBJECT, "ok", f"ports {wanted[0]}-{wanted[1]} of the rendezvous are above the kernel's own ({said})"),)
    text = f"outgoing connections use the ports {said}, among them those of the rendezvous, {wanted[0]}-{wanted[1]}"
    return (Finding(SUBJECT, "note", text, "nothing: the head node binds its port before it tells it; net.ipv4.ip_local_port_range"),)


def check_interfaces(chosen: str | None, other: str | None, on_node: bool, wanted: tuple[int, int]) -> tuple[Finding, ...]:
    """Interfaces and ports of this machine; `other`: the name of another node."""
    towards = source_address(other) if other else None
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return (*judge_interfaces(read_interfaces(), chosen, towards, on_node), *judge_ports((int(low), int(high)), wanted))


def _mtu(interface: Interface) -> tuple[Finding, ...]:
    if interface.mtu < 1500:
        text = f"MTU {interface.mtu} of {interface.name} is smaller than usual (1500): a tunnel, or a cloud's network"
        level: Level = "note" if interface.mtu >= SMALLEST_MTU else "warning"
        return (Finding(SUBJECT, level, text, "ask whether this is meant to carry training"),)
    if interface.mtu == 1500 and (interface.speed_mbit or 0) >= 10_000 and not interface.infiniband:
        text = f"MTU 1500 of {interface.name}: at {(interface.speed_mbit or 0) / 1000:g} Gbit/s TCP costs much CPU"
        return (Finding(SUBJECT, "note", text, "ask for jumbo frames (MTU 9000) on all nodes and switches"),)
    return ()
