"""An attempt that has its nodes: their node programs are started and heard, and it goes through its steps: staging, preflight, training."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Final, assert_never

from base import errors
from base.errors import SlipwayError, error_named
from base.units import counted
from cluster.addresses import listening_address
from cluster.gpus.comparing import beyond
from containers.engines import ONLY_UNDER
from containers.images.model import check_same
from workflow.run.link import orders, said
from workflow.run.link.calls import Call
from workflow.run.node.watch_child import SUPERVISOR, who_i_am
from workflow.run.plan import TAG, node_argv, processes_of
from workflow.run.record.continuation import OTHER_PROGRAM, EarlierAttempt
from workflow.run.record.first_cause import of_what_is_missing
from workflow.run.record.outcome import Ending, Status, signal_name
from workflow.run.record.progress_line import ProgressLine
from workflow.run.record.step_clock import Clock
from workflow.run.record.steps_asked import StepsAsked, steps_asked
from workflow.run.record.window_seen import WindowSeen
from workflow.run.storage import description
from workflow.run.storage.prepare import with_results
from workflow.run.storage.prepared import PreparedRun, from_plain, plain
from workflow.run.supervisor.job import Job
from workflow.run.supervisor.limits import STORAGE_CALL_S
from workflow.run.supervisor.node_locks import NodeLocks
from workflow.run.supervisor.nodes import NodeHandle, Nodes
from workflow.run.supervisor.plan_order import node_plan
from workflow.run.supervisor.preflight import Preflight, is_needed
from workflow.run.supervisor.provenance import slipway_provenance
from workflow.run.supervisor.resuming import bring_checkpoint, bring_parameters
from workflow.run.supervisor.run_scope import RunEnded, RunScope
from workflow.run.supervisor.staging import Staging
from workflow.run.supervisor.time_limit import TimeLimit
from workflow.run.supervisor.training import Training
from workflow.study.cell import unit_of
from workflow.study.site import storage_limit

logger = logging.getLogger(__name__)

OF_A_NODE: Final = frozenset({"ContainerError", "AllocationError", "NodeLost"})
"""Errors of a node program that say that its node is at fault; all others are of storage or staging."""
OF_A_DISK: Final = frozenset({"NotEnoughSpace"})
"""Those that say that another node may have what this one lacks for its cache."""
PUSH: Final = "push"
AT_A_NODE: Final = frozenset({"come up", "preflight", "start"})
"""What has nothing to do with storage, whatever the error is."""
CONSEQUENCES: Final = (said.Exited, said.Overdue, said.Failed)
"""What a node program says when the scheduler ends it; no cause of its own."""


class RunningAttempt:
    """Complete when it is made, but for what its steps find out."""

    def __init__(self, scope: RunScope, clock: Clock, limit: TimeLimit, job: Job, locks: NodeLocks, run: PreparedRun) -> None:
        self.scope, self.clock, self.limit, self.job, self.locks, self.run = scope, clock, limit, job, locks, run
        self.warnings: list[str] = []
        """For the record."""
        self.windows: list[WindowSeen] = []
        """What the nodes saw of the ranks' windows, when all ranks have ended well."""
        self.preflight: Preflight | None = None
        """Where there is a network between the nodes."""
        self.resumed: EarlierAttempt | None = None
        """The attempt from which this one resumes."""
        self._training: Training | None = None
        """Once the ranks are started."""
        site, allocation, scheduler = run.site, job.allocation, job.scheduler
        interface = site.network_interface
        listen = listening_address((node.address for node in allocation.nodes), interface)
        self.nodes = Nodes(scope.loop, allocation, listen, self._heard, self._lost, scope.limits)
        job.give_up_silent_nodes = self.nodes.give_up_silent
        self.staging = Staging(scope, self.nodes)
        argv = node_argv(sys.executable, self.nodes.address, site.setup, allocation.device, interface)
        self._launches = scheduler.launches(allocation, argv)
        self.provenance = Call(scope.loop, "provenance", slipway_provenance, timeout_s=STORAGE_CALL_S)

    def start(self, images: str | None) -> description.Work:
        """Start the node programs; framework, dataset, network and image of the run, which are looked at while they come up. `images`: the
        file of the rule `image`. Raises SlipwayError, RunEnded."""
        run, device = self.run, self.job.allocation.device
        environ = {**self.job.scheduler.launch_environ(os.environ), TAG: run.tag, SUPERVISOR: who_i_am()}
        self.nodes.launch(self._launches, environ, () if self.job.allocation.own_job else self.locks.descriptors)
        results = str(Path(run.run_dir).parents[1])
        found = self.scope.call("prepare", description.describe_work, run.site, run.cell, device, images, results, run.dataset_build)
        return from_plain(found, description.Work)

    def run_steps(self, work: description.Work) -> Ending:
        """Wait until every rank has ended well, something ends the run, or nodes have delivered its result: then `run.done` is that."""
        try:
            self.job.ask()
            self._stage(work)
            if self.run.done is None:
                self._train(work)
            ending = Ending(status="ok")
        except RunEnded as ended:
            ending = ended.ending
        except SlipwayError as error:
            ending = Ending(status="storage", reason=str(error), error=type(error))
        self.scope.end(ending)
        return ending

    def steps_asked(self, work: description.Work) -> StepsAsked:
        """Of each rank of this attempt."""
        return steps_asked(self.run.cell.to_json(), work.train_samples, 0 if self.resumed is None else self.resumed.step)

    @property
    def started(self) -> bool:
        """Whether the ranks were told to start."""
        return self._training is not None

    @property
    def checkpoint(self) -> int | None:
        """The step of the last checkpoint that ranks told of, once they have ended."""
        return None if self._training is None else self._training.checkpoint

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        self.warnings.append(text)

    # -- the steps

    def _stage(self, work: description.Work) -> None:
        run, scheduler = self.run, self.job.scheduler
        cache = run.site.cache.path
        self.staging.wait_for_nodes()
        self.job.wait_if_ending()  # a node program that was told to end before it was up says nothing of itself
        for warning in self.job.complete(self.nodes, run):
            self._warn(warning)
        self._test_network()
        readers = storage_limit(run.site).readers
        plan = node_plan(run, self.job.allocation, work, self.scope.limits.rank_silence_s)
        self.staging.look(plan, lambda node: str(scheduler.node_cache(cache, node)))
        self.job.wait_if_ending()
        if any(answer.delivered for node in self.nodes.all if (answer := node.last(said.LookedAt)) is not None):
            found = self.scope.call("prepare", lambda: plain(with_results(run)), renewed=True)
            self.run = run = from_plain(found, PreparedRun)
            if run.done is not None:
                return
        self._refuse_what_is_missing()
        self.staging.run(plan, readers)
        self.job.wait_if_ending()  # nodes may have failed or gone as a consequence, and nothing was made of that
        self._refuse_what_is_missing()
        self._check_images(work)
        for warning in self.job.gpu_warnings(self.nodes, run):
            self._warn(warning)
        self.resumed = before = bring_checkpoint(self.scope, self.nodes, self.staging, run, self._warn)
        if before is None and run.cell.parameters_file is not None:
            bring_parameters(self.scope, self.nodes, self.staging, run.cell.parameters_file)
        if before is not None and (before.several_programs or before.program_digest != work.framework.digest):
            self._warn(f"attempt {before.attempt}, from which this one goes on, or one before it {OTHER_PROGRAM}")
        self.staging.end()
        self.job.wait_if_ending()
        self.limit.goes_on(self.resumed)

    def _test_network(self) -> None:
        """Before anything is staged: an unreachable node ends the run here, a slow one is told."""
        if is_needed(self.job.allocation):
            self.preflight = Preflight(self.scope, self.nodes, self.job.allocation)
            self.preflight.run()

    def _refuse_what_is_missing(self) -> None:
        """Before any rank starts: what a program of the study needs, and nodes do not have."""
        told = {node.node.name: failed.message for node in self.nodes.all if (failed := node.last(said.Failed)) is not None}
        if told:
            self.scope.fail(of_what_is_missing(told, len(self.nodes.all)))

    def _check_images(self, work: description.Work) -> None:
        """Before any rank starts: every node has what the study's image was pinned to."""
        if work.image is None:
            return
        try:
            check_same(work.image.image, {node.node.name: _image_id(node) for node in self.nodes.present()})
        except errors.ContainerError as error:
            self.scope.fail(Ending(status="node_lost", reason=str(error), error=errors.ContainerError))

    def _train(self, work: description.Work) -> None:
        self.clock.enter("train")
        cell = self.run.cell
        keys = cell.to_json()
        batch = cell.global_batch_size if unit_of(keys) == "samples" else None
        num_ranks = processes_of(work.framework, cell)
        progress = ProgressLine(batch, steps_asked(keys, work.train_samples).total, time.monotonic())
        training = self._training = Training(self.scope, self.nodes, num_ranks, progress, work.framework, self._training_failed)
        self.limit.may_save(training.save)
        logger.info("train: %s %s", counted(num_ranks, "rank"), "starts" if num_ranks == 1 else "start")
        ports = tuple(node.answer(said.Reserved).ports for node in self.nodes.all)
        self.nodes.tell(orders.Start(ports=ports, left_s=self.limit.deadline - time.monotonic()))
        self.scope.wait(lambda: training.finished)
        self.windows = training.windows()
        for warning in training.unwatched():
            self._warn(warning)

    # -- causes of an end

    def _lost(self, node: NodeHandle, why: str) -> None:
        if not self.job.is_ending:
            place = "" if node.node.hostname == node.node.name else f" ({node.node.hostname})"
            reason = f"the node program of {node.node.name}{place} is gone: {why}"
            refused = any(launch.refusal and launch.refusal in why for launch in self._launches)
            error = errors.AllocationError if refused else None
            ending = Ending(status="node_lost", reason=reason, nodes=(node.node.name,), error=error)
            if node.launcher_told or self.job.scheduler.KILLS_UNTOLD:
                self.job.ended(reason, otherwise=ending)  # it may be the first sign of the end of the whole job
            else:
                self.scope.end(ending)

    def _heard(self, node: NodeHandle, message: said.Said) -> None:
        if self.job.is_ending and isinstance(message, CONSEQUENCES):
            return
        if isinstance(message, said.OfTraining):
            self._heard_of_ranks(node, message)
        elif isinstance(message, said.OfStaging):
            self.staging.heard(node, message)
        elif isinstance(message, said.Signalled):
            if self.scope.ending is not None:
                self.scope.cancels += 1  # what fails from here on is not tried again: there is no time
            self.job.ended(f"the node program of {node.node.name} got {signal_name(message.number)}")
        elif isinstance(message, said.Failed):
            if message.during != PUSH:
                self._failed(node, message)
        elif not isinstance(message, said.Awaited):
            assert_never(message)

    def _heard_of_ranks(self, node: NodeHandle, message: said.OfTraining) -> None:
        if isinstance(message, said.Saving):
            self.limit.heard_saving(message.step)
        elif isinstance(message, said.GpusSeen):
            problem = beyond(node.node.gpus, message.seen)
            if problem is not None:
                self._warn(f"{node.node.name}: {problem}")
        elif self._training is not None:
            self._training.heard(node, message)

    def _failed(self, node: NodeHandle, message: said.Failed) -> None:
        if message.error == errors.TrainingFailed.__name__ and message.during in ("look", "stage"):
            return  # whether the other nodes lack it too is looked at when all have answered
        at_node = message.error in OF_A_NODE or message.during in AT_A_NODE
        reason = f"{message.during} on {node.node.name}: {message.message}"
        error = error_named(message.error)
        status: Status = "error" if error is errors.TrainingFailed else "node_lost" if at_node else "storage"
        nodes = (node.node.name,) if at_node or message.error in OF_A_DISK else ()
        ending = Ending(status=status, reason=reason, error=error, nodes=nodes)
        if error is errors.ContainerError and self.run.site.engine in ONLY_UNDER:
            self.job.ended(reason, otherwise=ending)  # such a container is a step of the job, which may be ended before we are
        else:
            self.scope.end(ending)

    def _training_failed(self, ending: Ending) -> None:
        """What ranks do that the scheduler ends is a consequence, but for memory that ran out: that may be why it ends them."""
        if not self.job.is_ending or ending.status == "oom":
            self.scope.end(ending)


def _image_id(node: NodeHandle) -> str:
    image = node.answer(said.Staged).image
    return "no image" if image is None else image.image_id
