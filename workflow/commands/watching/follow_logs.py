"""Show logs for `slipway logs RUN --follow`: what is there, then what is written, until the run ends. Files may appear and go meanwhile."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

from base.logs import printable
from base.untrusted import open_file

EVERY_S: Final = 1.0
LOOK_S: Final = 5.0
"""The seconds between two looks whether the run still goes on: on storage, and at its holder."""
MAX_LINE: Final = 1 << 16


class _Followed:
    """A log that is open: its directory may be removed, or copied to storage, before all of it was read."""

    def __init__(self, path: Path, content: BinaryIO) -> None:
        self.path, self.content = path, content
        self.rest = b""

    def new_lines(self, *, to_the_end: bool) -> Iterator[str]:
        """Yield whole lines; the beginning of one too where nobody will write more. A longer line is shown in parts."""
        while part := self.content.readline(MAX_LINE):
            self.rest += part
            if self.rest.endswith(b"\n") or len(self.rest) >= MAX_LINE:
                yield self._taken()
        if to_the_end and self.rest:
            yield self._taken()

    def _taken(self) -> str:
        line, self.rest = self.rest, b""
        return line.decode(errors="replace").rstrip("\r\n")


def follow(
    files: Callable[[], Sequence[Path]],
    runs: Callable[[], bool],
    last: int | None = None,
    *,
    every_s: float = EVERY_S,
    look_s: float = LOOK_S,
) -> None:
    """Print until `runs` says no, and all that was written by then. `last`: so many lines of what is there already."""
    with ExitStack() as opened:
        _follow(files, runs, last, opened, every_s, look_s)


def _follow(
    files: Callable[[], Sequence[Path]], runs: Callable[[], bool], last: int | None, opened: ExitStack, every_s: float, look_s: float
) -> None:
    followed: dict[str, _Followed] = {}
    shown: Path | None = None
    looked, goes_on = -look_s, True
    while goes_on:
        if time.monotonic() - looked >= look_s:
            goes_on, looked = runs(), time.monotonic()
        for path in files():
            if path.name not in followed and (content := _opened(path)) is not None:
                followed[path.name] = _Followed(path, opened.enter_context(content))
        for log in followed.values():
            lines = log.new_lines(to_the_end=not goes_on)
            for text in lines if last is None else deque(lines, maxlen=last):
                if shown != log.path:
                    sys.stdout.write(f"{'' if shown is None else chr(10)}==> {printable(str(log.path))} <==\n")
                    shown = log.path
                sys.stdout.write(printable(text) + "\n")
        last = None
        sys.stdout.flush()
        if goes_on:
            time.sleep(every_s)


def _opened(path: Path) -> BinaryIO | None:
    try:
        return os.fdopen(open_file(path), "rb")
    except OSError:
        return None
