"""The supervisor and its scheduler: what every node was granted, when the job ends, and why it was ended. What is asked of the scheduler is
asked in children: it may be silent for minutes, and the run goes on."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from base.account import user_name
from base.errors import AllocationError, SlipwayError
from cluster import grants
from cluster.schedulers import Scheduler
from cluster.types import Allocation
from workflow.run.link.calls import Call
from workflow.run.link.said import Ready, Staged
from workflow.run.record.outcome import Ending
from workflow.run.record.step_clock import Clock
from workflow.run.storage.prepared import PreparedRun
from workflow.run.supervisor.limits import JOB_END_CAUSE_S, JOB_FACTS_AGAIN_S, JOB_FACTS_S
from workflow.run.supervisor.node_locks import NodeLocks
from workflow.run.supervisor.nodes import Nodes
from workflow.run.supervisor.run_scope import RunScope
from workflow.run.supervisor.time_limit import TimeLimit

logger = logging.getLogger(__name__)


def take_nodes(run: PreparedRun, locks: NodeLocks) -> Allocation:
    """Wait until as many nodes as the run needs are ours: of a job that runs share, those whose locks we get."""
    allocation = run.allocation
    if not locks.try_take():
        count, among = locks.count, len(locks.paths)
        what = "this machine" if among == count == 1 else f"{count} of {among} nodes of job {allocation.job_id}"
        locks.take(lambda holder: logger.info("waiting for %s: %s", what, holder or "other runs have it"))
    locks.sign(f"study {run.study} of {user_name(os.geteuid())}, process {os.getpid()} ({run.run_id})")
    if allocation.own_job or not locks.paths:
        return allocation
    return dataclasses.replace(allocation, nodes=tuple(allocation.nodes[index] for index in locks.taken))


class Job:
    """The job of an attempt, with what it was granted as far as is known, and what the scheduler is asked beside the run."""

    def __init__(self, scope: RunScope, clock: Clock, time: TimeLimit, scheduler: Scheduler, allocation: Allocation) -> None:
        self._scope, self._clock, self._time = scope, clock, time
        self.scheduler = scheduler
        self.allocation = allocation
        self.give_up_silent_nodes: Callable[[], tuple[str, ...]] = tuple
        """Wait for silent nodes no more, where the scheduler says that a node is lost, and return their names."""
        self.is_ending = False
        """Whether somebody was told to end, and we ask why: all that happens meanwhile is a consequence."""

    # -- what the nodes say

    def complete(self, nodes: Nodes, run: PreparedRun) -> Sequence[str]:
        """All node programs have come up: fill in what they were granted; warnings. Ends the run where that is not what was asked."""
        told = [node.answer(Ready).grant for node in nodes.all]
        try:
            self.allocation, warnings = grants.complete(self.allocation, told, run.cell.gpus_per_node, run.site.foreign_gpu)
        except AllocationError as error:
            used = tuple(grant.node for grant in told if grant is not None and any(use.uuid for use in grant.foreign))
            at_fault = used if run.site.foreign_gpu == "refuse" else ()
            self._scope.fail(Ending(status="node_lost", reason=str(error), error=AllocationError, nodes=at_fault))
        nodes.know(self.allocation.nodes)
        return warnings

    def gpu_warnings(self, nodes: Nodes, run: PreparedRun) -> Sequence[str]:
        """Just before the ranks start, what nodes say of their GPUs: others on them, where `complete` has not heard it, and what is wrong
        with them; warnings."""
        staged = [(node.node.name, node.answer(Staged)) for node in nodes.present()]
        foreign, faults = (
            [(name, use) for name, one in staged for use in one.foreign],
            [(name, fault) for name, one in staged for fault in one.faults],
        )
        name = f"run {run.run_id}"
        try:
            return (
                *grants.foreign_warnings(name, foreign, run.site.foreign_gpu),
                *grants.health_warnings(name, faults, run.site.gpu_health),
            )
        except AllocationError as error:
            refused = faults if run.site.gpu_health == "refuse" and faults else foreign
            at_fault = tuple(dict.fromkeys(name for name, _ in refused))
            self._scope.fail(Ending(status="node_lost", reason=str(error), error=AllocationError, nodes=at_fault))

    # -- what the scheduler says

    def wait_if_ending(self) -> None:
        """Go no further then: the scheduler's word, or its silence, ends the run."""
        if self.is_ending:
            self._scope.wait(lambda: False)

    def ask(self) -> None:
        """For its end, and how long it waited; not where that is known and the job is not ours alone."""
        if self.allocation.own_job or self.allocation.deadline is None:
            call = Call(self._scope.loop, "the scheduler", self.scheduler.job_facts, self.allocation, timeout_s=JOB_FACTS_S)
            call.then(self._answered)

    def _answered(self, call: Call) -> None:
        try:
            facts: dict[str, Any] = call.result()
        except SlipwayError as error:
            logger.warning("the job's end is not known, the run's own walltime counts: %s; asked again in %.0f s", error, JOB_FACTS_AGAIN_S)
            self._scope.loop.after(JOB_FACTS_AGAIN_S, self.ask)
            return
        if facts["deadline"] is not None:
            self.allocation = dataclasses.replace(self.allocation, deadline=facts["deadline"])
            self._time.job_ends(facts["deadline"])
        if self.allocation.own_job and facts["submitted"] is not None and facts["started"] is not None:
            self._clock.note("assign", max(0.0, facts["started"] - facts["submitted"]))

    def ended(self, told: str, *, number: int | None = None, otherwise: Ending | None = None) -> None:
        """Somebody was told to end, `told` says who: ask the scheduler why, then end the run by that; `number`: of the signal to us;
        `otherwise`: how, where it says nothing."""
        if not self.is_ending and self._scope.ending is None:
            self.is_ending = True
            call = Call(self._scope.loop, "the scheduler", self.scheduler.ended_by, self.allocation, timeout_s=JOB_END_CAUSE_S)
            call.then(partial(self._told_why, told, number, otherwise))

    def _told_why(self, told: str, number: int | None, otherwise: Ending | None, call: Call) -> None:
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
        ending = self._time.ended_by(word, told)
        if ending.status == "node_lost" and (silent := self.give_up_silent_nodes()):
            ending = dataclasses.replace(ending, nodes=silent, reason=f"{ending.reason}; nothing is heard of {', '.join(silent)}")
        self._scope.end(ending)
