"""Which share of the chunks each node reads from storage: computed from what all nodes were told, so that each of them gets the same
answer."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

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
