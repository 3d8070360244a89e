"""Lock the machine, or nodes of a job, for one run, so that two runs never share a node or its GPUs.

The kernel frees a lock when the last process that has its file open ends.
"""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from base.errors import AllocationError
from base.lock import LockFile
from base.system import user_name
from cluster.types import Allocation
from workflow.run.storage.results import PreparedRun
from workflow.run.supervisor import step_limits
from workflow.run.supervisor.run_scope import RunScope

logger = logging.getLogger(__name__)

MACHINE: Final = "this machine"


class NodeLocks:
    """A number (`count`) of the locks `paths` for one supervisor, all at once or none; taken with `take`, given back with `give` or by our
    end. Snakemake starts no more runs than there are nodes for."""

    def __init__(self, scope: RunScope, paths: Sequence[Path], count: int) -> None:
        self._scope = scope
        self.paths, self.count = tuple(paths), count
        self._locks = [self._open(path) for path in paths]

    def _open(self, path: Path) -> LockFile:
        with _explained(path):
            lock = LockFile(path, trusted=True)
        self._scope.loop.private.append(lock.descriptor)  # a child that hangs must not keep the lock
        return lock

    @property
    def taken(self) -> tuple[int, ...]:
        """Return the positions in `paths` of the locks that we hold."""
        return tuple(index for index, lock in enumerate(self._locks) if lock.held)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return those of the locks that we hold: who inherits them holds the locks too."""
        return tuple(lock.descriptor for lock in self._locks if lock.held)

    def try_take(self) -> bool:
        """Take as many of the locks that are free as we need; none, and False, if these are too few."""
        for lock in self._locks:
            if len(self.taken) < self.count:
                with _explained(lock.path):
                    lock.try_take()
        if len(self.taken) < self.count:
            self._let_go()
        return len(self.taken) == self.count

    def take(self, look: Callable[[], None] = lambda: None) -> None:
        """Take the locks, waiting in the loop, which calls `look` now and then. Raises RunEnded if the run ends meanwhile."""
        self._scope.loop.every(step_limits.SHOW_EVERY_S, look)
        while not self.try_take():
            self._scope.wait(lambda: False, step_limits.NODE_LOCKS_AGAIN_S)

    def _let_go(self) -> None:
        for lock in self._locks:
            lock.unlock()

    def sign(self, text: str) -> None:
        """Say in the files who has them."""
        for lock in self._locks:
            if lock.held:
                lock.write_holder(text)

    def signature(self) -> str:
        """Return who holds the locks now, as far as is known."""
        found = [lock.read_holder() for lock in self._locks if not lock.held]
        return ", ".join(dict.fromkeys(text for text in found if text))

    def give(self, inherited: bool = False) -> None:
        """Release them now, or when a program that has `inherited` them has ended too. May be called twice."""
        if not inherited:
            self._let_go()
        for lock in self._locks:
            self._scope.loop.private.remove(lock.descriptor)
            lock.close()
        self._locks = []


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AllocationError(
            f"the lock {path} cannot be opened: {error.strerror}; {path.parent} must be yours: remove it, or ask its owner to"
        ) from error


def take_nodes(run: PreparedRun, locks: NodeLocks) -> Allocation:
    """Wait until as many nodes as the run needs are ours: of a job that runs share, those whose locks we get."""
    allocation = run.allocation
    if not locks.try_take():
        count, among = locks.count, len(locks.paths)
        what = MACHINE if among == count == 1 else f"{count} of {among} nodes of job {allocation.job_id}"
        holder = locks.signature()
        logger.info("%s", waiting_words(what, holder, run.study))

        def look() -> None:
            nonlocal holder
            if len(locks.taken) < locks.count and (now := locks.signature()) not in ("", holder):
                holder = now
                logger.info("%s", waiting_words(what, holder, run.study))

        locks.take(look)
    locks.sign(f"{_study_words(run.study)} process {os.getpid()} ({run.run_id})")
    if allocation.own_job or not locks.paths:
        return allocation
    return dataclasses.replace(allocation, nodes=tuple(allocation.nodes[index] for index in locks.taken))


def waiting_words(what: str, holder: str, study: str) -> str:
    """Describe what a run of `study` waits for and who has it; where that is another study, how to have this machine sooner."""
    if what != MACHINE or not holder or holder.startswith(_study_words(study)):
        return f"waiting for {what}: {holder or 'other runs have it'}"
    return f"waiting for {what}: {holder} measures on it until its end; Ctrl-C where that study was started frees it"


def _study_words(study: str) -> str:
    return f"study {study} of {user_name(os.geteuid())},"
