"""What a process prints, kept within bounds: the head and the tail of a flood, and its last lines for messages."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO

from base.command import last_lines
from base.logs import masked, printable

_EPILOGUE = re.compile(r"^[EWI][0-9]{4} [0-9:.]+ [^\n]*torch/distributed/elastic/", re.MULTILINE)
"""What torchrun adds once a rank has failed hides what the rank said of it."""
logger = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
RECENT_BYTES = 16384
LAST_LINES = 20
LAST_BYTES = 4000


class RankLog:
    """A log of at most `max_bytes`: its first half as it came; of what follows, the last quarter to half, kept in two files in turn."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._head = path.open("wb", buffering=0)
        self._head_left = max_bytes // 2
        self._segment_bytes = max_bytes // 4
        self._segments: list[IO[bytes]] = []
        self._left_out = 0
        self._recent = b""
        self.problem: str | None = None
        """Why nothing is written any more: a full disk must not hide what the process says of it."""

    def write(self, data: bytes) -> None:
        """Take what the process has printed."""
        self._recent = (self._recent + data)[-RECENT_BYTES:]
        if self.problem is None:
            self._guarded(lambda: self._write(data))

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            self.problem = error.strerror or str(error)
            logger.error("%s cannot be written on: %s", self._path, self.problem)

    def _write(self, data: bytes) -> None:
        head, tail = data[: self._head_left], data[self._head_left :]
        if head:
            self._head.write(head)
            self._head_left -= len(head)
        while tail:
            segment = self._open_segment()
            room = self._segment_bytes - segment.tell()
            segment.write(tail[:room])
            tail = tail[room:]

    def _open_segment(self) -> IO[bytes]:
        if not self._segments:
            self._segments.append(self._tail_file(0))
        current = self._segments[-1]
        if current.tell() < self._segment_bytes:
            return current
        if len(self._segments) == 1:
            self._segments.append(self._tail_file(1))
        else:
            oldest = self._segments.pop(0)
            self._left_out += oldest.tell()
            oldest.seek(0)
            oldest.truncate()
            self._segments.append(oldest)
        return self._segments[-1]

    def _tail_file(self, number: int) -> IO[bytes]:
        path = self._path.with_name(f".{self._path.name}.tail-{number}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        path.unlink()
        return os.fdopen(descriptor, "w+b", buffering=0)

    def recent(self) -> str:
        """The last that was printed, as it is."""
        return self._recent.decode(errors="replace")

    def last_lines(self) -> str:
        """The last lines, safe to show, secrets masked."""
        said = self.recent()
        text = printable(masked(_EPILOGUE.split(said)[0] or said))
        return last_lines(text, LAST_LINES)[-LAST_BYTES:]

    def close(self) -> None:
        """Put head and tail together."""
        if self.problem is None:
            self._guarded(self._join)
        for segment in self._segments:
            segment.close()
        self._segments = []
        self._head.close()

    def _join(self) -> None:
        if self._left_out:
            self._head.write(f"\n... {self._left_out} bytes left out here ...\n".encode())
        for segment in self._segments:
            segment.seek(0)
            while chunk := segment.read(1 << 20):
                self._head.write(chunk)
