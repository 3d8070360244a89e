"""Number the chunks of a set of files in one row, file after file, and keep a journal of those on the disk.

Nodes that pass chunks on use these numbers.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

from base.sanitize import ascii_int
from data_prep import file_set, hashing

_LINE = b"%010d\n"


class Journal:
    """The list of the chunks of an unfinished copy that are on the disk: a line is written after its data were synced.

    It says which chunks are worth reading back; their hashes say whether they are right. So it may list too much, as after a power cut,
    which may leave anything at its end. The file lies inside the copy's directory, so that it can never describe another copy. `done` holds
    what earlier copies of the same set left.
    """

    def __init__(self, directory: Path, num_chunks: int) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(directory / file_set.JOURNAL_NAME, flags, 0o600)
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            numbers = {ascii_int(line[:-1].decode("latin-1")) for line in file if len(line) == len(_LINE % 0)}  # a torn one is shorter
        self.done = {number for number in numbers if number is not None and number < num_chunks}

    def close(self) -> None:
        os.close(self._descriptor)

    def add(self, chunks: Iterable[int]) -> None:
        """Note chunks whose data were synced. Raises OSError: then the copy is not to be trusted any more."""
        os.write(self._descriptor, b"\n" + b"".join(_LINE % chunk for chunk in chunks))  # the first newline ends a torn line
        os.fdatasync(self._descriptor)


class ChunkTable:
    """A table of where each chunk lies, how long it is, and what it must hash to."""

    def __init__(self, files: Sequence[hashing.ChunkedFile]) -> None:
        self.files = files
        self._starts = [0, *accumulate(len(file.chunks) for file in files)]
        self.num_chunks = self._starts[-1]

    def where(self, number: int) -> tuple[int, int]:
        """Return the number of the file, and that of the chunk in it."""
        file = bisect_right(self._starts, number) - 1
        return file, number - self._starts[file]

    def of_file(self, file: int) -> range:
        return range(self._starts[file], self._starts[file + 1])

    def span(self, number: int) -> tuple[int, int, int]:
        """Return the number of the file, the offset in it, and the length in bytes."""
        file, chunk = self.where(number)
        offset = chunk * self.files[file].chunk_bytes
        return file, offset, min(self.files[file].chunk_bytes, self.files[file].bytes - offset)

    def num_bytes(self, number: int) -> int:
        return self.span(number)[2]

    def hash(self, number: int) -> str:
        """Return the hash of a chunk, xxh3_128 in hex."""
        file, chunk = self.where(number)
        return self.files[file].chunks[chunk]

    def describe(self, number: int) -> str:
        file, chunk = self.where(number)
        return f"chunk {chunk} of {self.files[file].name}"

    def marks(self, chunks: Iterable[int]) -> bytearray:
        """Make a byte array with 1 for the chunks in `chunks`."""
        found = bytearray(self.num_chunks)
        for chunk in chunks:
            found[chunk] = 1
        return found

    @property
    def largest(self) -> int:
        return max((min(file.chunk_bytes, file.bytes) for file in self.files), default=0)
