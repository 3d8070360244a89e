"""Carry out the commands of the supervisor on this node; those before the ranks start go to preparation.py."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from base import errors, handshake, logs
from cluster.holder import holder_of
from containers.engines import get_engine, in_container
from containers.spec import STOP, Owner
from workflow.run.link import commands, protocol, reports
from workflow.run.link.event_loop import Call, Loop
from workflow.run.node import limits, preparation, workdir
from workflow.run.node.child import SUPERVISOR, Child, Watcher, pid_here, watching_argv
from workflow.run.node.ranks import Ranks, Shutdown
from workflow.run.plan import TAG, Workload, container_spec, node_ranks
from workflow.run.record.model import File
from workflow.run.record.outcome import RankEnd, RankState
from workflow.run.storage.attempt import names_on_storage, push_node_files

if TYPE_CHECKING:
    from data_prep.push import Naming


logger = logging.getLogger(__name__)

PROBES: Final = (sys.executable, "-P", "-m", "cluster.preflight")


ProbeReport = reports.PreflightReport | reports.Failed


class NodeWork:
    """The state of one node. Methods named `do_...` execute a command, and raise SlipwayError or OSError when it cannot be done."""

    def __init__(
        self,
        loop: Loop,
        index: int,
        token: bytes,
        report: preparation.Reporter,
        log_text: Callable[[], str],
        cancelled_push_s: float = protocol.CANCELLED_PUSH_S,
    ) -> None:
        self.loop, self.index, self.token, self.report, self.log_text = loop, index, token, report, log_text
        self._cancelled_push_s = cancelled_push_s
        self.preflight: Child[ProbeReport] | None = None
        self.preparation: preparation.Preparation | None = None
        """It exists from the plan on, and has the work directory."""
        self.ranks: Ranks | None = None
        self.pushing: Call | None = None
        self.shutdown: Shutdown | None = None
        self.watcher: Watcher | None = None
        self._reported_overdue = self._reported_failed = self._reported_gpus = False

    def fail(self, during: str, error: str, message: str) -> None:
        logger.error("%s: %s", during, message)
        self.report(reports.Failed(during=during, error=error, message=message))

    # -- before the ranks

    def do_preflight(self, order: commands.PreflightCommand) -> None:
        """Let a child execute a command of the preflight, whose answers are reports of this node."""
        if self.preflight is None:
            self.preflight = Child(self.loop, PROBES, ProbeReport, self.report, self._probes_ended)
        secret = {"token": handshake.derived(self.token, "preflight").hex()} if isinstance(order, commands.Listen) else {}
        self.preflight.send(**msgspec.to_builtins(order), **secret)

    def _probes_ended(self, well: bool, how: str) -> None:
        if not well and self.preflight is not None:
            self.fail("preflight", "NodeLost", f"the probes of this node {how}; the run's log has their last words")

    def _end_preflight(self) -> None:
        if self.preflight is not None:
            self.preflight.hang_up()
            self.preflight = None

    def do_plan(self, order: commands.Plan) -> None:
        """Take the plan of this attempt; from here on we run on our own cores only."""
        self._end_preflight()
        plan, nodes = workdir.with_own_cache(order, os.environ), order.allocation.nodes
        if self.index >= len(nodes):
            raise errors.AllocationError(f"the plan is for {len(nodes)} nodes, and this is node {self.index} of them")
        logs.private_umask(plan.group)
        self.preparation = preparation.Preparation(self.loop, self.index, plan, self.token, self.report, self.fail)
        if self.preparation.node.cores:
            os.sched_setaffinity(0, self.preparation.node.cores)
        if plan.ranks is not None:
            self._watch(plan.tag, self.preparation.node.gpus)
            self.preparation.look()

    def _watch(self, tag: str, gpus: Sequence[str]) -> None:
        cores, mark = os.sched_getaffinity(0), f"{TAG}={tag}"
        supervisor = pid_here(os.environ.get(SUPERVISOR, ""))
        ours = [os.getpid(), *([] if supervisor is None else [supervisor])]
        watchers = [watching_argv(sys.executable, cores, mark, ours)]
        if gpus:
            watchers.append(watching_argv(sys.executable, cores, mark, ours, gpus))
        self.watcher = Watcher(watchers)

    # -- the ranks

    def do_start(self, order: commands.Start) -> None:
        needs = self.preparation
        started = None if needs is None else needs.plan.ranks
        if needs is None or started is None or (needs.staged is None and needs.plan.source is not None):
            raise errors.ContainerError("the order to start the ranks has come before the dataset is here")
        framework, cell, engine = started.framework, started.cell, get_engine(started.engine)
        program = str(needs.directory.program) if in_container(started.engine) or framework.own else framework.folder
        data = None if needs.staged is None else os.path.join(needs.staged.root, cell.data_folder)
        paths = needs.directory.paths(data, program)
        allocation, deadline = needs.allocation, time.time() + order.left_s
        holder = holder_of(os.getpid(), allocation.scheduler, allocation.job_id, allocation.restart_count)
        uid = os.geteuid()
        asked = Workload(
            owner=Owner(run_id=cell.run_id, attempt=cell.attempt, tag=needs.plan.tag, deadline=deadline, uid=uid, holder=holder),
            framework=framework,
            cell=cell,
            image_id=None if needs.image is None else needs.image.start,
            ends_at=time.monotonic() + order.left_s,
            resumed=needs.resumed,
            secret=handshake.derived(self.token, "mpi").hex(),
        )
        spec = container_spec(asked, allocation, self.index, paths, order.ports)
        spec = preparation.for_this_node(engine.NAME, spec, allocation.memory_per_node_bytes, needs.cdi)
        self.ranks = Ranks(self.loop, engine, engine.plan(spec, os.environ), self._rank_ended, self._container_failed)
        self.ranks.start(needs.directory.out, needs.directory.logs, needs.node.name)
        logger.debug("started %s", ", ".join(process.name for process in self.ranks.plan.processes))
        self.loop.every(min(limits.RANK_LOOK_EVERY_S, started.beat_s / 4), self._tick)
        self._look()

    def _rank_ended(self, end: RankEnd) -> None:
        ranks = f"rank{'s' * (len(end.ranks) > 1)} {', '.join(map(str, end.ranks))}"
        logger.debug("%s ended with %s", ranks if end.sidecar is None else f"sidecar {end.sidecar}", end.exit_code)
        self._report_gpus()
        self.report(reports.Exited(end=end, now=time.time()))
        if self.watcher is not None and self.ranks is not None and not self.ranks.rank_runs():
            self.watcher.finish()
        if self.shutdown is not None:
            self.shutdown.rank_ended()

    def _container_failed(self, error: errors.SlipwayError) -> None:
        """Report once that the container failed: all processes of the node are in it."""
        self._report_gpus()
        if not self._reported_failed:
            self._reported_failed = True
            self.fail("start", type(error).__name__, str(error))
        if self.shutdown is not None:
            self.shutdown.rank_ended()

    def _report_gpus(self) -> None:
        seen = self.ranks.gpus_seen() if self.ranks is not None and not self._reported_gpus else None
        if seen is not None:
            self._reported_gpus = True
            self.report(reports.GpusSeen(seen=seen))

    def _tick(self) -> None:
        ranks, needs = self.ranks, self.preparation
        if ranks is None or needs is None:
            return
        now = time.monotonic()
        self._beat(needs.directory)
        ranks.poll(now)  # the last one that ends may finish the shutdown, after which there are no ranks here
        self._report_gpus()
        if ranks.least_step() is not None:
            needs.release_ports()
        asked = needs.plan.ranks
        if self._reported_overdue or self.shutdown is not None or asked is None:
            return
        if ranks.is_overdue(now, asked.beat_s, asked.init_s):
            self._reported_overdue = True
            self.report(reports.Overdue(ranks=self._rank_states()))

    def _look(self) -> None:
        """Read the events alone, often while that tells how long the measured window is."""
        soon_s = self.ranks.look(time.monotonic()) if self.ranks is not None else None
        if soon_s is not None:
            self.loop.after(soon_s, self._look)

    def _beat(self, directory: workdir.WorkDirectory) -> None:
        """Update the heartbeat. Failure is reported once: a container's watchdog then ends it, and what ranks write is lost."""
        try:
            directory.renew_heartbeat()
        except OSError as error:
            if not self._reported_failed:
                self._reported_failed = True
                self.fail("work directory", "StagingError", workdir.cache_failed(error, directory.path))

    def _rank_states(self) -> tuple[RankState, ...]:
        asked = None if self.preparation is None else self.preparation.plan.ranks
        if self.ranks is None or asked is None:
            return ()
        return tuple(self.ranks.states(time.monotonic(), asked.beat_s, asked.init_s))

    def do_checkpoint(self) -> None:
        """Ask rank 0 for a checkpoint, unless it has not done a step."""
        step = self.least_step()
        if step is not None and self.preparation is not None:
            (self.preparation.directory.resume / STOP).touch()
        self.report(reports.Saving(step=step))

    def do_report_ranks(self) -> None:
        self.report(reports.RankReport(ranks=self._rank_states()))

    def least_step(self) -> int | None:
        return self.ranks.least_step() if self.ranks else None

    def tokens(self) -> int | None:
        return self.ranks.tokens() if self.ranks else None

    # -- the end

    def end_requested(self) -> None:
        """End all at once after a signal, but for a push: nothing else runs any more, and what it saves is the run's result."""
        if self.pushing is None:
            self.stop(lambda _clean: None)
        else:
            self.loop.after(self._cancelled_push_s, partial(self._give_push_up, self.pushing))

    def _give_push_up(self, pushing: Call) -> None:
        if self.pushing is pushing:
            pushing.abandon()
            self.pushing = None
            limit = f"{self._cancelled_push_s:g} s"
            self.fail("push", "PushError", f"this node was told to end, and its push was not done within another {limit}")

    def do_stop(self) -> None:
        self.stop(lambda clean: self.report(reports.Stopped(clean=clean)))

    def stop(self, then: Callable[[bool], None]) -> None:
        """Stop the ranks, and all that this program started; `then(clean)` within 10 s, later only where an engine's daemon is slow."""
        if self.watcher is not None:
            self.watcher.close()
        if self.preflight is not None:
            self.preflight.kill()
            self.preflight = None
        if self.preparation is not None:
            self.preparation.stop()
        if self.pushing is not None:
            self.pushing.abandon()
            self.pushing = None
        if self.shutdown is not None and not self.shutdown.finished:
            self.shutdown.also(then)
            return
        ranks, self.shutdown = self.ranks, None
        self.shutdown = Shutdown(self.loop, ranks, lambda clean: self._stopped(then, clean))

    def when_stopped(self, then: Callable[[], None]) -> None:
        """Call `then` when nothing is being ended any more: the engine may still be removing a container."""
        if self.shutdown is not None and not self.shutdown.finished:
            self.shutdown.also(lambda _clean: then())
        else:
            then()

    def _stopped(self, then: Callable[[bool], None], clean: bool) -> None:
        self.ranks = None
        then(clean)

    def do_collect(self) -> None:
        if self.preparation is not None and self.preparation.directory.exists():
            self.preparation.directory.collect(self.index, self.log_text(), b"" if self.watcher is None else self.watcher.lines())
        self.report(reports.Collected())

    def do_push(self, order: commands.Push) -> None:
        needs = self.preparation
        if needs is None or needs.plan.ranks is None or not needs.directory.exists():
            self.report(reports.Pushed(files=()))
            return
        places, names = (str(needs.directory.out), str(needs.directory.own), order.part), self._naming(needs.plan.ranks)
        self.pushing = Call(self.loop, "push", push_node_files, places, names, len(needs.allocation.nodes), timeout_s=order.limit_s)
        self.pushing.then(self._pushed)

    def _naming(self, ranks: commands.RanksPlan) -> Naming:
        return names_on_storage(node_ranks(ranks.cell, self.index), self.index)

    def _pushed(self, call: Call) -> None:
        self.pushing = None
        try:
            self.report(reports.Pushed(files=call.result(tuple[File, ...])))
        except errors.SlipwayError as error:
            self.fail("push", type(error).__name__, str(error))

    def do_release(self) -> None:
        self.release()
        self.report(reports.Released())

    def release(self) -> None:
        if self.preparation is not None:
            self.preparation.release()

    def end(self, pending: commands.Pending | None) -> None:
        """Remove the work directory, or keep it with the note `pending` where its result could not be pushed."""
        needs = self.preparation
        if needs is None or not needs.directory.exists():
            return
        if pending is not None and needs.plan.ranks is not None:
            needs.directory.keep(pending, self._naming(needs.plan.ranks))
        else:
            needs.directory.remove()
