"""Find the address at which others reach this machine: of a named interface, or the one on the way to them. Nothing is sent."""

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from typing import Final

from base import errors, humanize

SIOCGIFADDR: Final = 0x8915
LOOPBACK: Final = "127.0.0.1"
_PORT: Final = 9  # of no consequence: a datagram socket that is connected sends nothing


def resolve(name: str) -> str | None:
    """Return the first address of a host, IPv4 before IPv6, or None if it is unknown."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    addresses = sorted((family != socket.AF_INET, str(where[0])) for family, _, _, _, where in found)
    return addresses[0][1] if addresses else None


def source_address(target: str) -> str | None:
    """Return our address on the route to the address `target`, or None without a route."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, _PORT))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def address_of(interface: str) -> str:
    """Return the IPv4 address of one of our interfaces. Raises AllocationError."""
    address = ipv4_addresses().get(interface)
    if address is None:
        raise errors.AllocationError(
            f"network_interface {interface!r} of the site file has no IPv4 address on {socket.gethostname()}; "
            f"{humanize.choices(interface, sorted(ipv4_addresses()))}"
        )
    return address


def here(peer: str, interface: str | None) -> tuple[str, str | None]:
    """Return our address for others, and its interface: `interface`, or the one on the route to `peer`. Raises AllocationError."""
    if interface is not None:
        return address_of(interface), interface
    address = source_address(resolve(peer) or peer)
    if address is None:
        raise errors.AllocationError(
            f"{socket.gethostname()} has no route to {peer}: set network_interface in the site file, or check that address"
        )
    return address, next((name for name, found in ipv4_addresses().items() if found == address), None)


def listening_address(peers: Iterable[str], interface: str | None) -> str:
    """Return the address at which all `peers` reach us: of `interface`, or on the route to the first other peer, or loopback."""
    if interface is not None:
        return address_of(interface)
    for peer in peers:
        address = source_address(peer)
        if address is not None and not ipaddress.ip_address(address).is_loopback:
            return address
    return LOOPBACK


def ipv4_addresses() -> dict[str, str]:
    """Map each of our interfaces that has an IPv4 address to it."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found
