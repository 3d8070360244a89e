"""The chunks of a set of files in one row: file after file, numbered from 0. Nodes that pass chunks on speak of these numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from data_prep.hashing import ChunkedFile
from data_prep.staging.journal import Chunk


class ChunkTable:
    """Pure: where each chunk lies, how long it is, what it must hash to."""

    def __init__(self, files: Sequence[ChunkedFile]) -> None:
        self.files = files
        self._starts = [0, *accumulate(len(file.chunks) for file in files)]
        self.num_chunks = self._starts[-1]

    def where(self, number: int) -> Chunk:
        """File, and chunk in the file."""
        file = bisect_right(self._starts, number) - 1
        return file, number - self._starts[file]

    def number(self, chunk: Chunk) -> int:
        """The inverse of `where`."""
        return self._starts[chunk[0]] + chunk[1]

    def span(self, number: int) -> tuple[int, int, int]:
        """Number of the file, offset in it, bytes."""
        file, chunk = self.where(number)
        offset = chunk * self.files[file].chunk_bytes
        return file, offset, min(self.files[file].chunk_bytes, self.files[file].bytes - offset)

    def hash(self, number: int) -> str:
        """xxh3_128, hex."""
        file, chunk = self.where(number)
        return self.files[file].chunks[chunk]

    def marks(self, chunks: Iterable[Chunk]) -> bytearray:
        """One byte per chunk, 1 for those in `chunks`."""
        found = bytearray(self.num_chunks)
        for chunk in chunks:
            found[self.number(chunk)] = 1
        return found

    @property
    def largest(self) -> int:
        """Bytes of the largest chunk."""
        return max((min(file.chunk_bytes, file.bytes) for file in self.files), default=0)


def pack(marks: bytearray) -> bytes:
    """One bit per chunk, the first in the lowest bit."""
    return int(bytes(marks[::-1]).translate(_DIGITS) or b"0", 2).to_bytes(packed_bytes(len(marks)), "little")


def unpack(packed: bytes, num_chunks: int) -> bytearray:
    """The inverse of `pack`; what lies beyond `num_chunks` is left out. Raises ValueError when it is too short."""
    if len(packed) != packed_bytes(num_chunks):
        raise ValueError(f"{len(packed)} bytes for {num_chunks} chunks")
    digits = bin(int.from_bytes(packed, "little"))[2:].rjust(num_chunks, "0")[-num_chunks:] if num_chunks else ""
    return bytearray(digits.encode()[::-1].translate(_VALUES))


def packed_bytes(num_chunks: int) -> int:
    """How long `pack` gets."""
    return -(-num_chunks // 8)


_DIGITS = bytes.maketrans(b"\0\1", b"01")
_VALUES = bytes.maketrans(b"01", b"\0\1")
