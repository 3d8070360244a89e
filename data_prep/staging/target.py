"""A file in a part directory, open for writing. The descriptors stay open until its data are synced: a failed write-back is
reported to them only."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from data_prep.hashing import ChunkedFile
from data_prep.staging.files import BLOCK, open_file, write_from


class Target:
    """Several threads write, one syncs."""

    def __init__(self, part: Path, file: ChunkedFile, direct: bool) -> None:
        path = part / file.path
        self._file = open_file(path, os.O_RDWR, direct)
        self._tail = open_file(path, os.O_RDWR, False) if direct and file.bytes % BLOCK else self._file
        self._lock = threading.Lock()
        self._written = self._synced = 0

    @property
    def is_synced(self) -> bool:
        """Whether all that was written is on the disk."""
        return self._written == self._synced

    def write(self, buffer: memoryview, offset: int) -> None:
        """Write a chunk's bytes; the end of a file that is no whole block goes through the page cache. Raises OSError."""
        whole = len(buffer) - len(buffer) % BLOCK if self._tail != self._file else len(buffer)
        write_from(self._file, buffer[:whole], offset)
        write_from(self._tail, buffer[whole:], offset + whole)
        with self._lock:
            self._written += 1

    def sync(self) -> None:
        """What was written before is on the disk then. Raises OSError: it may not be."""
        written = self._written
        if written != self._synced:
            os.fdatasync(self._file)
            self._synced = written

    def close(self) -> None:
        """Give the descriptors back."""
        if self._tail != self._file:
            os.close(self._tail)
        os.close(self._file)
