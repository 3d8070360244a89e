"""Ask the scheduler for the supervisor what each node was granted, when and why the job ends, and hold the locks of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from base.errors import AllocationError, SlipwayError
from base.lock import LockFile
from base.system import user_name
from cluster import grants, schedulers
from cluster.types import Allocation
from workflow.run.link.event_loop import Call
from workflow.run.link.reports import Ready, Staged
from workflow.run.record.outcome import Ending
from workflow.run.record.step_clock import Clock
from workflow.run.storage.results import PreparedRun
from workflow.run.supervisor import time_limits
from workflow.run.supervisor.nodes import Nodes
from workflow.run.supervisor.time_limits import RunScope, TimeLimit

# Locks on what runs must not share: this machine while a run measures, or some nodes of a job with many runs. The kernel frees a lock when
# the last process that has its file open ends.


MACHINE: Final = "this machine"
QUEUE: Final = ".queue"
"""The suffix of the file in which runs queue for several locks; the rest of its name is that of the first lock."""


class NodeLocks:
    """A number (`count`) of the locks `paths` for one supervisor; taken with `take`, given back with `give` or by our end.

    One supervisor at a time collects its locks, each as it becomes free; the others queue behind it. So two waiting supervisors never block
    each other, and a run of many nodes gets its turn among runs of one node.
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
        """Return the positions in `paths` of the locks that we hold."""
        return tuple(index for index, lock in enumerate(self._locks) if lock.held)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return those of the locks that we hold: who inherits them holds the locks too."""
        return tuple(lock.descriptor for lock in self._locks if lock.held)

    def try_take(self) -> bool:
        done = self._collect()
        if not done:
            self._let_go()
        return done

    def take(self, look: Callable[[], None] = lambda: None) -> None:
        """Take the locks, waiting in the loop, which calls `look` now and then. Raises RunEnded if the run ends meanwhile."""
        self._scope.loop.every(time_limits.SHOW_EVERY_S, look)
        while not self._collect():
            self._scope.wait(lambda: False, time_limits.NODE_LOCKS_AGAIN_S)

    def _collect(self) -> bool:
        """Keep what is free, as far as we need it, if we are the first in the queue. When that is all, the next in the queue may."""
        if self._queue is not None and not self._queue.held and not _try_take(self._queue):
            return False
        for lock in self._locks:
            if len(self.taken) < self.count and not lock.held:
                _try_take(lock)
        if len(self.taken) < self.count:
            return False
        if self._queue is not None:
            self._queue.unlock()
        return True

    def _let_go(self) -> None:
        for lock in self._all():
            lock.unlock()

    def _all(self) -> list[LockFile]:
        return self._locks if self._queue is None else [*self._locks, self._queue]

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
        raise AllocationError(
            f"the lock {path} cannot be opened: {error.strerror}; {path.parent} must be yours: remove it, or ask its owner to"
        ) from error


logger = logging.getLogger(__name__)


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


class Job:
    """The job of an attempt, with what it was granted as far as is known, and what the scheduler is asked beside the run."""

    def __init__(self, scope: RunScope, clock: Clock, time: TimeLimit, scheduler: schedulers.Scheduler, allocation: Allocation) -> None:
        self._scope, self._clock, self._time = scope, clock, time
        self.scheduler = scheduler
        self.allocation = allocation
        self.give_up_silent_nodes: Callable[[], tuple[str, ...]] = tuple
        """Wait for silent nodes no more, where the scheduler says that a node is lost, and return their names."""
        self.is_ending = False
        """True if somebody was told to end, and we ask why: all that happens meanwhile is a consequence."""

    # -- what the nodes say

    def complete(self, nodes: Nodes, run: PreparedRun) -> Sequence[str]:
        """Fill in what the node programs were granted, and return warnings. Ends the run if that is not what was asked."""
        told = [node.answer(Ready).grant for node in nodes.all]
        try:
            self.allocation, warnings = grants.complete(self.allocation, told, run.cell.gpus_per_node, run.site.foreign_gpu)
        except AllocationError as error:
            used = tuple(grant.node for grant in told if grant is not None and any(use.uuid for use in grant.other_use))
            at_fault = used if run.site.foreign_gpu == "refuse" else ()
            self._scope.fail(Ending(status="node_lost", reason=str(error), error=AllocationError, nodes=at_fault))
        nodes.set_granted(self.allocation.nodes)
        return warnings

    def gpu_warnings(self, nodes: Nodes, run: PreparedRun) -> Sequence[str]:
        """Return warnings of other users of the GPUs, if `complete` has not heard of them, and of faults, just before the ranks start."""
        staged = [(node.node.name, node.answer(Staged)) for node in nodes.present()]
        foreign, faults = (
            [(name, use) for name, one in staged for use in one.other_use],
            [(name, fault) for name, one in staged for fault in one.faults],
        )
        name = f"run {run.run_id}"
        try:
            return (
                *grants.other_use_warnings(name, foreign, run.site.foreign_gpu),
                *grants.health_warnings(name, faults, run.site.gpu_health),
            )
        except AllocationError as error:
            refused = faults if run.site.gpu_health == "refuse" and faults else foreign
            at_fault = tuple(dict.fromkeys(name for name, _ in refused))
            self._scope.fail(Ending(status="node_lost", reason=str(error), error=AllocationError, nodes=at_fault))

    # -- what the scheduler says

    def wait_if_ending(self) -> None:
        """Wait for the end if the job is being ended: the scheduler's word, or its silence, ends the run."""
        if self.is_ending:
            self._scope.wait(lambda: False)

    def ask(self) -> None:
        """Ask for the job's end, and how long it waited, unless that is known and the job is not ours alone."""
        if self.allocation.own_job or self.allocation.deadline is None:
            call = Call(self._scope.loop, "the scheduler", self.scheduler.job_facts, self.allocation, timeout_s=time_limits.JOB_FACTS_S)
            call.then(self._answered)

    def _answered(self, call: Call) -> None:
        try:
            facts: dict[str, float | None] = call.result()
        except SlipwayError as error:
            logger.warning(
                "the job's end is not known, the run's own walltime counts: %s; asked again in %.0f s", error, time_limits.JOB_FACTS_AGAIN_S
            )
            self._scope.loop.after(time_limits.JOB_FACTS_AGAIN_S, self.ask)
            return
        if facts["deadline"] is not None:
            self.allocation = dataclasses.replace(self.allocation, deadline=facts["deadline"])
            self._time.set_job_end(facts["deadline"])
        if self.allocation.own_job and facts["submitted"] is not None and facts["started"] is not None:
            self._clock.note("assign", max(0.0, facts["started"] - facts["submitted"]))

    def end_by_scheduler(self, told: str, *, number: int | None = None, otherwise: Ending | None = None) -> None:
        """Ask the scheduler why the run was told to end, then end the run for that reason. `told`: who said so; `number`: the signal;
        `otherwise`: the ending if the scheduler gives no reason."""
        if not self.is_ending and self._scope.ending is None:
            self.is_ending = True
            call = Call(self._scope.loop, "the scheduler", self.scheduler.ended_by, self.allocation, timeout_s=time_limits.JOB_END_CAUSE_S)
            call.then(partial(self._cause_known, told, number, otherwise))

    def _cause_known(self, told: str, number: int | None, otherwise: Ending | None, call: Call) -> None:
        try:
            word = call.result()
        except SlipwayError as error:
            logger.warning("%s, and the scheduler does not say why: %s", told, error)
            word = None
        if word is None and number is not None and number == self.scheduler.LIMIT_SIGNAL:
            word = "timeout"
        if word is None and otherwise is not None:
            self._scope.end(otherwise)
            return
        ending = self._time.ending_of_scheduler(word, told)
        if ending.status == "node_lost" and (silent := self.give_up_silent_nodes()):
            ending = dataclasses.replace(ending, nodes=silent, reason=f"{ending.reason}; nothing is heard of {', '.join(silent)}")
        self._scope.end(ending)
