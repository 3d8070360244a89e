"""Keep what this node knows about the chunks: which it has, which the others have, and which are on their way.

Nothing here uses sockets, files or the clock. A node asks another one for the rarest of a few random chunks that it lacks. So a chunk that
only one node has spreads over different nodes, which pass it on, and the sending is shared without a plan.
"""

import random
from array import array
from collections.abc import Iterable, Sequence

_LOOKS = 24


class View:
    """The chunks that another node has, as far as is known, and the time at which each one was requested from it."""

    def __init__(self, num_chunks: int) -> None:
        self.have = bytearray(num_chunks)
        self.offers = array("L")
        self.asked: dict[int, float] = {}


class Swarm:
    """The state of all chunks.

    `have` holds one byte per chunk, 1 for those that are here; `holders` how many others have each; `reading` the chunks that are being
    read from storage, and since when; `writing` those that others sent and that are not checked and written yet.
    """

    def __init__(self, have: bytearray, seed: int) -> None:
        self.have = have
        self.missing = len(have) - sum(have)
        self.holders = array("L", [0]) * len(have)
        self.views: dict[int, View] = {}
        self.reading: dict[int, float] = {}
        self.writing: set[int] = set()
        self._flights: dict[int, int] = {}
        self._random = random.Random(seed)  # noqa: S311 - only spreads the load

    # -- what others have

    def join(self, peer: int) -> None:
        """Add a node. Its chunks come by `offer`."""
        self.views[peer] = View(len(self.have))

    def offer(self, peer: int, chunks: Iterable[int]) -> None:
        """Note that `peer` has these chunks. Raises IndexError for a number out of range."""
        view = self.views[peer]
        for chunk in chunks:
            if not view.have[chunk]:
                view.have[chunk] = 1
                self.holders[chunk] += 1
                if not self.have[chunk]:
                    view.offers.append(chunk)

    def withdraw(self, peer: int, chunk: int) -> None:
        """Note that `peer` lacks a chunk that it offered."""
        view = self.views[peer]
        self.answered(peer, chunk)
        if view.have[chunk]:
            view.have[chunk] = 0
            self.holders[chunk] -= 1

    def leave(self, peer: int) -> None:
        view = self.views.pop(peer, None)
        if view is None:
            return
        for chunk in list(view.asked):
            self._land(chunk)
        position = view.have.find(1)
        while position >= 0:
            self.holders[position] -= 1
            position = view.have.find(1, position + 1)

    # -- what to ask

    def pick(self, peer: int) -> int | None:
        """Choose a chunk to request from `peer`. The result is None if `peer` has none that is missing here and not on its way."""
        view, best, looks = self.views[peer], None, 0
        offers = view.offers
        while offers and looks < max(_LOOKS, 2 * len(self._flights)):
            position = self._random.randrange(len(offers))
            chunk = offers[position]
            if self.have[chunk] or not view.have[chunk]:
                offers[position] = offers[-1]
                offers.pop()
                continue
            looks += 1
            if not self.is_coming(chunk) and (best is None or self.holders[chunk] < self.holders[best]):
                best = chunk
        return best

    def pick_late(self, peer: int, before: float) -> int | None:
        """Choose a chunk of `peer` that is late: before that moment it was requested from another node, or its read from storage began."""
        mine = self.views[peer]
        for chunk, begun in self.reading.items():
            wanted = not (self.have[chunk] or chunk in self.writing or chunk in self._flights)
            if wanted and begun < before and mine.have[chunk]:
                return chunk
        for other, view in self.views.items():
            if other != peer:
                for chunk, asked_at in view.asked.items():
                    wanted = not (self.have[chunk] or chunk in self.writing or chunk in mine.asked)
                    if wanted and asked_at < before and mine.have[chunk] and self._flights[chunk] == 1:
                        return chunk
        return None

    def is_coming(self, chunk: int) -> bool:
        return chunk in self._flights or chunk in self.reading or chunk in self.writing

    def ask(self, peer: int, chunk: int, now: float) -> None:
        """Note that a chunk was requested from `peer`."""
        self.views[peer].asked[chunk] = now
        self._flights[chunk] = self._flights.get(chunk, 0) + 1

    def answered(self, peer: int, chunk: int) -> bool:
        """Note that a request was answered. Return False if there was none."""
        view = self.views.get(peer)
        if view is None or view.asked.pop(chunk, None) is None:
            return False
        self._land(chunk)
        return True

    def got(self, chunk: int) -> bool:
        """Note that a chunk was checked and written. Return False if it was here already."""
        if self.have[chunk]:
            return False
        self.have[chunk] = 1
        self.missing -= 1
        return True

    def drop(self, chunk: int) -> None:
        """Note that the disk has lost a chunk that was here."""
        if not self.have[chunk]:
            return
        self.have[chunk] = 0
        self.missing += 1
        for view in self.views.values():
            if view.have[chunk]:
                view.offers.append(chunk)

    # -- what nobody brings

    def unclaimed(self, stuck_before: float) -> list[int]:
        """List the missing chunks that nobody brings. They are not being read or written here, and nobody is known to have them, or their
        holder was asked before that moment and has not sent them."""
        return [chunk for chunk, is_here in enumerate(self.have) if not is_here and self.is_unclaimed(chunk, stuck_before)]

    def is_unclaimed(self, chunk: int, stuck_before: float) -> bool:
        if self.have[chunk] or chunk in self.reading or chunk in self.writing:
            return False
        if chunk in self._flights:
            return any(view.asked.get(chunk, stuck_before) < stuck_before for view in self.views.values())
        return not self.holders[chunk]

    @property
    def num_left(self) -> int:
        """Count the chunks that are still being read from storage although others have sent them meanwhile."""
        return sum(self.have[chunk] for chunk in self.reading)

    @property
    def num_requested(self) -> int:
        return sum(len(view.asked) for view in self.views.values())

    def _land(self, chunk: int) -> None:
        self._flights[chunk] -= 1
        if not self._flights[chunk]:
            del self._flights[chunk]


# Shares of the storage reads


NOBODY = 0xFFFF


def owners_of(num_chunks: int, readers: Sequence[int]) -> "array[int]":
    """Assign to each chunk the node that reads it from storage, NOBODY without readers: one contiguous range per reader, of nearly equal
    length. The result depends on the arguments only, so that all nodes compute the same."""
    return array("H", (readers[chunk * len(readers) // num_chunks] if readers else NOBODY for chunk in range(num_chunks)))
