"""The nodes that stage the same files at the same time, as one of them is told: who it is, and then who the others are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from base.errors import Cancelled, StagingError
from data_prep.limits import PEER_HANG_S, PEER_LATE_S

MOST_LINE: Final = 256 << 20
"""Bytes of one line of orders: what 1,000 nodes have of 3 TB in 4 MiB chunks, in the worst case."""


@dataclass(frozen=True, kw_only=True)
class PeerGroup:
    """Node `index` of `nodes`, which listens on `address`. `token`: what proves to the others that we are of this run. `orders`: the
    descriptor on which whoever started us tells the others' addresses, and when all have the files. `say` tells it ours. A node from
    which nothing comes for `hang_s` is given up; one that brings nothing new for `late_s`, or several times as long as a chunk takes here,
    is called slow."""

    index: int
    nodes: int
    address: str
    token: bytes
    orders: int
    say: Callable[[dict[str, Any]], None]
    hang_s: float = PEER_HANG_S
    late_s: float = PEER_LATE_S


@dataclass(frozen=True, kw_only=True)
class Others:
    """The order `peers`: per node its address, port and what it has (see wire.have_text), None where it is not there (yet, or any more);
    who reads from storage, at most `most_readers` at once; and whether we came late, when the others had been told already."""

    peers: tuple[tuple[str, int, str] | None, ...]
    readers: tuple[int, ...]
    most_readers: int | None
    late: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Others:
        """From the order's value. Raises KeyError, TypeError or ValueError."""
        return cls(
            peers=tuple(None if peer is None else (str(peer[0]), int(peer[1]), str(peer[2])) for peer in value["peers"]),
            readers=tuple(int(index) for index in value["readers"]),
            most_readers=value["most_readers"],
            late=bool(value["late"]),
        )


class Orders:
    """Lines of JSON on a descriptor, taken as they come."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = bytearray()
        os.set_blocking(descriptor, False)

    def take(self) -> list[dict[str, Any]]:
        """What has come. Raises Cancelled at the end of it, StagingError for what is no order."""
        try:
            data = os.read(self.descriptor, 1 << 18)
        except BlockingIOError:
            return []
        if not data:
            raise Cancelled("the program that asked for these files has gone; an unfinished copy is kept, the next one resumes it")
        if b"\n" not in data:
            self._rest += data
            if len(self._rest) > MOST_LINE:
                raise StagingError(f"an order of more than {MOST_LINE} bytes")
            return []
        *lines, rest = bytes(self._rest + data).split(b"\n")
        self._rest = bytearray(rest)
        try:
            found = [json.loads(line) for line in lines]
        except ValueError as error:
            raise StagingError(f"an order that is not JSON: {error}") from error
        if not all(isinstance(order, dict) for order in found):
            raise StagingError("an order that is no object")
        return found
