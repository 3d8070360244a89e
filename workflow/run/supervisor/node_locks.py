"""Locks on what runs must not share: this machine while a run measures, or some nodes of a job that many runs are in. The kernel frees a
lock when the last process that has its file open ends, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from base.errors import AllocationError
from base.lock import LockFile, lock_some
from workflow.run.link.event_loop import Timer
from workflow.run.supervisor.limits import HOLDER_AGAIN_S, NODE_LOCKS_WAIT_S
from workflow.run.supervisor.run_scope import RunScope

QUEUE: Final = ".queue"
"""Of those who want the same locks: it is called after the first."""


class NodeLocks:
    """`count` of the locks `paths`, for one supervisor; taken with `take`, given back with `give` or by our end.

    Of several locks one after the other is kept as it gets free, by one supervisor at a time: the others wait behind it, so that nobody
    waits for what another who waits has taken, and a run of many nodes comes to its turn among runs of one.
    """

    def __init__(self, scope: RunScope, paths: Sequence[Path], count: int) -> None:
        self._scope = scope
        self.paths, self.count = tuple(paths), count
        self._locks = [self._open(path) for path in paths]
        self._queue = self._open(paths[0].with_suffix(QUEUE)) if len(paths) > 1 else None

    def _open(self, path: Path) -> LockFile:
        with _explained(path):
            lock = LockFile(path, trusted=True)
        self._scope.loop.private.append(lock.descriptor)  # a child that hangs must not keep the lock
        return lock

    @property
    def taken(self) -> tuple[int, ...]:
        """Positions in `paths` of the locks that we hold."""
        return tuple(index for index, lock in enumerate(self._locks) if lock.held)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Of the locks that we hold: who inherits them holds the locks too."""
        return tuple(lock.descriptor for lock in self._locks if lock.held)

    def try_take(self) -> bool:
        """Take them if there is nobody to wait for."""
        if self._queue is not None and not self._queue.held and not _try_take(self._queue):
            return False
        done = self._collect()
        if not done:
            self._let_go()
        return done

    def take(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Take them, waiting in the loop, and `tell` who has them, again whenever that is another one. Raises RunEnded if the run ends
        meanwhile."""
        told: list[str] = []

        def tell_holder() -> None:
            timers[:] = [self._scope.loop.after(HOLDER_AGAIN_S, tell_holder)]
            holder = self.signature()
            if [holder] != told:
                told[:] = [holder]
                tell(holder)

        timers: list[Timer] = []
        tell_holder()
        try:
            if self._queue is not None:
                while not self._queue.held and not _try_take(self._queue):
                    self._wait([self._queue], 1)
            while not self._collect():
                missing = [lock for lock in self._locks if not lock.held]
                self._wait(missing, self.count - len(self.taken))
        finally:
            timers[0].cancel()

    def _collect(self) -> bool:
        """Keep what is free, as far as we need it; whether that is all. Then the next in the queue may."""
        for lock in self._locks:
            if len(self.taken) < self.count and not lock.held:
                _try_take(lock)
        if len(self.taken) < self.count:
            return False
        for lock in self._locks:
            if not lock.held:
                lock.leave()  # the child that waited for us may have got more than was needed
        if self._queue is not None:
            self._queue.leave()
        return True

    def _let_go(self) -> None:
        for lock in self._all():
            lock.leave()

    def _all(self) -> list[LockFile]:
        return self._locks if self._queue is None else [*self._locks, self._queue]

    def _wait(self, locks: Sequence[LockFile], count: int) -> None:
        """Until `count` of `locks` have become ours: a lock belongs to the open file, so a child can wait for it in our name."""
        descriptors = tuple(lock.descriptor for lock in locks)
        self._scope.call("turn", lock_some, descriptors, count, timeout_s=NODE_LOCKS_WAIT_S, keep=descriptors)

    def sign(self, text: str) -> None:
        """Say in the files who has them."""
        for lock in self._locks:
            if lock.held:
                lock.say(text)

    def signature(self) -> str:
        """Who has them, as far as is known."""
        found = [lock.said() for lock in self._locks if not lock.held]
        return ", ".join(dict.fromkeys(text for text in found if text))

    def give(self, inherited: bool = False) -> None:
        """The next may have them: now, or when a program that has `inherited` them has ended too. Nothing if it was done before."""
        if not inherited:
            self._let_go()
        for lock in self._all():
            self._scope.loop.private.remove(lock.descriptor)
            lock.close()
        self._locks, self._queue = [], None


def _try_take(lock: LockFile) -> bool:
    with _explained(lock.path):
        return lock.try_take()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AllocationError(f"the lock {path} cannot be opened: {error.strerror}; whose is its directory?") from error
