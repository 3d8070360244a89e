"""Ask the scheduler for the supervisor what each node was granted, and when and why the job ends."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from functools import partial

from base.errors import AllocationError, SlipwayError
from cluster import grants, schedulers
from cluster.types import Allocation
from workflow.run.link.event_loop import Call
from workflow.run.link.reports import Ready, Staged
from workflow.run.record.outcome import Ending
from workflow.run.record.step_clock import Clock
from workflow.run.storage.results import PreparedRun
from workflow.run.supervisor import time_limits
from workflow.run.supervisor.deadline import TimeLimit
from workflow.run.supervisor.nodes import Nodes
from workflow.run.supervisor.run_scope import RunScope

logger = logging.getLogger(__name__)


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
