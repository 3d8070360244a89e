"""Look again and again at what tells nobody that it has changed: files on storage, the scheduler's queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from workflow.session.limits import SHOW_S

T = TypeVar("T")


def looks(look: Callable[[], T], limit_s: float | None) -> Iterator[T]:
    """Yield what is seen, every SHOW_S seconds, for `limit_s`; None: for ever."""
    end = None if limit_s is None else time.monotonic() + limit_s
    while end is None or time.monotonic() < end:
        yield look()
        time.sleep(SHOW_S)
