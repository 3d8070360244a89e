"""Which chunks of an unfinished copy are on the disk for certain: a line is written after the data it speaks of were synced.

The file lies inside the copy's directory, so that it can never speak of another copy. Every line carries its own checksum: after a power
cut the tail may be anything.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from base.foreign import digits
from data_prep.file_set import JOURNAL_NAME

MAX_RUN = 1 << 22
"""Chunks of a line: of the default size, 16 TB."""
Chunk = tuple[int, int]  # number of the file in its set, number of the chunk in it


class Journal:
    """Open for appending; `done` holds what earlier copies left, if it was a copy of the same set."""

    def __init__(self, directory: Path, digest: str) -> None:
        self._descriptor = os.open(directory / JOURNAL_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        head = self._head = _line(f"journal of {digest}")
        self.done: set[Chunk] = set()
        end = len(head)
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            if file.read(end) == head:
                for line in file:
                    chunks = parse_line(line)
                    if chunks is None:
                        break
                    self.done.update(chunks)
                    end += len(line)
            else:
                end = 0
        os.ftruncate(self._descriptor, end)
        os.pwrite(self._descriptor, head, 0)
        self._end = max(end, len(head))

    def close(self) -> None:
        os.close(self._descriptor)

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Note chunks whose data were synced. Raises OSError: then the copy is not to be trusted any more."""
        text = b"".join(_line(f"{file} {first} {last}") for file, first, last in _runs(sorted(chunks)))
        os.pwrite(self._descriptor, text, self._end)
        os.fdatasync(self._descriptor)
        self._end += len(text)

    def strike(self, chunks: set[Chunk]) -> None:
        """Forget `chunks`, before their place is given anew. A kill in between forgets more, never less."""
        if not chunks:
            return
        self.done -= chunks
        self._end = len(self._head)
        os.ftruncate(self._descriptor, self._end)
        os.fdatasync(self._descriptor)
        self.add(self.done)


def _line(text: str) -> bytes:
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


def parse_line(line: bytes) -> list[Chunk] | None:
    """The chunks of a line after the first; None for a torn one."""
    text, _, _ = line.decode("latin-1").rpartition(" ")
    if _line(text) != line:
        return None
    words = [digits(word) for word in text.split()]
    if len(words) != 3 or None in words:
        return None
    file, first, last = (word or 0 for word in words)
    return [(file, chunk) for chunk in range(first, last + 1)] if last - first < MAX_RUN else None


def _runs(chunks: list[Chunk]) -> Iterator[tuple[int, int, int]]:
    """Neighbours in one line: file, first, last."""
    start = 0
    for position in range(1, len(chunks) + 1):
        file, chunk = chunks[position - 1]
        if position == len(chunks) or chunks[position] != (file, chunk + 1):
            yield file, chunks[start][1], chunk
            start = position
