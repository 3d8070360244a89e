"""Verify runs in child processes, several at once: no file keeps the command waiting, also where storage hangs.

A child writes which file it reads into memory that it shares with its parent, before each file and after each block of one. Where nothing
has changed there for some time it is left alone (a process that waits for dead storage cannot be killed), and the file is named.
"""

from __future__ import annotations

import math
import mmap
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from base.calls import LimitedCall
from base.errors import StorageError
from base.logs import printable
from extras.verify.result import Verified

OnRead = Callable[[str | Path | None], None]
"""Called with what is read next, or None where nothing is read for a while, and so nothing can hang."""
Check = Callable[[Path, OnRead], Verified]

CHILDREN: Final = 4
MOST_TOGETHER: Final = 32
"""Runs of a child, which costs as much as a few of them."""
SILENCE_S: Final = 60.0
"""A block of a file, or the numbers of a file of events, take seconds where storage is slow."""
_PLACE_BYTES: Final = 1 << 13
_COUNT_BYTES: Final = 8
_POLL_S: Final = 0.5


class _Child:
    def __init__(self, runs: Sequence[Path], check: Check, until: float, silence_s: float) -> None:
        self.runs = runs
        self._until = until
        self._silence_s = silence_s
        self._memory = mmap.mmap(-1, _PLACE_BYTES)
        self._seen, self._since = b"", time.monotonic()
        self.call = LimitedCall(str(runs[0]), self._work, check, timeout_s=float("inf"))

    def _work(self, check: Check) -> dict[str, Any]:
        count = 0

        def on_read(place: str | Path | None) -> None:
            nonlocal count
            count += 1
            text = os.fsencode(place or "")[: _PLACE_BYTES - _COUNT_BYTES]
            self._memory[:] = count.to_bytes(_COUNT_BYTES, "big") + text.ljust(_PLACE_BYTES - _COUNT_BYTES, b"\0")

        total = Verified()
        for run in self.runs:
            total.add(check(run, on_read) if time.monotonic() < self._until else Verified(unread=1))
        return asdict(total)

    def fileno(self) -> int:
        return self.call.fileno()

    def is_silent(self) -> bool:
        now, seen = time.monotonic(), bytes(self._memory)
        if seen != self._seen or (self._place == "" and any(seen)):
            self._seen, self._since = seen, now
        return now - self._since > self._silence_s

    @property
    def _place(self) -> str:
        return os.fsdecode(self._seen[_COUNT_BYTES:].rstrip(b"\0"))

    def result(self) -> Verified:
        """Return what a child that has ended found. Raises StorageError where it has died, and Defect for a bug of ours."""
        return Verified(**self.call.result())

    def hanging(self) -> Verified:
        place = printable(self._place) or str(self.runs[0])
        silent = f"{place}: not read: nothing of it came within {self._silence_s:g} s; the storage behind it hangs, or is very slow"
        return Verified(silent=1, findings=[f"{silent}; what comes after it in its run is not verified"])


def each_run(
    runs_dir: Path, runs: Sequence[str], check: Check, until: float | None = None, silence_s: float = SILENCE_S
) -> Iterator[Verified]:
    """Yield what `check` finds in the runs, of some of them together, as they end. No run is begun after `until`, nor where CHILDREN of
    them in a row were silent. Where a child ends otherwise than it should, its runs are verified again, each by a child of its own."""
    end = math.inf if until is None else until
    together = max(1, min(MOST_TOGETHER, len(runs) // (8 * CHILDREN)))
    paths = [runs_dir / run for run in runs]
    waiting = deque(paths[start : start + together] for start in range(0, len(paths), together))
    going, silent = list[_Child](), 0
    try:
        while waiting or going:
            while waiting and (silent >= CHILDREN or time.monotonic() >= end):
                yield Verified(unread=len(waiting.pop()))
            while waiting and len(going) < CHILDREN:
                going.append(_Child(waiting.popleft(), check, end, silence_s))
            if going:
                select.select(going, [], [], min(_POLL_S, silence_s))
            for child in [*going]:
                if child.call.done():
                    going.remove(child)
                    try:
                        yield child.result()
                        silent = 0
                    except StorageError as error:
                        yield from _again(child, waiting, Verified(runs=1, findings=[f"{child.runs[0]}: not verified: {error}"]))
                elif child.is_silent():
                    going.remove(child)
                    child.call.abandon()
                    silent += len(child.runs) == 1
                    yield from _again(child, waiting, child.hanging())
    finally:
        for child in going:
            child.call.abandon()


def _again(child: _Child, waiting: deque[list[Path]], alone: Verified) -> Iterator[Verified]:
    """Yield `alone` if it was one run; else put each of them where it is verified next."""
    if len(child.runs) == 1:
        yield alone
    else:
        waiting.extendleft([run] for run in reversed(child.runs))
