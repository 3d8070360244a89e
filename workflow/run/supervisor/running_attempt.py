"""Take an attempt that has its nodes through its steps: node programs, staging, preflight, training."""

import dataclasses
import logging
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, assert_never

from msgspec import Struct
from msgspec.structs import replace

from base import errors, humanize
from base.process import CODE_ROOT, run
from cluster import grants, schedulers
from cluster.addresses import listening_address
from cluster.gpus.decision import not_granted
from cluster.schedulers import node_cache
from cluster.types import Allocation
from containers.images.model import check_same
from workflow.run.link import commands, event_loop, reports
from workflow.run.node.child import SUPERVISOR, process_identity
from workflow.run.plan import TAG, at_site, cell_document, node_argv, processes_of
from workflow.run.record import events, outcome, progress_line, resume, step_clock
from workflow.run.record.model import Status
from workflow.run.storage import description
from workflow.run.storage.prepare import with_results
from workflow.run.storage.results import PreparedRun
from workflow.run.supervisor import step_limits
from workflow.run.supervisor.deadline import TimeLimit
from workflow.run.supervisor.node_locks import NodeLocks
from workflow.run.supervisor.nodes import NodeHandle, Nodes
from workflow.run.supervisor.preflight import Preflight, is_needed
from workflow.run.supervisor.run_scope import RunEnded, RunScope
from workflow.run.supervisor.staging import Staging
from workflow.run.supervisor.training import Training
from workflow.study.cell import Run, unit_of
from workflow.study.site import storage_limit

logger = logging.getLogger(__name__)

OF_A_NODE: Final = frozenset({"ContainerError", "AllocationError", "NodeLost"})
"""Errors of a node program that say that its node is at fault; all others are of storage or staging."""
OF_A_DISK: Final = frozenset({"NotEnoughSpace"})
"""Errors after which another node may have the space that this one lacks for its cache."""
PUSH: Final = "push"
AT_A_NODE: Final = frozenset({"come up", "preflight", "start"})
"""What has nothing to do with storage, whatever the error is."""
CONSEQUENCES: Final = (reports.Exited, reports.Overdue, reports.Failed)
"""What a node program says when the scheduler ends it; no cause of its own."""


class RunningAttempt:
    """An attempt that has its nodes, with the results of its steps so far, and what the scheduler is asked beside them."""

    def __init__(
        self, scope: RunScope, clock: step_clock.Clock, limit: TimeLimit, allocation: Allocation, locks: NodeLocks, run: PreparedRun
    ) -> None:
        self.scope, self.clock, self.limit, self.locks, self.run = scope, clock, limit, locks, run
        self.scheduler = schedulers.get_scheduler(allocation.scheduler)
        self.allocation = allocation
        """What was granted, as far as is known."""
        self.is_ending = False
        """True if somebody was told to end, and we ask why: all that happens meanwhile is a consequence."""
        self.warnings: list[str] = []
        self.windows: list[outcome.ObservedWindow] = []
        """What the nodes saw of the ranks' windows, when all ranks have ended well."""
        self.preflight: Preflight | None = None
        """The test of the network, if one connects the nodes."""
        self.resumed: resume.EarlierAttempt | None = None
        self._training: Training | None = None
        interface = run.site.network_interface
        listen = listening_address((node.address for node in allocation.nodes), interface)
        self.nodes = Nodes(scope.loop, allocation, listen, self._heard, self._lost, scope.limits)
        self.staging = Staging(scope, self.nodes)
        argv = node_argv(sys.executable, self.nodes.address, run.site.setup, allocation.device, interface)
        self._launches = self.scheduler.launches(allocation, argv)
        self.git = event_loop.Call(scope.loop, "the commit of Slipway", git_state, timeout_s=step_limits.STORAGE_CALL_S)

    def start(self, images: str | None) -> description.Work:
        """Start the node programs, and describe the work while they come up. `images`: see Supervisor. Raises SlipwayError, RunEnded."""
        run, device = self.run, self.allocation.device
        environ = {**self.scheduler.launch_environ(os.environ), TAG: run.tag, SUPERVISOR: process_identity()}
        self.nodes.launch(self._launches, environ, () if self.allocation.own_job else self.locks.descriptors)
        results = str(Path(run.run_dir).parents[1])
        arguments = (run.site, run.cell, device, images, results, run.dataset_build)
        work: description.Work = self.scope.call("prepare", description.describe_work, *arguments, kind=description.Work)
        return work

    def run_steps(self, work: description.Work) -> outcome.Ending:
        """Wait until every rank has succeeded, the run is ended, or nodes have delivered its result, which `run.done` then holds."""
        try:
            self._ask_for_end()
            self._stage(work)
            if self.run.done is None:
                self._train(work)
            ending = outcome.Ending(status="ok")
        except RunEnded as ended:
            ending = ended.ending
        except errors.SlipwayError as error:
            ending = outcome.Ending(status="storage", reason=str(error), error=type(error))
        self.scope.end(ending)
        return ending

    def requested_steps(self, work: description.Work) -> events.RequestedSteps:
        return events.requested_steps(self.run.cell, work.train_samples, 0 if self.resumed is None else self.resumed.step)

    @property
    def started(self) -> bool:
        """Return True if the ranks have got the command to start."""
        return self._training is not None

    @property
    def checkpoint(self) -> int | None:
        """Return the step of the last checkpoint that ranks reported, once they have ended."""
        return None if self._training is None else self._training.checkpoint

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        self.warnings.append(text)

    # -- the steps

    def _stage(self, work: description.Work) -> None:
        run, site = self.run, self.run.site
        self.staging.wait_for_nodes()
        self.wait_if_ending()  # a node program that was told to end before it was up says nothing of itself
        self._complete_grants()
        self._test_network()
        readers = storage_limit(run.site).readers
        plan = node_plan(run, self.allocation, work, self.scope.limits.rank_silence_s)
        self.staging.look(plan, lambda node: str(node_cache(run.allocation.scheduler, site.cache.path, node)))
        self.wait_if_ending()
        if any(answer.delivered for node in self.nodes.all if (answer := node.last(reports.LookedAt)) is not None):
            self.run = run = self.scope.call("prepare", with_results, run, kind=PreparedRun, renewed=True)
            if run.done is not None:
                return
        self._refuse_what_is_missing()
        self.staging.run(plan, readers)
        self.wait_if_ending()  # nodes may have failed or gone as a consequence, and nothing was made of that
        self._refuse_what_is_missing()
        self._check_images(work)
        self._check_gpus()
        self.resumed = before = self.staging.bring_checkpoint(run, self._warn)
        if before is None and run.cell.parameters_file is not None:
            self.staging.bring_parameters(run.cell.parameters_file)
        if before is not None and (before.several_programs or before.program_digest != work.framework.digest):
            self._warn(f"attempt {before.attempt}, from which this one goes on, or one before it {resume.OTHER_PROGRAM}")
        self.staging.end()
        self.wait_if_ending()
        self.limit.resume_from(self.resumed)

    def _test_network(self) -> None:
        if is_needed(self.allocation):
            self.preflight = Preflight(self.scope, self.nodes, self.allocation)
            self.preflight.run()

    def _refuse_what_is_missing(self) -> None:
        told = {node.node.name: failed.message for node in self.nodes.all if (failed := node.last(reports.Failed)) is not None}
        if told:
            self.scope.fail(outcome.judge_missing(told, len(self.nodes.all)))

    def _complete_grants(self) -> None:
        """Fill in what the node programs were granted. Ends the run if that is not what was asked."""
        run, told = self.run, [node.answer(reports.Ready).grant for node in self.nodes.all]
        try:
            self.allocation, warnings = grants.complete(self.allocation, told, run.cell.gpus_per_node, run.site.foreign_gpu)
        except errors.AllocationError as error:
            used = tuple(grant.node for grant in told if grant is not None and any(use.uuid for use in grant.other_use))
            self._refuse_grant(error, used if run.site.foreign_gpu == "refuse" else ())
        self.nodes.set_granted(self.allocation.nodes)
        for warning in warnings:
            self._warn(warning)

    def _check_gpus(self) -> None:
        """Warn of other users of the GPUs, if the grants have not told of them, and of faults, just before the ranks start."""
        staged = [(node.node.name, node.answer(reports.Staged)) for node in self.nodes.present()]
        foreign = [(name, use) for name, one in staged for use in one.other_use]
        faults = [(name, fault) for name, one in staged for fault in one.faults]
        site, name = self.run.site, f"run {self.run.run_id}"
        try:
            warnings = *grants.other_use_warnings(name, foreign, site.foreign_gpu), *grants.health_warnings(name, faults, site.gpu_health)
        except errors.AllocationError as error:
            refused = faults if site.gpu_health == "refuse" and faults else foreign
            self._refuse_grant(error, tuple(dict.fromkeys(name for name, _ in refused)))
        for warning in warnings:
            self._warn(warning)

    def _refuse_grant(self, error: errors.AllocationError, nodes: tuple[str, ...]) -> NoReturn:
        self.scope.fail(outcome.Ending(status="node_lost", reason=str(error), error=errors.AllocationError, nodes=nodes))

    def _check_images(self, work: description.Work) -> None:
        if work.image is None:
            return
        try:
            check_same(work.image.image, {node.node.name: _image_id(node) for node in self.nodes.present()})
        except errors.ContainerError as error:
            self.scope.fail(outcome.Ending(status="node_lost", reason=str(error), error=errors.ContainerError))

    def _train(self, work: description.Work) -> None:
        self.clock.enter("train")
        cell = self.run.cell
        batch = cell.global_batch_size if unit_of(cell.to_json()) == "samples" else None
        num_ranks = processes_of(work.framework, cell)
        progress = progress_line.ProgressLine(batch, events.requested_steps(cell, work.train_samples).total, time.monotonic())
        training = self._training = Training(self.scope, self.nodes, num_ranks, progress, work.framework, self._training_failed)
        self.limit.enable_checkpoint(training.save)
        logger.info("train: %s %s", humanize.counted(num_ranks, "rank"), "starts" if num_ranks == 1 else "start")
        ports = tuple(node.answer(reports.Staged).ports for node in self.nodes.all)
        self.nodes.send_all(commands.Start(ports=ports, left_s=self.limit.deadline - time.monotonic()))
        self.scope.wait(lambda: training.finished)
        self.windows = training.windows()

    # -- what the scheduler says

    def wait_if_ending(self) -> None:
        """Wait for the end if the job is being ended: the scheduler's word, or its silence, ends the run."""
        if self.is_ending:
            self.scope.wait(lambda: False)

    def _ask_for_end(self) -> None:
        """Ask for the job's end, and how long it waited, unless that is known and the job is not ours alone."""
        if self.allocation.own_job or self.allocation.deadline is None:
            function, timeout_s = self.scheduler.job_facts, step_limits.JOB_FACTS_S
            event_loop.Call(self.scope.loop, "the scheduler", function, self.allocation, timeout_s=timeout_s).then(self._end_known)

    def _end_known(self, call: event_loop.Call) -> None:
        try:
            facts: dict[str, float | None] = call.result()
        except errors.SlipwayError as error:
            again_s = step_limits.JOB_FACTS_AGAIN_S
            logger.warning("the job's end is not known, the run's own walltime counts: %s; asked again in %.0f s", error, again_s)
            self.scope.loop.after(again_s, self._ask_for_end)
            return
        if facts["deadline"] is not None:
            self.allocation = dataclasses.replace(self.allocation, deadline=facts["deadline"])
            self.limit.set_job_end(facts["deadline"])
        if self.allocation.own_job and facts["submitted"] is not None and facts["started"] is not None:
            self.clock.note("assign", max(0.0, facts["started"] - facts["submitted"]))

    def end_by_scheduler(self, told: str, *, number: int | None = None, otherwise: outcome.Ending | None = None) -> None:
        """Ask the scheduler why the run was told to end, then end the run for that reason. `told`: who said so; `number`: the signal;
        `otherwise`: the ending if the scheduler gives no reason."""
        if not self.is_ending and self.scope.ending is None:
            self.is_ending = True
            function, timeout_s = self.scheduler.ended_by, step_limits.JOB_END_CAUSE_S
            call = event_loop.Call(self.scope.loop, "the scheduler", function, self.allocation, timeout_s=timeout_s)
            call.then(partial(self._cause_known, told, number, otherwise))

    def _cause_known(self, told: str, number: int | None, otherwise: outcome.Ending | None, call: event_loop.Call) -> None:
        try:
            word = call.result()
        except errors.SlipwayError as error:
            logger.warning("%s, and the scheduler does not say why: %s", told, error)
            word = None
        if word is None and number is not None and number == self.scheduler.LIMIT_SIGNAL:
            word = "timeout"
        if word is None and otherwise is not None:
            self.scope.end(otherwise)
            return
        ending = self.limit.ending_of_scheduler(word, told)
        if ending.status == "node_lost" and (silent := self.nodes.give_up_silent()):
            ending = dataclasses.replace(ending, nodes=silent, reason=f"{ending.reason}; nothing is heard of {', '.join(silent)}")
        self.scope.end(ending)

    # -- reports of the nodes

    def _lost(self, node: NodeHandle, why: str) -> None:
        place = "" if node.node.hostname == node.node.name else f" ({node.node.hostname})"
        reason = f"the node program of {node.node.name}{place} is gone: {why}"
        refused = any(launch.refusal and launch.refusal in why for launch in self._launches)
        error = errors.AllocationError if refused else None
        ending = outcome.Ending(status="node_lost", reason=reason, nodes=(node.node.name,), error=error)
        self.end_by_scheduler(reason, otherwise=ending)  # it may be the first sign of the end of the whole job

    def _heard(self, node: NodeHandle, message: reports.Report) -> None:
        if self.is_ending and isinstance(message, CONSEQUENCES):
            return
        if isinstance(message, reports.TrainingReport):
            self._heard_of_ranks(node, message)
        elif isinstance(message, reports.StagingReport):
            self.staging.heard(node, message)
        elif isinstance(message, reports.Signalled):
            if self.scope.ending is not None:
                self.scope.cancels += 1  # what fails from here on is not tried again: there is no time
            self.end_by_scheduler(f"the node program of {node.node.name} got {outcome.signal_name(message.number)}")
        elif isinstance(message, reports.Failed):
            if message.during != PUSH:
                self._failed(node, message)
        elif not isinstance(message, reports.AwaitedReport):
            assert_never(message)

    def _heard_of_ranks(self, node: NodeHandle, message: reports.TrainingReport) -> None:
        if isinstance(message, reports.Saving):
            self.limit.on_saving(message.step)
        elif isinstance(message, reports.GpusSeen):
            problem = not_granted(node.node.gpus, message.seen)
            if problem is not None:
                self._warn(f"{node.node.name}: {problem}")
        elif self._training is not None:
            self._training.heard(node, message)

    def _failed(self, node: NodeHandle, message: reports.Failed) -> None:
        if message.error == errors.TrainingFailed.__name__ and message.during in ("look", "stage"):
            return  # whether the other nodes lack it too is looked at when all have answered
        at_node = message.error in OF_A_NODE or message.during in AT_A_NODE
        reason = f"{message.during} on {node.node.name}: {message.message}"
        error = errors.error_named(message.error)
        status: Status = "error" if error is errors.TrainingFailed else "node_lost" if at_node else "storage"
        nodes = (node.node.name,) if at_node or message.error in OF_A_DISK else ()
        ending = outcome.Ending(status=status, reason=reason, error=error, nodes=nodes)
        if error is errors.ContainerError:
            self.end_by_scheduler(reason, otherwise=ending)  # it may be a step of the job, which may be ended before we are
        else:
            self.scope.end(ending)

    def _training_failed(self, ending: outcome.Ending) -> None:
        """End the run. While the scheduler ends the job only lack of memory counts, since it may be the cause."""
        if not self.is_ending or ending.status == "oom":
            self.scope.end(ending)


def _image_id(node: NodeHandle) -> str:
    image = node.answer(reports.Staged).image
    return "no image" if image is None else image.image_id


# The plan that all node programs get, the same but for the path of each node's own cache.


def node_plan(run: PreparedRun, allocation: Allocation, work: description.Work, rank_silence_s: float) -> commands.Plan:
    """Return the plan of a run, which is the same for all nodes."""
    ranks = commands.RanksPlan(
        framework=at_site(work.framework, run.site),
        cell=cell_document(Run(cell=run.cell, repeat=run.repeat), run.attempt, allocation, work.model),
        engine=run.site.engine,
        image=None if work.image is None else commands.Image(archive=work.image.archive, cache=str(run.site.cache.path)),
        beat_s=rank_silence_s,
        init_s=run.limits.init_s,
    )
    plan = commands.staging_plan(run.site, allocation, run.tag, run.run_dir, None if work.dataset is None else work.dataset.path)
    return replace(plan, run_id=run.run_id, ranks=ranks)


# The commit of the checkout, by one call of git in a child, since the checkout may be on storage.


class GitState(Struct, frozen=True, kw_only=True):
    """The commit of the checkout. Both are None where there is none, or git does not answer."""

    git_sha: str | None = None
    git_dirty: bool | None = None


def git_state(root: str = str(CODE_ROOT)) -> GitState:
    """Ask git for the state of the checkout."""
    if not Path(root, ".git").exists():
        return GitState()
    argv = ["git", "-C", root, "--no-optional-locks", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        result = run(argv, timeout_s=step_limits.GIT_S)
    except errors.SlipwayError:
        return GitState()
    sha, _, dirty = result.stdout.strip().partition("-")
    return GitState(git_sha=sha, git_dirty=bool(dirty)) if result.returncode == 0 else GitState()
