"""What this node knows about the chunks: which it has, who else has which, which are on their way. No sockets, no files, no clock.

A node asks each other for what that one has and it lacks, the rarest first of a random few: so a chunk that only one node has spreads over
different nodes, who pass it on, and the sending is shared without anybody planning it.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Mapping, Sequence

_LOOKS = 24


class View:
    """What another node has, as far as we were told, and what we asked it for: chunk -> when."""

    def __init__(self, num_chunks: int) -> None:
        self.have = bytearray(num_chunks)
        self.offers = array("L")
        self.asked: dict[int, float] = {}


class Swarm:
    """`have` holds one byte per chunk, 1 for ours; `holders` how many others have it; `reading` what we read from storage,
    and since when; `writing` what has come from others and is not checked and written yet."""

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
        """Somebody is there; what it has comes by `offer`."""
        self.views[peer] = View(len(self.have))

    def offer(self, peer: int, chunks: Iterable[int]) -> None:
        """`peer` has these chunks. Raises IndexError for a number that is none."""
        view = self.views[peer]
        for chunk in chunks:
            if not view.have[chunk]:
                view.have[chunk] = 1
                self.holders[chunk] += 1
                if not self.have[chunk]:
                    view.offers.append(chunk)

    def withdraw(self, peer: int, chunk: int) -> None:
        """`peer` does not have it after all."""
        view = self.views[peer]
        self.answered(peer, chunk)
        if view.have[chunk]:
            view.have[chunk] = 0
            self.holders[chunk] -= 1

    def leave(self, peer: int) -> None:
        """`peer` is gone, with all it had."""
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
        """A chunk to ask `peer` for; None if it has none that we lack and that is not on its way already."""
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
        """A chunk that `peer` has too, and that another was asked for before that moment and has not sent yet; or that we began to read
        from storage before it, which has not given it."""
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
        """Whether it was asked for, is being read, or has come."""
        return chunk in self._flights or chunk in self.reading or chunk in self.writing

    def ask(self, peer: int, chunk: int, now: float) -> None:
        """We asked `peer` for it."""
        self.views[peer].asked[chunk] = now
        self._flights[chunk] = self._flights.get(chunk, 0) + 1

    def answered(self, peer: int, chunk: int) -> bool:
        """It came, or will not; False if it was not asked for."""
        view = self.views.get(peer)
        if view is None or view.asked.pop(chunk, None) is None:
            return False
        self._land(chunk)
        return True

    def got(self, chunk: int) -> bool:
        """It is ours now, checked and written; False if it was already."""
        if self.have[chunk]:
            return False
        self.have[chunk] = 1
        self.missing -= 1
        return True

    def drop(self, chunk: int) -> None:
        """It is not ours after all: what our disk gives back is something else."""
        if not self.have[chunk]:
            return
        self.have[chunk] = 0
        self.missing += 1
        for view in self.views.values():
            if view.have[chunk]:
                view.offers.append(chunk)

    # -- what nobody brings

    def unclaimed(self, stuck_before: float) -> list[int]:
        """Chunks that we lack, that are not being read or written here, and that nobody is known to have, or whose holder was asked before
        that moment and has not sent them."""
        stuck = {chunk for view in self.views.values() for chunk, asked_at in view.asked.items() if asked_at < stuck_before}
        found, position = [], self.have.find(0)
        while position >= 0:
            is_here = position in self.reading or position in self.writing
            if not is_here and (position in stuck or (not self.holders[position] and position not in self._flights)):
                found.append(position)
            position = self.have.find(0, position + 1)
        return found

    def is_unclaimed(self, chunk: int, stuck_before: float) -> bool:
        """Whether `unclaimed` would name it now."""
        if self.have[chunk] or chunk in self.reading or chunk in self.writing:
            return False
        if chunk in self._flights:
            return any(view.asked.get(chunk, stuck_before) < stuck_before for view in self.views.values())
        return not self.holders[chunk]

    @property
    def num_left(self) -> int:
        """Chunks that are read from storage still, and have come from others meanwhile: nobody waits for them."""
        return sum(self.have[chunk] for chunk in self.reading)

    @property
    def num_asked(self) -> int:
        """Chunks on their way from others."""
        return sum(len(view.asked) for view in self.views.values())

    def _land(self, chunk: int) -> None:
        self._flights[chunk] -= 1
        if not self._flights[chunk]:
            del self._flights[chunk]


# Which share of the chunks each node reads from storage: computed from what all nodes were told, so that each of them gets the same
# answer.


NOBODY = 0xFFFF


def owners_of(num_chunks: int, held: Mapping[int, bytearray], readers: Sequence[int]) -> array[int]:
    """Pure: per chunk the node that reads it from storage, NOBODY where somebody has it already. The chunks that are to be read are cut
    into one contiguous range per reader, as equal as can be."""
    owners = array("H", [NOBODY]) * num_chunks
    if not readers:
        return owners
    taken = bytearray(num_chunks)
    for marks in held.values():
        taken = bytearray(map(int.__or__, taken, marks)) if any(marks) else taken
    wanted = [chunk for chunk in range(num_chunks) if not taken[chunk]]
    for position, chunk in enumerate(wanted):
        owners[chunk] = readers[position * len(readers) // len(wanted)]
    return owners
