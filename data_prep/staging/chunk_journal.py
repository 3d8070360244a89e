"""Number the chunks of a set of files in one row, file after file, and keep a journal of those on the disk.

Nodes that pass chunks on use these numbers.
"""

import os
import threading
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

from base.sanitize import ascii_int
from data_prep import file_set, hashing

# Journals


Chunk = tuple[int, int]  # number of the file in its set, number of the chunk in it


class Journal:
    """The list of the chunks of an unfinished copy that are certainly on the disk: a line is written after its data were synced.

    The file lies inside the copy's directory, so that it can never describe another copy. Each line has its own checksum, since after a
    power cut the tail may be anything. `done` holds what earlier copies of the same set left.
    """

    def __init__(self, directory: Path, digest: str) -> None:
        self._descriptor = os.open(directory / file_set.JOURNAL_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._head = _line(f"journal of {digest}")
        self._lock = threading.Lock()
        self.done, end = self._listed()
        os.ftruncate(self._descriptor, end)
        os.pwrite(self._descriptor, self._head, 0)
        self._end = max(end, len(self._head))

    def close(self) -> None:
        os.close(self._descriptor)

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Note chunks whose data were synced. Raises OSError: then the copy is not to be trusted any more."""
        with self._lock:
            self._append(chunks)

    def strike(self, chunks: set[Chunk]) -> None:
        """Forget `chunks`, whose place is used again. If we are killed meanwhile, more are forgotten (and copied again), never fewer."""
        if not chunks:
            return
        self.done -= chunks
        with self._lock:
            left = self._listed()[0] - chunks
            self._end = len(self._head)
            os.ftruncate(self._descriptor, self._end)
            os.fdatasync(self._descriptor)
            self._append(left)

    def _listed(self) -> tuple[set[Chunk], int]:
        """Read the file, and return its chunks and the end of its last whole line."""
        found: set[Chunk] = set()
        end = len(self._head)
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            if file.read(end) != self._head:
                return found, 0
            for line in file:
                chunk = parse_line(line)
                if chunk is None:
                    break
                found.add(chunk)
                end += len(line)
        return found, end

    def _append(self, chunks: Iterable[Chunk]) -> None:
        text = b"".join(_line(f"{file} {chunk}") for file, chunk in sorted(chunks))
        os.pwrite(self._descriptor, text, self._end)
        os.fdatasync(self._descriptor)
        self._end += len(text)


def _line(text: str) -> bytes:
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


def parse_line(line: bytes) -> Chunk | None:
    """Parse a line after the first one. The result is None for a torn line."""
    text, _, _ = line.decode("latin-1").rpartition(" ")
    match [ascii_int(word) for word in text.split()] if _line(text) == line else []:
        case [int(file), int(chunk)]:
            return file, chunk
    return None


class ChunkTable:
    """A table of where each chunk lies, how long it is, and what it must hash to."""

    def __init__(self, files: Sequence[hashing.ChunkedFile]) -> None:
        self.files = files
        self._starts = [0, *accumulate(len(file.chunks) for file in files)]
        self.num_chunks = self._starts[-1]

    def where(self, number: int) -> Chunk:
        file = bisect_right(self._starts, number) - 1
        return file, number - self._starts[file]

    def number(self, chunk: Chunk) -> int:
        return self._starts[chunk[0]] + chunk[1]

    def span(self, number: int) -> tuple[int, int, int]:
        """Return the number of the file, the offset in it, and the length in bytes."""
        file, chunk = self.where(number)
        offset = chunk * self.files[file].chunk_bytes
        return file, offset, min(self.files[file].chunk_bytes, self.files[file].bytes - offset)

    def hash(self, number: int) -> str:
        """Return the hash of a chunk, xxh3_128 in hex."""
        file, chunk = self.where(number)
        return self.files[file].chunks[chunk]

    def marks(self, chunks: Iterable[Chunk]) -> bytearray:
        """Make a byte array with 1 for the chunks in `chunks`."""
        found = bytearray(self.num_chunks)
        for chunk in chunks:
            found[self.number(chunk)] = 1
        return found

    @property
    def largest(self) -> int:
        return max((min(file.chunk_bytes, file.bytes) for file in self.files), default=0)
