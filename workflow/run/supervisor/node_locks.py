"""What runs must not share is locked: this machine while a run measures, or some nodes of a job that many runs are in. The kernel frees a
lock however its holder ends: with the last process that has its file open."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from base.errors import AllocationError
from workflow.run.link.calls import Call
from workflow.run.link.event_loop import Loop

LONGEST_WAIT_S: Final = 30 * 86400.0
QUEUE: Final = ".queue"
"""Of those who want the same locks: it is called after the first."""
TRIES: Final = 10
SIGNATURE_BYTES: Final = 500


class _Lock:
    """One lock file, open for as long as we live or until it is closed."""

    def __init__(self, loop: Loop, path: Path) -> None:
        self._loop = loop
        self._path = path
        self.held = False
        self.descriptor = self._open()

    def _open(self) -> int:
        for left in reversed(range(TRIES)):
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
                break
            except OSError as error:
                if not left or not isinstance(error, FileNotFoundError):
                    raise AllocationError(f"the lock {self._path} cannot be opened: {error.strerror}; whose is its directory?") from error
                self._path.parent.mkdir(mode=0o700, exist_ok=True)  # a cleaner of /tmp has taken it
        self._loop.private.append(descriptor)  # a child that hangs must not keep the lock
        return descriptor

    def try_take(self) -> bool:
        """Take it if it is free, or if a child has waited for it in our name."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.held = self._is_current()
        return self.held

    def _is_current(self) -> bool:
        """Whether what we locked still has the name: a cleaner of /tmp may have removed it."""
        try:
            found, ours = self._path.stat(), os.fstat(self.descriptor)
        except FileNotFoundError:
            found = None
        if found is not None and (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
            return True
        self.close()
        self.descriptor = self._open()
        return False

    def leave(self) -> None:
        """Let others have it; we may come back."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.held = False

    def close(self) -> None:
        """Give it up, as far as we have it: a program that was given the descriptor may hold it still."""
        self._loop.private.remove(self.descriptor)
        os.close(self.descriptor)
        self.held = False


class NodeLocks:
    """`count` of the locks `paths`, for one supervisor; taken with `take`, given back with `give` or by our end.

    Of several locks one after the other is kept as it gets free, by one supervisor at a time: the others wait behind it, so that nobody
    waits for what another who waits has taken, and a run of many nodes comes to its turn among runs of one.
    """

    def __init__(self, loop: Loop, paths: Sequence[Path], count: int) -> None:
        self._loop = loop
        self._count = count
        self._locks = [_Lock(loop, path) for path in paths]
        self._queue = _Lock(loop, paths[0].with_suffix(QUEUE)) if len(paths) > 1 else None

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
        if self._queue is not None and not self._queue.held and not self._queue.try_take():
            return False
        done = self._collect()
        if not done:
            self._let_go()
        return done

    def take(self) -> None:
        """Take them, waiting in the loop."""
        if self._queue is not None:
            while not self._queue.held and not self._queue.try_take():
                self._wait([self._queue], 1)
        while not self._collect():
            missing = [lock for lock in self._locks if not lock.held]
            self._wait(missing, self._count - len(self.taken))

    def _collect(self) -> bool:
        """Keep what is free, as far as we need it; whether that is all. Then the next in the queue may."""
        for lock in self._locks:
            if len(self.taken) < self._count and not lock.held:
                lock.try_take()
        if len(self.taken) < self._count:
            return False
        for lock in self._locks:
            if not lock.held:
                lock.leave()  # the child that waited for us may have got more than was needed
        if self._queue is not None:
            self._queue.leave()
        return True

    def _let_go(self) -> None:
        for lock in (*self._locks, *([self._queue] if self._queue is not None else [])):
            lock.leave()

    def _wait(self, locks: Sequence[_Lock], count: int) -> None:
        """Until `count` of `locks` have become ours: a lock belongs to the open file, so a child can wait for it in our name."""
        descriptors = tuple(lock.descriptor for lock in locks)
        waiting = Call(self._loop, "turn", _lock_some, descriptors, count, timeout_s=LONGEST_WAIT_S, keep=descriptors)
        try:
            waiting.wait()
        finally:
            waiting.abandon()  # nothing, if it has ended; the run may have, while it waits

    def sign(self, text: str) -> None:
        """Say in the files who has them."""
        for descriptor in self.descriptors:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text.encode(), 0)

    def signature(self) -> str:
        """Who has them, as far as is known."""
        found = [os.pread(lock.descriptor, SIGNATURE_BYTES, 0).decode(errors="replace") for lock in self._locks if not lock.held]
        return ", ".join(dict.fromkeys(text for text in found if text))

    def give(self, inherited: bool = False) -> None:
        """The next may have them: now, or when a program that has `inherited` them has ended too."""
        if not inherited:
            self._let_go()
        for lock in (*self._locks, *([self._queue] if self._queue is not None else [])):
            lock.close()
        self._locks, self._queue = [], None


def _lock_some(descriptors: Sequence[int], count: int) -> None:
    """In a child: wait for all at once, until `count` are locked. The threads that still wait end with the child."""
    got = threading.Semaphore(0)
    for descriptor in descriptors:
        threading.Thread(target=_lock, args=(descriptor, got), daemon=True).start()
    for _ in range(count):
        got.acquire()


def _lock(descriptor: int, got: threading.Semaphore) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    got.release()
