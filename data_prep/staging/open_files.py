"""Files that several threads use for a short time each: opened when they are wanted, closed when many others have been wanted since."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What is kept open."""

    def close(self) -> None:
        """Give it back."""


T = TypeVar("T", bound=Closable)


class OpenFiles(Generic[T]):
    """At most about `keep` open, by number. `may_close(file)` is asked before one is closed for another."""

    def __init__(self, open_: Callable[[int], T], keep: int, may_close: Callable[[T], bool] = lambda _file: True) -> None:
        self._open, self._keep, self._may_close = open_, keep, may_close
        self._files: dict[int, T] = {}
        self._users: dict[int, int] = {}
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def use(self, number: int) -> Iterator[T]:
        """The file `number`, for as long as the context lasts."""
        with self._lock:
            if number not in self._files:
                self._files[number] = self._open(number)
            self._files[number] = self._files.pop(number)  # the last used is the last
            self._users[number] = self._users.get(number, 0) + 1
        try:
            yield self._files[number]
        finally:
            with self._lock:
                self._users[number] -= 1
                self._trim()

    def all(self) -> list[T]:
        """Those that are open now."""
        with self._lock:
            return list(self._files.values())

    def _trim(self) -> None:
        keep = 0 if self._closed else self._keep
        for number in list(self._files)[: max(0, len(self._files) - keep)]:
            if not self._users.get(number) and (self._closed or self._may_close(self._files[number])):
                self._files.pop(number).close()

    def close(self) -> None:
        """Close them all; those that a thread still has in use, or opens, when that has done with it, if ever."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._trim()
            finally:
                self._lock.release()
