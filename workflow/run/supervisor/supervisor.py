"""The supervisor of one run: `python -m workflow.run.supervisor --results DIR --run RUN_ID`, started with `exec` by the rule.

One job, one allocation, one supervisor, one lease, one clock. It takes the run's lease, starts a node program on every node, has them
stage, train, push and release, and publishes the record last. Exit code 0 for every result, that of the error's class for an attempt that
was prevented. It never touches network storage itself: children with time limits do.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec

from base import errors
from base.errors import LeaseError, SlipwayError, error_named
from base.logs import configure, private_umask
from base.units import counted
from cluster import processes
from cluster.addresses import listening_address
from cluster.schedulers import get_scheduler
from cluster.types import Allocation
from workflow.run.link import orders, said
from workflow.run.link.calls import Call
from workflow.run.link.event_loop import Loop
from workflow.run.node.watch_child import SUPERVISOR, who_i_am
from workflow.run.plan import TAG, node_argv
from workflow.run.record.continuation import EarlierAttempt
from workflow.run.record.outcome import Ending, signal_name
from workflow.run.record.progress_line import ProgressLine
from workflow.run.record.step_clock import Clock
from workflow.run.record.steps_asked import steps_asked
from workflow.run.storage import description
from workflow.run.storage.asked import parse_asked
from workflow.run.storage.prepare import prepare
from workflow.run.supervisor import preflight
from workflow.run.supervisor.caller import watch_parent
from workflow.run.supervisor.finish import finish, give_up
from workflow.run.supervisor.job import Job, complete, look_at_foreign, take_locks, take_nodes
from workflow.run.supervisor.node_locks import NodeLocks
from workflow.run.supervisor.nodes import SILENCE_S, NodeHandle, Nodes
from workflow.run.supervisor.plan_order import node_plan
from workflow.run.supervisor.provenance import slipway_provenance
from workflow.run.supervisor.resuming import bring_checkpoint
from workflow.run.supervisor.run_scope import STORAGE_S, RunEnded, RunScope
from workflow.run.supervisor.staging import Staging
from workflow.run.supervisor.stderr_relay import Relay
from workflow.run.supervisor.time_limit import TimeLimit
from workflow.run.supervisor.training import Training

logger = logging.getLogger(__name__)

OF_A_NODE: Final = frozenset({"ContainerError", "AllocationError", "NodeLost"})
"""Errors of a node program that say that its node is at fault; all others are of storage or staging."""
PUSH: Final = "push"
AT_A_NODE: Final = frozenset({"come up", "preflight", "start"})
"""What has nothing to do with storage, whatever the error is."""
CONSEQUENCES: Final = (said.Exited, said.Overdue, said.Failed)
"""What a node program says when the scheduler ends it; no cause of its own."""


class Supervisor:
    """The state of one run. Callbacks of the loop note in `scope` why it ends; the steps hear of it where they wait."""

    def __init__(self, results: str, asked: str, relay: Relay, images: str | None = None) -> None:
        self.results = results
        self.images = images
        """The file of the rule `image`, where runs are containers."""
        self.run_id, self.after = parse_asked(asked)
        """The run, and the number of the result that the one asked for must be later than."""
        self.relay = relay
        """The process that writes our log, which outlives everything else we started."""
        self.pid = os.getpid()
        self.clock = Clock(processes.age_s(self.pid))
        self.loop = Loop()
        self.scope = RunScope(self.loop)
        self.run: dict[str, Any] = {}
        self._work: description.Work | None = None
        self.preparing: Call | None = None
        self.provenance: Call | None = None
        self.nodes: Nodes | None = None
        self.node_locks: NodeLocks | None = None
        self.preflight: preflight.Preflight | None = None
        self.staging: Staging | None = None
        self.training: Training | None = None
        self.began = False
        """Whether staging has begun: from then on an attempt is recorded."""
        self.cancels = 0
        self.resumable: tuple[EarlierAttempt, ...] = ()
        """The earlier attempts from which this one could resume, the best first."""
        self.resumed: EarlierAttempt | None = None
        """The one from which it does."""
        self.warnings: list[str] = []
        """For the record."""

    def main(self) -> int:
        """The whole run; the exit code."""
        self.loop.on_signals(self._signalled)
        watch_parent(self.loop, self._orphaned)
        processes.become_subreaper()
        try:
            try:
                self._prepare()
                if self.run["done"] is not None:
                    self.relay.append()
                    return self._already_done(**self.run["done"])
                self.relay.begin()
                self._take_nodes()
                self._start()
                self.job.ask()
                self.began = True
                self._stage()
                self._train()
                ending = Ending(status="ok")
            except RunEnded as ended:
                ending = ended.ending
            except SlipwayError as error:
                if not self.began:
                    return self._refuse(error)
                ending = Ending(status="storage", reason=str(error), error=type(error))
            self.scope.end(ending)
            return finish(self, ending) if self.began else give_up(self, ending)
        finally:
            if not processes.kill_descendants(2.0, spare=[self.relay.pid]):
                logger.error("processes of this run are left in uninterruptible sleep")
            if self.node_locks is not None:
                self.node_locks.give(inherited=not self.allocation.own_job)

    def _refuse(self, error: SlipwayError) -> int:
        """What was asked cannot be done, and nothing has begun."""
        if isinstance(error, LeaseError):
            self.relay.refuse()
        else:
            self.relay.append()
        logger.error("%s", error)
        ending = Ending(status="cancelled", reason=str(error), error=type(error))
        self.scope.end(ending)
        return give_up(self, ending)

    @property
    def work(self) -> description.Work:
        """Framework, dataset, network and image of this run; known before anything is staged."""
        assert self._work is not None
        return self._work

    # -- causes of an end

    def _signalled(self, number: int) -> None:
        self.cancels += 1
        told = f"the supervisor got {signal.Signals(number).name}"
        if self.began and self.cancels == 1:
            self.job.ended(told)
        else:
            self.scope.end(Ending(status="cancelled", reason=told))

    def _orphaned(self) -> None:
        self.cancels += 1
        self.scope.end(Ending(status="cancelled", reason="the process that started the supervisor has ended"))

    def _lost(self, node: NodeHandle, why: str) -> None:
        if not self.job.is_ending:
            place = "" if node.node.hostname == node.node.name else f" ({node.node.hostname})"
            reason = f"the node program of {node.node.name}{place} is gone: {why}"
            refused = any(launch.refusal and launch.refusal in why for launch in self.launches)
            self.scope.end(Ending(status="node_lost", reason=reason, error=errors.AllocationError if refused else None))

    def _heard(self, node: NodeHandle, message: said.Said) -> None:
        if self.job.is_ending and isinstance(message, CONSEQUENCES):
            return
        if isinstance(message, said.OfTraining):
            self._heard_of_ranks(node, message)
        elif isinstance(message, said.OfStaging):
            if self.staging is not None:
                self.staging.heard(node, message)
        elif isinstance(message, said.Signalled):
            if self.scope.ending is not None:
                self.cancels += 1  # what fails from here on is not tried again: there is no time
            self.job.ended(f"the node program of {node.node.name} got {signal_name(message.number)}")
        elif isinstance(message, said.Failed):
            if message.during != PUSH:
                self._failed(node, message)
        elif not isinstance(message, said.Awaited):
            assert_never(message)

    def _heard_of_ranks(self, node: NodeHandle, message: said.OfTraining) -> None:
        if isinstance(message, said.Saving):
            self.time.heard_saving(message.step)
        elif self.training is not None:
            self.training.heard(node, message)

    def _failed(self, node: NodeHandle, message: said.Failed) -> None:
        at_node = message.error in OF_A_NODE or message.during in AT_A_NODE
        reason = f"{message.during} on {node.node.name}: {message.message}"
        self.scope.end(Ending(status="node_lost" if at_node else "storage", reason=reason, error=error_named(message.error)))

    def _training_failed(self, ending: Ending) -> None:
        """What ranks do that the scheduler ends is a consequence, but for memory that ran out: that may be why it ends them."""
        if not self.job.is_ending or ending.status == "oom":
            self.scope.end(ending)

    # -- the steps

    def _prepare(self) -> None:
        arguments = (self.results, self.run_id, self.after, os.getpid(), dict(os.environ))
        preparing = self.preparing = Call(self.loop, "prepare", prepare, *arguments, timeout_s=STORAGE_S, renewed=True)
        self.scope.wait(lambda: preparing.finished)
        self.run = preparing.result()
        private_umask(self.run["site"]["shared"] == "group")
        self.allocation = Allocation.from_json(self.run["allocation"])
        self.scheduler = get_scheduler(self.allocation.scheduler)
        self.limits = self.run["limits"]
        self.time = TimeLimit(self)
        self.job = Job(self)
        self.resumable = msgspec.convert(self.run["resumable"], tuple[EarlierAttempt, ...])
        self.time.goes_on(next(iter(self.resumable), None))

    def _already_done(self, attempt: int, status: str) -> int:
        logger.info("%s has the result that was asked for: attempt %d, status %s; nothing is trained", self.run_id, attempt, status)
        return 0

    def _start(self) -> None:
        """Node programs come up while framework and dataset are looked at."""
        site, cell = self.run["site"], self.run["cell"]
        listen = listening_address((node.address for node in self.allocation.nodes), site.get("network_interface"))
        silence_s = float(self.limits.get("silence_s", SILENCE_S))
        self.nodes = Nodes(self.loop, self.allocation, listen, self._heard, self._lost, silence_s)
        argv = node_argv(sys.executable, self.nodes.address, site["setup"], self.allocation.device, site.get("network_interface"))
        held = () if self.node_locks is None or self.allocation.own_job else self.node_locks.descriptors
        environ = {**self.scheduler.launch_environ(os.environ), TAG: self.run["tag"], SUPERVISOR: who_i_am()}
        self.launches = self.scheduler.launches(self.allocation, argv)
        self.nodes.launch(self.launches, environ, held)
        self._work = description.read_work(
            self.scope.call("prepare", description.describe_work, site, cell, self.allocation.device, self.images)
        )
        self.provenance = Call(self.loop, "provenance", slipway_provenance, timeout_s=STORAGE_S)

    def _take_nodes(self) -> None:
        """On a machine that runs would share, wait until no other run measures; in a job that runs share, until enough nodes are free;
        before anything is started that would disturb them. The walltime begins then."""
        self.clock.enter("assign")
        take_nodes(self, take_locks(self, *self.scheduler.run_locks(self.allocation, self.run["cell"]["nodes"])))
        logger.info("%s: attempt %d on %s", self.run_id, self.run["attempt"], ", ".join(node.name for node in self.allocation.nodes))
        self.clock.enter("stage")
        self.time.begin()
        self.scope.check()

    def _stage(self) -> None:
        assert self.nodes is not None
        cache = Path(self.run["site"]["cache"]["path"])
        self.staging = Staging(self.scope, self.nodes)
        self.staging.wait_for_nodes()
        self.job.wait_if_ending()  # a node program that was told to end before it was up says nothing of itself
        complete(self)
        self._test_network()
        readers = (self.run["site"].get("storage_limit") or {}).get("readers")
        self.staging.run(node_plan(self), lambda node: str(self.scheduler.node_cache(cache, node)), readers)
        self.job.wait_if_ending()  # nodes may have failed or gone as a consequence, and nothing was made of that
        self._check_images()
        look_at_foreign(self)
        self.resumed = bring_checkpoint(self)
        self.time.goes_on(self.resumed)

    def _check_images(self) -> None:
        """Before any rank starts: every node has what the study's image was pinned to."""
        assert self.nodes is not None
        if self.work.image is None:
            return
        from workflow.run.images.pin import check_nodes

        try:
            check_nodes(self.work.image, {node.node.name: _image_id(node) for node in self.nodes.present()})
        except errors.ContainerError as error:
            self.scope.fail(Ending(status="node_lost", reason=str(error), error=errors.ContainerError))

    def _test_network(self) -> None:
        """Before anything is staged: an unreachable node ends the run here, a slow one is told."""
        assert self.nodes is not None
        if preflight.is_needed(self.allocation):
            self.preflight = preflight.Preflight(self.scope, self.nodes, self.allocation)
            self.preflight.run()

    def _train(self) -> None:
        assert self.nodes is not None
        head = self.nodes.all[0]
        self.clock.enter("train")
        cell = self.run["cell"]
        world_size = cell["nodes"] * cell["gpus_per_node"]
        progress = ProgressLine(cell["global_batch_size"], steps_asked(cell, self.work.train_samples).total, time.monotonic())
        training = Training(self.loop, self.nodes, world_size, progress, self._training_failed)
        logger.info("train: %s %s", counted(world_size, "rank"), "starts" if world_size == 1 else "start")
        self.training = training
        place = head.answer(said.Reserved)
        self.nodes.tell(orders.Start(master=(place.address, place.port), left_s=self.time.deadline - time.monotonic()))
        self.scope.wait(lambda: training.finished)


def _image_id(node: NodeHandle) -> str:
    image = node.answer(said.Staged).image
    return "no image" if image is None else image.image_id


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.run.supervisor", description="One run inside its allocation.")
    parser.add_argument("--results", required=True, metavar="DIR", help="<storage>/results/<study>, where study.json lies")
    parser.add_argument(
        "--run", required=True, metavar="RUN_ID[.after-N]", help="any result of the run; with N: one that is later than its N-th"
    )
    parser.add_argument("--images", metavar="FILE", help="what the study's images were pinned to; without it the image's name stands")
    parser.add_argument("--log", metavar="FILE", help="standard error appends to this log of the run, which its holder begins anew")
    arguments = parser.parse_args(argv)
    private_umask()
    relay = Relay(arguments.log)
    configure("run")
    try:
        results = os.path.abspath(arguments.results)
        return Supervisor(results, arguments.run, relay, arguments.images).main()
    except Exception:
        logger.exception("a bug in Slipway; the run is ended")
        return 1
    finally:
        relay.close()
