"""The same call for many things, by a few threads where that is worth it: what waits for a disk or for storage."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

THREADS: Final = 8
FEW: Final = 16
"""So many are done one after the other: threads would cost more."""

T = TypeVar("T")


def each(function: Callable[[T], object], things: Sequence[T]) -> None:
    """Call `function` for each of `things`, in no order where they are many. Raises what the first call that failed raised; others may have
    been made nevertheless. A file system writes down together what is synced at the same time: of 500 files of 4 KiB on an ext4 each alone
    took 1.2 s, by 8 threads 0.1 s (2026-11-23)."""
    if len(things) <= FEW:
        for thing in things:
            function(thing)
        return
    from concurrent.futures import ThreadPoolExecutor  # what imports base.publish starts many times, and hardly ever has so many files

    with ThreadPoolExecutor(min(THREADS, len(things))) as pool:
        deque(pool.map(function, things), maxlen=0)
