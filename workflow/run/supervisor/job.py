"""The supervisor and its scheduler: what every node was granted, when the job ends, and why it was ended. What is asked of the scheduler is
asked in children: it may be silent for minutes, and the run goes on."""

from __future__ import annotations

import dataclasses
import logging
import os
import pwd
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from base.errors import AllocationError, SlipwayError
from cluster import grants
from workflow.run.link.calls import Call
from workflow.run.link.said import Ready, Staged
from workflow.run.record.outcome import Ending
from workflow.run.supervisor.node_locks import NodeLocks

if TYPE_CHECKING:
    from workflow.run.supervisor.supervisor import Supervisor

logger = logging.getLogger(__name__)

FACTS_S: Final = 90.0
AGAIN_S: Final = 60.0
WHY_S: Final = 4.0
"""How long the scheduler may take to say why it ends the job: the time to push what is there is short."""


def take_locks(run: Supervisor, paths: Sequence[Path], count: int) -> NodeLocks | None:
    """Wait until `count` of these are ours; None where there are none."""
    if not paths:
        return None
    locks = run.node_locks = NodeLocks(run.scope, paths, count)
    if not locks.try_take():
        what = "this machine" if len(paths) == count == 1 else f"{count} of {len(paths)} nodes of job {run.allocation.job_id}"
        logger.info("waiting for %s: %s", what, locks.signature() or "other runs have it")
        locks.take()
    locks.sign(f"study {run.run['study']} of {_user()}, process {run.pid} ({run.run_id})")
    return locks


def _user() -> str:
    """Who we are, for others; a number where this machine knows no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def take_nodes(run: Supervisor, locks: NodeLocks | None) -> None:
    """Of a job that runs share, those whose locks we have."""
    if locks is not None and not run.allocation.own_job:
        nodes = tuple(run.allocation.nodes[index] for index in locks.taken)
        run.allocation = dataclasses.replace(run.allocation, nodes=nodes)
        run.run["allocation"] = run.allocation.to_json()


def complete(run: Supervisor) -> None:
    """All node programs have come up: fill in what they were granted. Ends the run where that is not what was asked."""
    assert run.nodes is not None
    told = [node.answer(Ready).grant for node in run.nodes.all]
    try:
        run.allocation, warnings = grants.complete(
            run.allocation, told, int(run.run["cell"]["gpus_per_node"]), str(run.run["site"].get("foreign_gpu", "record"))
        )
    except AllocationError as error:
        run.scope.fail(Ending(status="node_lost", reason=str(error), error=AllocationError))
    run.run["allocation"] = run.allocation.to_json()
    run.nodes.know(run.allocation.nodes)
    for warning in warnings:
        logger.warning("%s", warning)
    run.warnings += warnings


def look_at_foreign(run: Supervisor) -> None:
    """Just before the ranks start, what nodes say of others on their GPUs, where `complete` has not heard it."""
    assert run.nodes is not None
    said = [(node.node.name, use) for node in run.nodes.present() for use in node.answer(Staged).foreign]
    try:
        warnings = grants.foreign_warnings(f"run {run.run_id}", said, str(run.run["site"].get("foreign_gpu", "record")))
    except AllocationError as error:
        run.scope.fail(Ending(status="node_lost", reason=str(error), error=AllocationError))
    for warning in warnings:
        logger.warning("%s", warning)
    run.warnings += warnings


class Job:
    """What the scheduler is asked of the job, beside the run."""

    def __init__(self, run: Supervisor) -> None:
        self._run = run
        self._call: Call | None = None
        self._why: Call | None = None

    @property
    def is_ending(self) -> bool:
        """Whether somebody was told to end, and we ask why: all that happens meanwhile is a consequence."""
        return self._why is not None

    def wait_if_ending(self) -> None:
        """Go no further then: the scheduler's word, or its silence, ends the run."""
        if self.is_ending:
            self._run.scope.wait(lambda: False)

    def ask(self) -> None:
        """For its end, and how long it waited; not where that is known and the job is not ours alone."""
        allocation = self._run.allocation
        if allocation.own_job or allocation.deadline is None:
            self._call = Call(self._run.loop, "the scheduler", self._run.scheduler.job_facts, allocation, timeout_s=FACTS_S)
            self._call.then = self._answered

    def _answered(self, call: Call) -> None:
        run = self._run
        try:
            facts: dict[str, Any] = call.result()
        except SlipwayError as error:
            logger.warning("the job's end is not known, the run's own walltime counts: %s; asked again in %.0f s", error, AGAIN_S)
            run.loop.after(AGAIN_S, self.ask)
            return
        if facts["deadline"] is not None:
            run.allocation = dataclasses.replace(run.allocation, deadline=facts["deadline"])
            run.run["allocation"] = run.allocation.to_json()
            run.time.job_ends(facts["deadline"])
        if run.allocation.own_job and facts["submitted"] is not None and facts["started"] is not None:
            run.clock.note("assign", max(0.0, facts["started"] - facts["submitted"]))

    def ended(self, told: str) -> None:
        """Somebody was told to end, `told` says who: ask the scheduler why, then end the run by that."""
        if self._why is None and self._run.scope.ending is None:
            self._why = Call(self._run.loop, "the scheduler", self._run.scheduler.ended_by, self._run.allocation, timeout_s=WHY_S)
            self._why.then = lambda call: self._told_why(call, told)

    def _told_why(self, call: Call, told: str) -> None:
        try:
            word = call.result()
        except SlipwayError as error:
            logger.warning("%s, and the scheduler does not say why: %s", told, error)
            word = None
        self._run.scope.end(self._run.time.ended_by(word, told))
