"""Take an attempt that has its nodes through its steps: node programs, staging, preflight, training."""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, assert_never

import msgspec
from msgspec.structs import asdict, replace

from base import VERSION, errors
from base.errors import SlipwayError, error_named
from base.humanize import counted
from base.process import ROOMS, run
from cluster.addresses import listening_address
from cluster.gpus.decision import beyond
from cluster.limits import REACH_S
from cluster.preflight.rates import (
    Finding,
    Place,
    Reach,
    Sample,
    all_reduced,
    best_of,
    exchange_bytes,
    exchange_s,
    measure_s,
    network_verdict,
    summary,
    unreachable,
)
from cluster.schedulers import node_cache
from cluster.types import Allocation
from containers.engines import ONLY_UNDER, in_container
from containers.images.model import StudyImage, check_same
from workflow.run.link import commands, reports
from workflow.run.link.event_loop import Call
from workflow.run.node.child import SUPERVISOR, process_identity
from workflow.run.plan import TAG, Framework, at_site, cell_document, node_argv, processes_of, threads_per_rank
from workflow.run.record import model
from workflow.run.record.continuation import OTHER_PROGRAM, EarlierAttempt, ProgressLine
from workflow.run.record.events import RequestedSteps, requested_steps
from workflow.run.record.model import Status
from workflow.run.record.outcome import (
    CHECKPOINT_EXIT,
    Ending,
    ObservedWindow,
    RankEnd,
    hang,
    judge_missing,
    only_consequences,
    root_cause,
    signal_name,
    verdict,
)
from workflow.run.record.run_record import Granted, RunFacts, RunTimes
from workflow.run.record.step_clock import Clock, run_s
from workflow.run.record.window_seen import in_supervisor_s
from workflow.run.storage import description
from workflow.run.storage.description import Work
from workflow.run.storage.prepare import with_results
from workflow.run.storage.prepared import PreparedRun
from workflow.run.supervisor import time_limits
from workflow.run.supervisor.job import Job, NodeLocks
from workflow.run.supervisor.nodes import NodeHandle, Nodes
from workflow.run.supervisor.staging import Staging, bring_checkpoint, bring_parameters
from workflow.run.supervisor.time_limits import RunEnded, RunScope, TimeLimit
from workflow.study.cell import Run, unit_of
from workflow.study.site import Site, storage_limit

# The command commands.Plan, which is the same for all node programs except for the path of each node's own cache.


def node_plan(run: PreparedRun, allocation: Allocation, work: Work, rank_silence_s: float) -> commands.Plan:
    """Return the plan of a run, which is the same for all nodes."""
    ranks = commands.RanksPlan(
        framework=at_site(work.framework, run.site),
        cell=cell_document(Run(cell=run.cell, repeat=run.repeat), run.attempt, allocation, work.model),
        engine=run.site.engine,
        image=None if work.image is None else _image(work.image, run.site),
        beat_s=rank_silence_s,
        init_s=run.limits.init_s,
    )
    plan = staging_plan(run.site, allocation, run.tag, run.run_dir, None if work.dataset is None else work.dataset.path)
    return replace(plan, run_id=run.run_id, ranks=ranks)


def staging_plan(site: Site, allocation: Allocation, tag: str, run_dir: str, source: str | None) -> commands.Plan:
    """Return a plan without ranks, which stages only the dataset `source` under the name `tag`. A source of None means no dataset."""
    return commands.Plan(
        allocation=allocation,
        tag=tag,
        run_id=tag,
        run_dir=run_dir,
        group=site.shared == "group",
        source=source,
        cache=str(site.cache.path),
        cache_place=site.cache.place,
        cache_max_bytes=site.cache.max_bytes,
        cache_check_s=site.cache.check_s,
        bytes_per_s=storage_limit(site).bytes_per_s,
        ranks=None,
    )


def _image(image: StudyImage, site: Site) -> commands.Image:
    credentials = None if site.registry_credentials is None else str(site.registry_credentials)
    return commands.Image(archive=image.archive, cache=str(site.cache.path), may_pull=site.nodes_may_pull, credentials=credentials)


# The preflight: before anything is staged, the nodes of the allocation test the network between them.


logger = logging.getLogger(__name__)

A = TypeVar("A", reports.ProbesListen, reports.Reached, reports.Measured)


def is_needed(allocation: Allocation) -> bool:
    """Return True if the nodes have different addresses, so that a network connects them."""
    return len({node.address for node in allocation.nodes}) > 1


class Preflight:
    """A test of the network that ends a run which cannot work. `record` holds the results so far."""

    def __init__(self, scope: RunScope, nodes: Nodes, allocation: Allocation) -> None:
        self._scope, self._nodes, self._allocation = scope, nodes, allocation
        self._begun = time.monotonic()
        self._places: list[Place] = []
        self.findings: list[Finding] = []
        count = len(allocation.nodes)
        self.record = model.Preflight(pairs=count * (count - 1), findings=())

    def run(self) -> None:
        """Connect all pairs of nodes, then measure until it is clear which node is slow. A pair that cannot connect ends the run. A slow
        node or link is measured again with more bytes, then reported, and the run goes on."""
        self._listen()
        self._reach()
        attempts: list[dict[tuple[int, int], Sample]] = []
        rings: list[list[dict[str, Any]]] = []
        findings: list[Finding] = []
        clear = False
        while not clear:
            answers = self._measure(len(attempts), ring=not any(all_reduced(ring) for ring in rings) and len(rings) < 2)
            attempts.append(_samples(answers))
            ring = [asdict(answer.all_reduce) for answer in answers if answer.all_reduce is not None]
            rings += [ring] if len(ring) == len(answers) else []
            findings, clear = network_verdict(self._places, attempts, rings)
        self._tell([None] * len(self._places))
        found = summary(best_of(attempts))
        self._note(
            rate_mbit_median=found.median_mbit,
            rate_mbit_min=found.min_mbit,
            slowest=found.slowest and model.Link(from_=self._name(found.slowest[0]), to=self._name(found.slowest[1])),
            all_reduce_ms=min((1e3 * worst for ring in rings if (worst := _longest(ring)) is not None), default=None),
        )
        self._found(findings)
        logger.info("network: %s", self._line())
        self._end_if_fatal()

    def _listen(self) -> None:
        nodes = self._allocation.nodes
        self._tell([commands.Listen(index=index, nodes=len(nodes), address=node.address) for index, node in enumerate(nodes)])
        answers = self._answers(reports.ProbesListen, time_limits.PREFLIGHT_ANSWER_S)
        self._places = [Place(node.name, answer.address, answer.port, node.interface) for node, answer in zip(nodes, answers, strict=True)]

    def _reach(self) -> None:
        order = commands.Reach(peers=tuple((place.address, place.port) for place in self._places))
        answers = self._ask(reports.Reached, REACH_S, order)
        reached = {
            (origin, target): Reach(*reach)
            for origin, answer in enumerate(answers)
            for target, reach in enumerate(answer.reached)
            if reach is not None
        }
        times = [reach.seconds for reach in reached.values() if reach.seconds is not None]
        self._note(connect_ms_max=1e3 * max(times) if times else None)
        problem = unreachable(self._places, reached)
        self._found([problem] if problem is not None else [])
        self._end_if_fatal()

    def _measure(self, attempt: int, ring: bool) -> list[reports.Measured]:
        count, again = len(self._places), attempt > 0
        limit_s = exchange_s(count, again)
        order = commands.Measure(attempt=attempt, ring=ring, bytes=exchange_bytes(count, again), limit_s=limit_s)
        return self._ask(reports.Measured, measure_s(count, limit_s), order)

    # -- orders and answers

    def _tell(self, own: Sequence[commands.Listen | commands.Reach | commands.Measure | None]) -> None:
        self._nodes.forget(reports.PreflightAnswered)
        for node, order in zip(self._nodes.all, own, strict=True):
            self._nodes.send(node, commands.Preflight(order=order))

    def _ask(self, kind: type[A], limit_s: float, order: commands.Reach | commands.Measure) -> list[A]:
        self._tell([order] * len(self._allocation.nodes))
        return self._answers(kind, limit_s + time_limits.PREFLIGHT_ANSWER_S)

    def _answers(self, kind: type[A], limit_s: float) -> list[A]:
        """Return one answer per node. One about another number of nodes ends the run."""
        if not self._scope.wait(lambda: all(node.has_reported(reports.PreflightAnswered) for node in self._nodes.all), limit_s):
            silent = ", ".join(node.node.name for node in self._nodes.all if not node.has_reported(reports.PreflightAnswered))
            self._end(f"no answer from {silent} within {limit_s:.0f} s")
        found: list[A] = []
        for node in self._nodes.all:
            answer = node.answer(reports.PreflightAnswered).answer
            if not isinstance(answer, kind) or _nodes_in(answer) not in (None, len(self._nodes.all)):
                self._end(f"{node.node.name} gives an answer to another question than that for {kind.__name__}")
            found.append(answer)
        return found

    # -- results

    def _note(self, **found: Any) -> None:
        self.record = replace(self.record, seconds=time.monotonic() - self._begun, **found)

    def _name(self, index: int) -> str:
        return self._places[index].name

    def _found(self, findings: list[Finding]) -> None:
        self.findings = findings
        self._note(findings=tuple(finding.text for finding in findings))
        for finding in findings:
            logger.warning("network: %s", finding.text)

    def _end_if_fatal(self) -> None:
        fatal = [finding.text for finding in self.findings if finding.fatal]
        if fatal:
            self._end("; ".join(fatal))

    def _end(self, why: str) -> NoReturn:
        self._note()
        self._scope.fail(Ending(status="node_lost", reason=f"preflight: {why}"))

    def _line(self) -> str:
        record = self.record
        rates = "" if record.rate_mbit_min is None else f", {record.rate_mbit_min:,.0f} Mbit/s at least"
        return f"{record.pairs} pairs connect in {record.connect_ms_max:.1f} ms at most{rates}; tested in {record.seconds:.2f} s"


def _nodes_in(answer: reports.ProbesListen | reports.Reached | reports.Measured) -> int | None:
    match answer:
        case reports.ProbesListen():
            return None
        case reports.Reached():
            return len(answer.reached)
        case reports.Measured():
            return len(answer.rates)


def _samples(answers: list[reports.Measured]) -> dict[tuple[int, int], Sample]:
    """Collect by (sender, receiver) the rate that the receiver measured, and how busy both were."""
    found = {}
    for target, answer in enumerate(answers):
        for origin, rate in enumerate(answer.rates):
            if rate is not None:
                other = answers[origin].rates[target]
                found[origin, target] = Sample(rate[0], rate[1], rate[2] + (other[2] if other else 0.0))
    return found


def _longest(ring: list[dict[str, Any]]) -> float | None:
    seconds = [answer["seconds"] for answer in ring]
    return None if None in seconds else max(seconds)


# Provenance: version, commit, whether the checkout was changed. One git call, in a child, since the checkout may be on storage.


def slipway_provenance(root: str = str(ROOMS)) -> dict[str, Any]:
    """Return `slipway_version`, `git_sha`, `git_dirty` and `python`. Unknown values, such as an installed package's commit, are None."""
    return {"slipway_version": VERSION, "python": platform.python_version(), **_git(root)}


def parse_git_status(text: str) -> dict[str, Any]:
    """Parse the output of `git status --porcelain=v2 --branch`."""
    sha, dirty = None, False
    for line in text.splitlines():
        if line.startswith("# branch.oid "):
            sha = line.split()[2]
        elif not line.startswith("#"):
            dirty = True
    return {"git_sha": sha if sha and sha != "(initial)" else None, "git_dirty": dirty if sha else None}


def _git(root: str) -> dict[str, Any]:
    unknown = {"git_sha": None, "git_dirty": None}
    if not Path(root, ".git").exists():
        return unknown
    argv = ["git", "-C", root, "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        result = run(argv, timeout_s=time_limits.GIT_S)
    except SlipwayError:
        return unknown
    return parse_git_status(result.stdout) if result.returncode == 0 else unknown


# The train step: all ranks end well, or the first failure among many is found and named.


logger = logging.getLogger(__name__)


class Training:
    """The ends of all ranks. `on_end(ending)` is called once, for the first failure; `finished` is true when every rank has succeeded."""

    def __init__(
        self,
        scope: RunScope,
        nodes: Nodes,
        world_size: int,
        progress: ProgressLine,
        framework: Framework,
        on_end: Callable[[Ending], None],
    ) -> None:
        self._loop, self._limits = scope.loop, scope.limits
        self._nodes, self._progress, self._framework, self._on_end = nodes, progress, framework, on_end
        self._left = set(range(world_size))
        self._ends: list[RankEnd] = []
        self._first_failure: float | None = None
        self._overdue = False
        self._on_saved: Callable[[int | None, str | None], None] | None = None

    @property
    def finished(self) -> bool:
        return not self._left and self._first_failure is None

    def windows(self) -> list[ObservedWindow]:
        """Return the observed measurement windows of the ranks that have succeeded."""
        return [seen for end in self._ends for seen in end.windows]

    @property
    def checkpoint(self) -> int | None:
        """Return the step of the last checkpoint that ended processes reported."""
        return next((end.checkpoint for end in reversed(self._ends) if end.checkpoint is not None), None)

    def save(self, on_saved: Callable[[int | None, str | None], None]) -> str | None:
        """Request a checkpoint from rank 0: `on_saved(step, None)` follows when it has ended with one, `on_saved(None, why)` when a rank
        fails. Return None, or the reason why there can be no checkpoint."""
        if not self._framework.checkpoint:
            return f"framework {self._framework.name!r} writes none"
        self._on_saved = on_saved
        self._nodes.send(self._nodes.all[0], commands.Checkpoint())
        return None

    def _fail(self, ending: Ending) -> None:
        if self._on_saved is not None:
            self._on_saved(None, ending.reason)
        else:
            self._on_end(ending)

    def heard(self, node: NodeHandle, message: reports.Exited | reports.Overdue | reports.Alive) -> None:
        match message:
            case reports.Exited():
                self.rank_ended(message)
            case reports.Overdue():
                self.overdue()
            case reports.Alive():
                self.show(node)
            case _:
                assert_never(message)

    def rank_ended(self, message: reports.Exited) -> None:
        """Handle the end of a process. A sidecar's end counts as a failure while ranks run."""
        skew_s = time.time() - message.now  # clocks of nodes differ; the way of a message is short
        windows = tuple(in_supervisor_s(seen, time.monotonic()) for seen in message.end.windows)
        end = message.end._replace(time=message.end.time + skew_s, windows=windows)
        if end.sidecar is not None and not self._left:
            return
        self._ends.append(end)
        self._left -= set(end.ranks)
        if self._is_saved(end):
            self._stopped_at_checkpoint(end)
            return
        if verdict(end) is None or self._first_failure is not None:
            return
        if self._on_saved is not None and 0 in end.ranks:
            failure = root_cause([end])
            self._on_saved(None, failure.reason if failure is not None else None)
            return
        self._first_failure = time.monotonic()
        self._nodes.forget(reports.RankReport)
        self._nodes.send_all(commands.ReportRanks())
        self._loop.after(self._limits.other_failures_s, self._judge)

    def _is_saved(self, end: RankEnd) -> bool:
        """Return True if rank 0 has ended with a checkpoint. torchrun exits with 1 for every exit code of its ranks: without the rank's own
        code, a checkpoint must have been requested and rank 0 must have reported no error."""
        by_torchrun = self._framework.launcher == "torchrun" and self._on_saved is not None and end.exit_code == 1 and end.failed_rank != 0
        return end.checkpoint is not None and (by_torchrun or end.exit_code == CHECKPOINT_EXIT)

    def _stopped_at_checkpoint(self, end: RankEnd) -> None:
        if self._on_saved is not None:
            self._on_saved(end.checkpoint, None)
            return
        reason = f"{end.who} stopped at a checkpoint (exit code {CHECKPOINT_EXIT}) that nobody had asked for"
        self._on_end(Ending(status="error", reason=reason, rank_end=end))

    def _judge(self) -> None:
        """Name the cause after the grace period. While all failures look like consequences, wait for a node that may be lost."""
        assert self._first_failure is not None
        waited = time.monotonic() - self._first_failure
        silent = [node for node in self._nodes.present() if not node.has_reported(reports.RankReport)]
        if only_consequences(self._ends) and waited < self._limits.cause_search_s and (silent or self._left):
            self._loop.after(self._limits.other_failures_s, self._judge)
            return
        if only_consequences(self._ends) and silent:
            names = ", ".join(node.node.name for node in silent)
            reason = f"{names} did not answer within {self._limits.cause_search_s:.0f} s after other ranks lost their connections"
            self._fail(Ending(status="node_lost", reason=reason, nodes=tuple(node.node.name for node in silent)))
            return
        ending = root_cause(self._ends)
        assert ending is not None
        self._fail(ending)

    def overdue(self) -> None:
        """Look at all ranks after a node has reported a silent one, then name the rank that hangs."""
        if self._overdue or self._on_saved is not None:
            return
        self._overdue = True
        self._nodes.forget(reports.RankReport)
        self._nodes.send_all(commands.ReportRanks())
        self._loop.after(time_limits.RANK_LOOKS_S, self._name_hanging)

    def _name_hanging(self) -> None:
        if self._first_failure is not None or self._on_saved is not None:
            return
        told = [
            message
            for node in self._nodes.all
            for message in (node.last(reports.Overdue), node.last(reports.RankReport))
            if message is not None
        ]
        ranks = [rank for message in told for rank in message.ranks]
        self._on_end(hang([rank for rank in ranks if rank.is_overdue or rank.is_frozen] or ranks))

    def show(self, node: NodeHandle) -> None:
        alive = [message for other in self._nodes.all if (message := other.last(reports.Alive)) is not None]
        steps = [message.step for message in alive if message.step is not None]
        tokens = [message.tokens for message in alive if message.tokens is not None]
        all_tokens = sum(tokens) if len(tokens) == (1 if self._framework.launcher == "single" else len(self._nodes.all)) else None
        line = self._progress.due(min(steps), time.monotonic(), all_tokens) if steps and node.index == 0 else None
        if line is not None:
            logger.info("%s", line)


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
    """An attempt that has its nodes, with the results of its steps so far."""

    def __init__(self, scope: RunScope, clock: Clock, limit: TimeLimit, job: Job, locks: NodeLocks, run: PreparedRun) -> None:
        self.scope, self.clock, self.limit, self.job, self.locks, self.run = scope, clock, limit, job, locks, run
        self.warnings: list[str] = []
        self.windows: list[ObservedWindow] = []
        """What the nodes saw of the ranks' windows, when all ranks have ended well."""
        self.preflight: Preflight | None = None
        """The test of the network, if one connects the nodes."""
        self.resumed: EarlierAttempt | None = None
        self._training: Training | None = None
        site, allocation, scheduler = run.site, job.allocation, job.scheduler
        interface = site.network_interface
        listen = listening_address((node.address for node in allocation.nodes), interface)
        self.nodes = Nodes(scope.loop, allocation, listen, self._heard, self._lost, scope.limits)
        job.give_up_silent_nodes = self.nodes.give_up_silent
        self.staging = Staging(scope, self.nodes)
        argv = node_argv(sys.executable, self.nodes.address, site.setup, allocation.device, interface)
        self._launches = scheduler.launches(allocation, argv)
        self.provenance = Call(scope.loop, "provenance", slipway_provenance, timeout_s=time_limits.STORAGE_CALL_S)

    def start(self, images: str | None) -> description.Work:
        """Start the node programs, and describe the work while they come up. `images`: see Supervisor. Raises SlipwayError, RunEnded."""
        run, device = self.run, self.job.allocation.device
        environ = {**self.job.scheduler.launch_environ(os.environ), TAG: run.tag, SUPERVISOR: process_identity()}
        self.nodes.launch(self._launches, environ, () if self.job.allocation.own_job else self.locks.descriptors)
        results = str(Path(run.run_dir).parents[1])
        arguments = (run.site, run.cell, device, images, results, run.dataset_build)
        work: description.Work = self.scope.call("prepare", description.describe_work, *arguments, kind=description.Work)
        return work

    def run_steps(self, work: description.Work) -> Ending:
        """Wait until every rank has succeeded, the run is ended, or nodes have delivered its result, which `run.done` then holds."""
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

    def requested_steps(self, work: description.Work) -> RequestedSteps:
        return requested_steps(self.run.cell, work.train_samples, 0 if self.resumed is None else self.resumed.step)

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
        self.job.wait_if_ending()  # a node program that was told to end before it was up says nothing of itself
        for warning in self.job.complete(self.nodes, run):
            self._warn(warning)
        self._test_network()
        readers = storage_limit(run.site).readers
        plan = node_plan(run, self.job.allocation, work, self.scope.limits.rank_silence_s)
        self.staging.look(plan, lambda node: str(node_cache(run.allocation.scheduler, site.cache.path, node)))
        self.job.wait_if_ending()
        if any(answer.delivered for node in self.nodes.all if (answer := node.last(reports.LookedAt)) is not None):
            self.run = run = self.scope.call("prepare", with_results, run, kind=PreparedRun, renewed=True)
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
        if is_needed(self.job.allocation):
            self.preflight = Preflight(self.scope, self.nodes, self.job.allocation)
            self.preflight.run()

    def _refuse_what_is_missing(self) -> None:
        told = {node.node.name: failed.message for node in self.nodes.all if (failed := node.last(reports.Failed)) is not None}
        if told:
            self.scope.fail(judge_missing(told, len(self.nodes.all)))

    def _check_images(self, work: description.Work) -> None:
        if work.image is None:
            return
        try:
            check_same(work.image.image, {node.node.name: _image_id(node) for node in self.nodes.present()})
        except errors.ContainerError as error:
            self.scope.fail(Ending(status="node_lost", reason=str(error), error=errors.ContainerError))

    def _train(self, work: description.Work) -> None:
        self.clock.enter("train")
        cell = self.run.cell
        batch = cell.global_batch_size if unit_of(cell.to_json()) == "samples" else None
        num_ranks = processes_of(work.framework, cell)
        progress = ProgressLine(batch, requested_steps(cell, work.train_samples).total, time.monotonic())
        training = self._training = Training(self.scope, self.nodes, num_ranks, progress, work.framework, self._training_failed)
        self.limit.may_save(training.save)
        logger.info("train: %s %s", counted(num_ranks, "rank"), "starts" if num_ranks == 1 else "start")
        ports = tuple(node.answer(reports.Staged).ports for node in self.nodes.all)
        self.nodes.send_all(commands.Start(ports=ports, left_s=self.limit.deadline - time.monotonic()))
        self.scope.wait(lambda: training.finished)
        self.windows = training.windows()

    # -- reports of the nodes

    def _lost(self, node: NodeHandle, why: str) -> None:
        if not self.job.is_ending:
            place = "" if node.node.hostname == node.node.name else f" ({node.node.hostname})"
            reason = f"the node program of {node.node.name}{place} is gone: {why}"
            refused = any(launch.refusal and launch.refusal in why for launch in self._launches)
            error = errors.AllocationError if refused else None
            ending = Ending(status="node_lost", reason=reason, nodes=(node.node.name,), error=error)
            if node.launcher_signalled or self.job.scheduler.KILLS_UNTOLD:
                self.job.ended(reason, otherwise=ending)  # it may be the first sign of the end of the whole job
            else:
                self.scope.end(ending)

    def _heard(self, node: NodeHandle, message: reports.Report) -> None:
        if self.job.is_ending and isinstance(message, CONSEQUENCES):
            return
        if isinstance(message, reports.TrainingReport):
            self._heard_of_ranks(node, message)
        elif isinstance(message, reports.StagingReport):
            self.staging.heard(node, message)
        elif isinstance(message, reports.Signalled):
            if self.scope.ending is not None:
                self.scope.cancels += 1  # what fails from here on is not tried again: there is no time
            self.job.ended(f"the node program of {node.node.name} got {signal_name(message.number)}")
        elif isinstance(message, reports.Failed):
            if message.during != PUSH:
                self._failed(node, message)
        elif not isinstance(message, reports.AwaitedReport):
            assert_never(message)

    def _heard_of_ranks(self, node: NodeHandle, message: reports.TrainingReport) -> None:
        if isinstance(message, reports.Saving):
            self.limit.heard_saving(message.step)
        elif isinstance(message, reports.GpusSeen):
            problem = beyond(node.node.gpus, message.seen)
            if problem is not None:
                self._warn(f"{node.node.name}: {problem}")
        elif self._training is not None:
            self._training.heard(node, message)

    def _failed(self, node: NodeHandle, message: reports.Failed) -> None:
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
        """End the run. While the scheduler ends the job only lack of memory counts, since it may be the cause."""
        if not self.job.is_ending or ending.status == "oom":
            self.scope.end(ending)


def _image_id(node: NodeHandle) -> str:
    image = node.answer(reports.Staged).image
    return "no image" if image is None else image.image_id


# Facts of the record besides the ending and the events: who ran where, when and with what.


OF_MACHINE: Final = ("cpu_model", "machine_cores", "memory_bytes", "network", "driver_version")


def times_of(clock: Clock) -> RunTimes:
    """Return `start`, `end`, `run_s` and `steps_s` as of now."""
    steps = clock.steps_s()
    return RunTimes(
        start=clock.start.isoformat(timespec="milliseconds"),
        end=clock.end().isoformat(timespec="milliseconds"),
        run_s=run_s(steps),
        steps_s=model.Steps(**steps),
    )


def run_facts(attempt: RunningAttempt, work: Work) -> RunFacts:
    """Collect the facts of the attempt, the first argument of record.build_record."""
    run, allocation, nodes, dataset = attempt.run, attempt.job.allocation, attempt.nodes.all, work.dataset
    head = nodes[0].last(reports.Ready)
    return RunFacts(
        run_id=run.run_id,
        repeat=run.repeat,
        attempt=run.attempt,
        study=run.study,
        cell=run.cell,
        result_number=run.result_number,
        allocation=msgspec.convert(allocation, Granted, from_attributes=True),
        site=run.site.name,
        engine=run.site.engine,
        nodes=tuple(_node_record(node) for node in nodes),
        threads_per_rank=threads_per_rank(run.cell, allocation.head),
        preflight=None if attempt.preflight is None else attempt.preflight.record,
        earlier=attempt.resumed,
        exclusive=allocation.exclusive,
        warnings=tuple(attempt.warnings),
        windows_seen=tuple(attempt.windows),
        dataset=None if dataset is None else msgspec.convert(dataset, model.Dataset, from_attributes=True),
        splits=None if dataset is None else dataset.splits,
        model_macs=None if work.model is None else work.model.macs,
        model_first_macs=None if work.model is None else work.model.first_macs,
        macs_by_length=work.macs_by_length,
        provenance={
            **_provenance(attempt.provenance),
            **{key: None if head is None else getattr(head.facts, key) for key in ("kernel", "os", "cpu_model")},
            "driver_version": _driver(nodes) if allocation.device == "cuda" else None,
            **_image_provenance(run.site, work),
            **({"program_digest": work.framework.digest} if work.framework.own else {}),
            **_site_provenance(run.site),
        },
    )


def _driver(nodes: Sequence[NodeHandle]) -> str | None:
    found = {ready.facts.driver_version for node in nodes if (ready := node.last(reports.Ready)) is not None}
    return " + ".join(sorted(version for version in found if version)) or None


def _image_provenance(site: Site, work: Work) -> dict[str, Any]:
    if not in_container(site.engine):
        return {}
    if work.image is None:
        return {"image": at_site(work.framework, site).image, "image_digest": None, "image_id": None}
    pinned = work.image.image
    return {"image": pinned.reference, "image_digest": pinned.digest, "image_id": pinned.image_id}


def _site_provenance(site: Site) -> dict[str, Any]:
    mounts = [{"source": source, "target": target, "writable": writable} for source, target, writable in site.mounts]
    return {**({"site_mounts": mounts} if mounts else {}), **({"site_env": dict(site.env)} if site.env else {})}


def _node_record(node: NodeHandle) -> model.Node:
    ready, staged, seen = node.last(reports.Ready), node.last(reports.Staged), node.last(reports.GpusSeen)
    models = node.node.gpu_models or (None,) * len(node.node.gpus)
    facts = {} if ready is None else {key: getattr(ready.facts, key) for key in OF_MACHINE}
    return model.Node(
        name=node.node.name,
        hostname=node.node.hostname if ready is None else ready.facts.hostname,
        cores=node.node.cores,
        gpus=tuple(model.Gpu(uuid=uuid, model=name) for uuid, name in zip(node.node.gpus, models, strict=True)),
        gpus_seen=None if seen is None else seen.seen,
        image_s=None if staged is None or staged.image is None else staged.image.seconds,
        stage=None if staged is None or staged.dataset is None else msgspec.convert(staged.dataset, model.Stage, from_attributes=True),
        **facts,
    )


def _provenance(call: Call) -> dict[str, Any]:
    """Return None for values that were not known in time."""
    unknown: dict[str, Any] = {key: None for key in ("slipway_version", "git_sha", "git_dirty", "python")}
    if not call.finished:
        return unknown
    try:
        return dict(call.result())
    except SlipwayError:
        return unknown
