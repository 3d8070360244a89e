"""Run the supervisor of one run: `python -m workflow.run.supervisor --results DIR --run RUN_ID`, started with `exec` by the rule.

One job, one allocation, one supervisor, one lease, one clock. It takes the run's lease, starts a node program on every node, has them
stage, train, push and release, and publishes the record last. Exit code 0 for every result, that of the error's class for an attempt that
was prevented. It never touches network storage itself: children with time limits do.
"""

import argparse
import contextlib
import fcntl
import io
import logging
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from base import errors, logs, untrusted
from cluster import processes
from cluster.detection import scheduler_of
from cluster.schedulers import LOCAL, get_scheduler, holder_alive, run_locks
from workflow.run.link.event_loop import Loop
from workflow.run.record import outcome, step_clock
from workflow.run.storage import lease as leases
from workflow.run.storage.prepare import prepare
from workflow.run.storage.results import PreparedRun, Result, parse_requested
from workflow.run.supervisor import deadline, run_scope, running_attempt, step_limits
from workflow.run.supervisor.finish import finish, give_up
from workflow.run.supervisor.node_locks import NodeLocks, take_nodes

# The relay of standard error, which may be a file on network storage that hangs. So another process writes it. Where that file is the log
# of a run, it is opened by its name for each write: another Snakemake that is started for the same run removes it.


PIPE_BYTES = 1 << 20


class _DroppingWriter(io.TextIOBase):
    """A stream that drops what the pipe does not take, rather than wait."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        try:
            os.write(self._descriptor, text.encode(errors="replace"))
        except (BlockingIOError, BrokenPipeError):
            return 0
        return len(text)


class Relay:
    """A pipe as descriptor 2 that never blocks; a child process copies it to the log, or to the former descriptor 2 (`log` is None)."""

    def __init__(self, log: str | None = None) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(writer)
            try:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                while data := os.read(reader, 1 << 16):
                    _write(log, data)
            finally:
                os._exit(0)
        os.close(reader)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(writer, False)
        os.dup2(writer, 2, inheritable=True)
        os.close(writer)
        sys.stderr = _DroppingWriter(2)

    def close(self) -> None:
        descriptor = os.pidfd_open(self.pid)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 2)
        if not select.select([descriptor], [], [], step_limits.LOG_REST_S)[0]:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, os.WNOHANG)


def _write(place: str | None, data: bytes) -> None:
    """Write to the file `place`, or to descriptor 2 where that is None, cannot be opened, or is something else than a file."""
    target = 2
    if place is not None:
        with contextlib.suppress(OSError), untrusted.directory(Path(place).parent) as parent:
            target = untrusted.open_regular(parent, Path(place).name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    with contextlib.suppress(OSError):  # a log on full storage ends no run
        while data:
            data = data[os.write(target, data) :]
    if target != 2:
        os.close(target)


logger = logging.getLogger(__name__)
ANNOUNCES: Final = (signal.SIGUSR2,)
"""The signal by which Grid Engine announces the end of a job, to each process twice within a millisecond: no second wish to end."""


class Supervisor:
    """The program of one run, from its start to its exit code."""

    def __init__(self, results: str, asked: str, relay: Relay, images: str | None, limits: step_limits.AttemptLimits) -> None:
        self._results = results
        self._images = images
        """The file of the rule `image`, where runs are containers."""
        self._run_id, self._after = parse_requested(asked)
        """The run, and the number of the result that the one asked for must be later than."""
        self._relay = relay
        """The process that writes our log, which outlives everything else we started."""
        self._clock = step_clock.Clock(processes.age_s(os.getpid()))
        self._clock.note("login", step_clock.login_s(os.environ))
        self._scope = run_scope.RunScope(Loop(), limits)
        self._held = contextlib.ExitStack()
        """What is given back when everything that we started has ended."""
        self._signals = 0
        self._begun: running_attempt.RunningAttempt | None = None
        """The attempt, once it is recorded."""

    def main(self) -> int:
        with self._held, run_scope.supervising(self._scope.loop, self._signalled, self._orphaned, ANNOUNCES, spare=[self._relay.pid]):
            return self._run()

    def _run(self) -> int:
        loop = self._scope.loop
        run: PreparedRun | None = None
        attempt: running_attempt.RunningAttempt | None = None
        try:
            run = self._prepared()
            logs.private_umask(run.site.shared == "group")
            if run.done is not None:
                return self._already_done(run.done)
            attempt = self._take_nodes(run)
            work = attempt.start(self._images)
        except run_scope.RunEnded as ended:
            return give_up(loop, ended.ending, attempt, run)
        except errors.SlipwayError as error:
            return give_up(loop, self._refused(error), attempt, run)
        self._begun = attempt
        ending = attempt.run_steps(work)
        if attempt.run.done is not None:
            give_up(loop, ending, attempt, run)
            return self._already_done(attempt.run.done)
        return finish(attempt, work, ending)

    def _prepared(self) -> PreparedRun:
        """Return the run once we hold it. Outside of a job no nodes lie idle, so wait until a living holder has ended; then its result is
        the requested one, or there is none and we train."""
        while True:
            try:
                arguments = (self._results, self._run_id, self._after, os.getpid(), dict(os.environ))
                run: PreparedRun = self._scope.call("prepare", prepare, *arguments, kind=PreparedRun, renewed=True)
                return run
            except errors.RunHeld as held:
                if scheduler_of(os.environ) is not None:
                    raise
                logger.warning("%s; waiting until it ends, then its result is used", held)
            run_dir = Path(self._results, "runs", self._run_id)
            while self._scope.call("the lease", leases.is_held, run_dir, holder_alive):
                self._scope.wait(lambda: False, step_limits.LEASE_AGAIN_S)

    def _already_done(self, done: Result) -> int:
        logger.info(
            "%s has the result that was asked for: attempt %d, status %s; nothing is trained", self._run_id, done.attempt, done.status
        )
        return 0

    def _take_nodes(self, run: PreparedRun) -> running_attempt.RunningAttempt:
        """Wait until no other run measures on a machine that runs would share, or until enough nodes of a shared job are free, before
        anything is started that would disturb them. The walltime begins then."""
        limit = deadline.TimeLimit(self._scope, run)
        self._clock.enter("assign")
        locks = NodeLocks(self._scope, *run_locks(run.allocation, run.cell.nodes))
        self._held.callback(locks.give, inherited=not run.allocation.own_job)
        allocation = take_nodes(run, locks)
        logger.info("%s: attempt %d on %s", run.run_id, run.attempt, ", ".join(node.name for node in allocation.nodes))
        self._clock.enter("stage")
        limit.begin()
        return running_attempt.RunningAttempt(self._scope, self._clock, limit, allocation, locks, run)

    def _refused(self, error: errors.SlipwayError) -> outcome.Ending:
        logger.error("%s", error)
        ending = outcome.Ending(status="cancelled", reason=str(error), error=type(error))
        self._scope.end(ending)
        return ending

    def _signalled(self, number: int) -> None:
        self._signals += 1
        again = self._signals > 1 and number not in ANNOUNCES
        self._end_requested(f"the supervisor got {signal.Signals(number).name}", at_once=again, number=number)

    def _orphaned(self) -> None:
        """Handle the end of our parent. A scheduler that ends a job signals us just before or after: that is no second wish to end."""
        self._end_requested("the process that started the supervisor has ended", at_once=False)

    def _end_requested(self, told: str, *, at_once: bool, number: int | None = None) -> None:
        self._scope.cancels += 1
        if self._begun is not None and not at_once:
            self._begun.end_by_scheduler(told, number=number)
        else:
            self._scope.end(outcome.Ending(status="cancelled", reason=told))


def main(argv: Sequence[str] | None = None, limits: step_limits.AttemptLimits = step_limits.DEFAULT_LIMITS) -> int:
    """Run the supervisor, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.run.supervisor", description="One run inside its allocation.")
    parser.add_argument("--results", required=True, metavar="DIR", help="<storage>/results/<study>, where study.json lies")
    parser.add_argument(
        "--run", required=True, metavar="RUN_ID[.after-N]", help="any result of the run; with N: one that is later than its N-th"
    )
    parser.add_argument("--images", metavar="FILE", help="what the study's images were pinned to; without it the image's name stands")
    parser.add_argument("--log", metavar="FILE", help="the log of the run, to which standard error appends")
    arguments = parser.parse_args(argv)
    logs.private_umask()
    relay = Relay(arguments.log)
    logs.configure("run")
    get_scheduler(scheduler_of(os.environ) or LOCAL)  # imported now, and once for all children: storage that has our code may hang later
    try:
        results = os.path.abspath(arguments.results)
        return Supervisor(results, arguments.run, relay, arguments.images, limits).main()
    except Exception:
        logger.exception("a bug in Slipway; the run is ended")
        return 1
    finally:
        relay.close()
