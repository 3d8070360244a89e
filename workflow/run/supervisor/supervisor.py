"""The supervisor of one run: `python -m workflow.run.supervisor --results DIR --run RUN_ID`, started with `exec` by the rule.

One job, one allocation, one supervisor, one lease, one clock. It takes the run's lease, starts a node program on every node, has them
stage, train, push and release, and publishes the record last. Exit code 0 for every result, that of the error's class for an attempt that
was prevented. It never touches network storage itself: children with time limits do.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from base.errors import LeaseError, RunHeld, SlipwayError
from base.logs import configure, private_umask
from cluster import processes
from cluster.detection import scheduler_of
from cluster.schedulers import get_scheduler, holder_alive
from workflow.run.link.calls import Call
from workflow.run.link.event_loop import Loop
from workflow.run.record.login import login_s
from workflow.run.record.outcome import Ending
from workflow.run.record.step_clock import Clock
from workflow.run.storage import lease as leases
from workflow.run.storage.asked_result import parse_asked
from workflow.run.storage.prepare import prepare
from workflow.run.storage.prepared import Done, PreparedRun, from_plain
from workflow.run.supervisor.caller import watch_parent
from workflow.run.supervisor.finish import finish, give_up, late_lease
from workflow.run.supervisor.job import Job, take_nodes
from workflow.run.supervisor.limits import LEASE_AGAIN_S, STORAGE_CALL_S, USUAL, AttemptLimits
from workflow.run.supervisor.node_locks import NodeLocks
from workflow.run.supervisor.run_scope import RunEnded, RunScope
from workflow.run.supervisor.running_attempt import RunningAttempt
from workflow.run.supervisor.stderr_relay import ANEW, BEHIND, BESIDE, Relay
from workflow.run.supervisor.time_limit import TimeLimit

logger = logging.getLogger(__name__)
ANNOUNCES: Final = (signal.SIGUSR2,)
"""By which Grid Engine announces the end of a job, to each process twice within a millisecond: no second wish to end."""


class Supervisor:
    """The program of one run, from its start to its exit code."""

    def __init__(self, results: str, asked: str, relay: Relay, images: str | None, limits: AttemptLimits) -> None:
        self._results = results
        self._images = images
        """The file of the rule `image`, where runs are containers."""
        self._run_id, self._after = parse_asked(asked)
        """The run, and the number of the result that the one asked for must be later than."""
        self._relay = relay
        """The process that writes our log, which outlives everything else we started."""
        self._clock = Clock(processes.age_s(os.getpid()))
        self._clock.note("login", login_s(os.environ))
        self._scope = RunScope(Loop(), limits)
        self._held = contextlib.ExitStack()
        """What is given back when everything that we started has ended."""
        self._preparing: Call | None = None
        self._signals = 0
        self._begun: RunningAttempt | None = None
        """From then on an attempt is recorded."""

    def main(self) -> int:
        """The whole run; the exit code."""
        self._scope.loop.on_signals(self._signalled, ANNOUNCES)
        watch_parent(self._scope.loop, self._orphaned)
        processes.become_subreaper()
        try:
            return self._run()
        finally:
            if not processes.kill_descendants(2.0, spare=[self._relay.pid]):
                logger.error("processes of this run are left in uninterruptible sleep")
            self._held.close()

    def _run(self) -> int:
        loop = self._scope.loop
        run: PreparedRun | None = None
        attempt: RunningAttempt | None = None
        try:
            run = self._prepared()
            private_umask(run.site.shared == "group")
            if run.done is not None:
                return self._already_done(run.done)
            self._relay.go(ANEW)
            attempt = self._take_nodes(run)
            work = attempt.start(self._images)
        except RunEnded as ended:
            return give_up(loop, ended.ending, attempt, run or self._late())
        except SlipwayError as error:
            return give_up(loop, self._refused(error), attempt, run)
        self._begun = attempt
        ending = attempt.run_steps(work)
        if attempt.run.done is not None:
            give_up(loop, ending, attempt, run)
            return self._already_done(attempt.run.done)
        return finish(attempt, work, ending)

    def _prepared(self) -> PreparedRun:
        """The run, once we hold it. Outside of a job nothing lies idle while another one, alive, has it: its end is waited for, and then
        its result is what was asked for, or there is none and we train."""
        while True:
            try:
                return self._try_to_prepare()
            except RunHeld as held:
                if scheduler_of(os.environ) is not None:
                    raise
                self._relay.go(BESIDE)
                logger.warning("%s; its end is waited for", held)
            run_dir = Path(self._results, "runs", self._run_id)
            while self._scope.call("the lease", leases.is_held, run_dir, holder_alive):
                self._scope.wait(lambda: False, LEASE_AGAIN_S)

    def _try_to_prepare(self) -> PreparedRun:
        arguments = (self._results, self._run_id, self._after, os.getpid(), dict(os.environ))
        call = Call(self._scope.loop, "prepare", prepare, *arguments, timeout_s=STORAGE_CALL_S, renewed=True)
        self._preparing = call
        self._scope.wait(lambda: call.finished)
        return from_plain(call.result(), PreparedRun)

    def _late(self) -> PreparedRun | None:
        return None if self._preparing is None else late_lease(self._scope.loop, self._preparing)

    def _already_done(self, done: Done) -> int:
        self._relay.go(BEHIND)
        logger.info(
            "%s has the result that was asked for: attempt %d, status %s; nothing is trained", self._run_id, done.attempt, done.status
        )
        return 0

    def _take_nodes(self, run: PreparedRun) -> RunningAttempt:
        """On a machine that runs would share, wait until no other run measures; in a job that runs share, until enough nodes are free;
        before anything is started that would disturb them. The walltime begins then."""
        limit = TimeLimit(self._scope, run)
        scheduler = get_scheduler(run.allocation.scheduler)
        self._clock.enter("assign")
        locks = NodeLocks(self._scope, *scheduler.run_locks(run.allocation, run.cell.nodes))
        self._held.callback(locks.give, inherited=not run.allocation.own_job)
        allocation = take_nodes(run, locks)
        logger.info("%s: attempt %d on %s", run.run_id, run.attempt, ", ".join(node.name for node in allocation.nodes))
        self._clock.enter("stage")
        limit.begin()
        job = Job(self._scope, self._clock, limit, scheduler, allocation)
        return RunningAttempt(self._scope, self._clock, limit, job, locks, run)

    def _refused(self, error: SlipwayError) -> Ending:
        """What was asked cannot be done, and nothing has begun."""
        if isinstance(error, LeaseError):
            self._relay.go(BESIDE)
        else:
            self._relay.go(BEHIND)
        logger.error("%s", error)
        ending = Ending(status="cancelled", reason=str(error), error=type(error))
        self._scope.end(ending)
        return ending

    def _signalled(self, number: int) -> None:
        self._signals += 1
        again = self._signals > 1 and number not in ANNOUNCES
        self._told_to_end(f"the supervisor got {signal.Signals(number).name}", at_once=again, number=number)

    def _orphaned(self) -> None:
        """Where a scheduler ends a job, the signal to us comes just before or just after: no second wish to end."""
        self._told_to_end("the process that started the supervisor has ended", at_once=False)

    def _told_to_end(self, told: str, *, at_once: bool, number: int | None = None) -> None:
        self._scope.cancels += 1
        if self._begun is not None and not at_once:
            self._begun.job.ended(told, number=number)
        else:
            self._scope.end(Ending(status="cancelled", reason=told))


def main(argv: Sequence[str] | None = None, limits: AttemptLimits = USUAL) -> int:
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
        return Supervisor(results, arguments.run, relay, arguments.images, limits).main()
    except Exception:
        logger.exception("a bug in Slipway; the run is ended")
        return 1
    finally:
        relay.close()
