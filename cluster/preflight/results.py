"""What a preflight measures and finds: values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """Where a node listens."""

    name: str
    address: str
    port: int
    interface: str | None = None


class Reach(NamedTuple):
    """One node's connection to another: how long it took, or what happened instead."""

    seconds: float | None
    problem: str | None


class Sample(NamedTuple):
    """What came from one node at another."""

    bytes: int
    seconds: float
    busy_s: float = 0.0
    """Of both ends: how long their processes had a core, or waited for one."""

    @property
    def mbit(self) -> float:
        """Mbit/s."""
        return self.bytes * 8e-6 / self.seconds if self.seconds > 0 else 0.0

    @property
    def network_s(self) -> float:
        """The time for which only the network can be blamed: neither end had anything to do."""
        return max(0.0, self.seconds - self.busy_s)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence that names a node or a link. `fatal`: the run cannot work on it."""

    text: str
    nodes: tuple[int, ...] = ()
    fatal: bool = False


Rates = Mapping[tuple[int, int], Sample]
"""(from, to) -> what came."""


def told(places: Sequence[Place], pair: tuple[int, int], problem: str) -> str:
    """From where to where, over what, and what happened."""
    origin, target = places[pair[0]], places[pair[1]]
    over = f" over {origin.interface}" if origin.interface else ""
    return f"{origin.name} ({origin.address}{over}) to {target.name} ({target.address} port {target.port}): {problem}"
