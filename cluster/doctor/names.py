"""Host names: our own, and those of the nodes, both ways. Resolving may hang where a name server is away: callers limit it."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from base.finding import Finding
from base.units import some

SUBJECT: Final = "names"
MOST_NAMES: Final = 6


def resolve(name: str) -> tuple[str, ...]:
    """The addresses of a name, in the order of the resolver; none where it has none."""
    try:
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
    except OSError:
        return ()


def name_of(address: str) -> str | None:
    """The name of an address; None where it has none."""
    try:
        return socket.gethostbyaddr(address)[0]
    except OSError:
        return None


def judge_own_name(hostname: str, addresses: Sequence[str], alone: bool) -> tuple[Finding, ...]:
    """Pure. `alone`: runs stay on this machine, so that no other needs to reach it."""
    if not addresses:
        text = f"the own name {hostname!r} does not resolve: torchrun and gloo look it up, and wait or fail"
        advice = f"a line for {hostname} in /etc/hosts; Slipway itself uses addresses"
        return (Finding(SUBJECT, "note" if alone else "warning", text, advice),)
    loopback = [address for address in addresses if ipaddress.ip_address(address.partition("%")[0]).is_loopback]
    said = ", ".join(addresses)
    if len(loopback) == len(addresses):
        text = f"the own name {hostname!r} resolves to {said}, out of reach of others: programs that publish it hang (127.0.1.1 trap)"
        advice = f"the network's address for {hostname} in /etc/hosts; Slipway itself gives ranks the address of an interface"
        return (
            Finding(SUBJECT, "ok" if alone else "warning", f"{hostname} resolves to {said}" if alone else text, "" if alone else advice),
        )
    if loopback:
        text = f"the own name {hostname!r} resolves to {said}: some programs take {loopback[0]}, which no other machine reaches"
        return (Finding(SUBJECT, "note", text, "nothing: Slipway gives ranks the address of an interface"),)
    return (Finding(SUBJECT, "ok", f"{hostname} resolves to {said}"),)


def judge_nodes(forward: Mapping[str, Sequence[str]], backward: Mapping[str, str | None]) -> tuple[Finding, ...]:
    """Pure: names of nodes with their addresses, and the first address of each with its name."""
    missing = [name for name, addresses in forward.items() if not addresses]
    found = []
    if missing:
        text = f"{some(missing, MOST_NAMES)} of {len(forward)} nodes do not resolve from here"
        advice = "on a login node this does no harm; if it is so on the nodes, the launcher and ssh between them fail"
        found.append(Finding(SUBJECT, "note", text, advice))
    shared = {addresses[0] for addresses in forward.values() if addresses}
    if len(shared) < len(forward) - len(missing):
        text = "several nodes have the same address: " + ", ".join(
            f"{name} {addresses[0]}" for name, addresses in forward.items() if addresses
        )
        found.append(Finding(SUBJECT, "warning", text, "correct the name service; network_interface in the site file does not help here"))
    other = [
        f"{name} -> {addresses[0]} -> {backward.get(addresses[0]) or 'no name'}"
        for name, addresses in forward.items()
        if addresses and not _same(name, backward.get(addresses[0]))
    ]
    if other:
        text = f"back from the address comes another name: {some(other, MOST_NAMES)}"
        advice = "nothing: Slipway uses addresses; programs that compare host names may wait for ever"
        found.append(Finding(SUBJECT, "note", text, advice))
    if forward and not found:
        found.append(Finding(SUBJECT, "ok", f"{some(list(forward), MOST_NAMES)} resolve, and back"))
    return tuple(found)


def check_own_name(alone: bool) -> tuple[Finding, ...]:
    """Our own host name."""
    hostname = os.uname().nodename
    return judge_own_name(hostname, resolve(hostname), alone)


def check_nodes(names: Sequence[str]) -> tuple[Finding, ...]:
    """The names of nodes, both ways."""
    forward = {name: resolve(name) for name in names}
    return judge_nodes(forward, {addresses[0]: name_of(addresses[0]) for addresses in forward.values() if addresses})


def _same(name: str, other: str | None) -> bool:
    return other is not None and name.partition(".")[0].lower() == other.partition(".")[0].lower()
