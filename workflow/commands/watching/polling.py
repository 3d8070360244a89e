"""Look again and again at what tells nobody that it has changed: files on storage, the scheduler's queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

LOOK_S: Final = 1.0
"""The time between two looks."""


def looks(look: Callable[[], T], limit_s: float | None) -> Iterator[T]:
    """Yield what is seen, every LOOK_S seconds, for `limit_s`; None: for ever."""
    end = None if limit_s is None else time.monotonic() + limit_s
    while end is None or time.monotonic() < end:
        yield look()
        time.sleep(LOOK_S)
