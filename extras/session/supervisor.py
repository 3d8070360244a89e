"""Supervise a session inside its job: `python -m extras.session.supervisor --session DIR`.

It works as the supervisor of a run does, but has no lease, no record and no other attempt. It also tests whether the program answers,
publishes the state, ends an idle or unwanted session, and pushes only on request.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from base.errors import Cancelled, Preempted, PushError, SlipwayError
from base.humanize import format_duration
from base.lock import LockFile
from base.logs import configure, private_umask
from base.publish import move_directory, part_path, publish, remove_leftover, remove_tree
from cluster import processes
from cluster.holder import holder_of
from cluster.runtime import runtime_directory
from cluster.schedulers import get_scheduler, node_cache
from cluster.schedulers.jobs import SUBMISSION
from containers.engines import in_container
from containers.engines.container_start import SHOWN
from extras.session.plan import session_cell, site_of, sockets
from extras.session.probe import LIMIT_S, Seen, Use, bring_output, look
from extras.session.request import IMAGES, PUSHED, TOKEN, Kind, SessionRequest, State, read_request, write_state
from workflow.run.link import commands, reports
from workflow.run.link.event_loop import Call, Loop
from workflow.run.link.protocol import CANCELLED_PUSH_S
from workflow.run.plan import allocation_request
from workflow.run.record.outcome import Ending
from workflow.run.record.progress_line import waiting_words
from workflow.run.record.step_clock import Clock
from workflow.run.storage import description
from workflow.run.storage.results import PreparedRun
from workflow.run.supervisor import step_limits
from workflow.run.supervisor.deadline import TimeLimit
from workflow.run.supervisor.finish import Retries, has_answered, push_error, try_once
from workflow.run.supervisor.node_locks import NodeLocks
from workflow.run.supervisor.nodes import NodeHandle, Nodes
from workflow.run.supervisor.run_scope import RunEnded, RunScope, supervising
from workflow.run.supervisor.running_attempt import RunningAttempt

logger = logging.getLogger(__name__)

READY_LOOK_S: Final = 1.0
"""The pause between looks at a program that does not answer yet."""
LOOK_S: Final = 5.0
"""The pause between looks at one that answers: how long nobody has used it, and whether its end is requested."""
OUTPUT_S: Final = 2.0
"""The pause between looks at a command, whose output comes to storage by them, for whoever waits for it."""
START_S: Final = 600.0
"""The time for a program to answer for the first time: large images import for minutes."""
ANSWER_S: Final = 30.0
"""The time for a look in all, where a program or storage hangs."""
STATE_S: Final = 20.0
"""The time for storage to take the state."""
WARN_S: Final = (900.0, 300.0, 60.0)
"""The times before its end at which the users of a session are warned."""
NOTICE: Final = "notice"
"""The file in the directory of the sockets with a line for all users at the session's terminals."""
HELD: Final = ".lock"


class Prepared(Struct, frozen=True, kw_only=True):
    """A session that has an allocation, described as a run."""

    request: SessionRequest
    run: PreparedRun
    directory: str
    """The directory of the sockets on this node."""


def prepare(directory: str, pid: int, environ: Mapping[str, str]) -> Prepared:
    """Copy the token to this node and take its allocation. Runs in a child process. Raises SlipwayError, OSError."""
    place = Path(directory)
    request, site = read_request(place), site_of(read_request(place))
    here = runtime_directory() / "s" / request.session
    here.mkdir(parents=True, exist_ok=True, mode=0o700)
    publish(here / TOKEN, (place / TOKEN).read_bytes(), 0o600)
    cell = session_cell(request, str(here))
    scheduler = get_scheduler(site.scheduler)
    allocation = scheduler.allocate(allocation_request(cell, [cell], site), environ, pid)
    run = PreparedRun(
        study="sessions",
        run_id=request.session,
        cell=cell,
        dataset_build=description.build_name(cell),
        repeat=1,
        site=site,
        limits=request.limits,
        allocation=allocation,
        attempt=1,
        token="",
        tag=f"{request.session}-{pid}",
        result_number=1,
        run_dir=directory,
        resumable=(),
        done=None,
    )
    return Prepared(request=request, run=run, directory=str(here))


def sweep(sessions: Path, own: str) -> None:
    """Remove the directories on this node of sessions whose supervisors are gone."""
    for lock_path in sessions.glob(f"*{HELD}"):
        if lock_path.name == f"{own}{HELD}":
            continue
        with contextlib.suppress(OSError), LockFile(lock_path, trusted=True) as lock:
            if lock.try_take() and remove_leftover(sessions / lock_path.name.removesuffix(HELD)) is None:
                lock_path.unlink(missing_ok=True)


def make_part(directory: str) -> str:
    """Create and return the directory that the nodes push to. Runs in a child process."""
    part = part_path(Path(directory, PUSHED))
    part.mkdir()
    return str(part)


def finish_push(part: str, directory: str) -> str:
    """Give the complete result its final name, and return that. Runs in a child process."""
    target = Path(directory, PUSHED)
    move_directory(Path(part), target)
    return str(target)


class Session:
    """A session from its start to its exit code."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._scope = RunScope(Loop())
        self._clock = Clock(processes.age_s(os.getpid()))
        self._state = State(stage="staging", holder=None)
        self._publishing: Call | None = None
        self._unpublished = False
        self._looking: Call | None = None
        self._prepared: Prepared | None = None
        self._attempt: RunningAttempt | None = None
        self._lock: LockFile | None = None
        self._warned: set[float] = set()
        self._started: float | None = None
        """The start of the session's program, by the monotonic clock."""
        self._brought = 0
        """How many bytes of the command's output are on storage."""
        self._deadline_seen = False

    def main(self) -> int:
        try:
            with supervising(self._scope.loop, self._signalled):
                return self._run()
        finally:
            if self._lock is not None and self._prepared is not None:
                with contextlib.suppress(OSError):
                    remove_tree(Path(self._prepared.directory))
                self._lock.remove()

    def _run(self) -> int:
        ending, code = Ending(status="ok"), 0
        try:
            arguments = (self._directory, os.getpid(), dict(os.environ))
            prepared: Prepared = self._scope.call("prepare", prepare, *arguments, kind=Prepared)
            self._prepared = prepared
            self._hold(Path(prepared.directory))
            work = self._begin(prepared)
            assert self._attempt is not None
            ending = self._attempt.run_steps(work)
        except RunEnded as ended:
            ending = ended.ending
        except SlipwayError as error:
            ending = Ending(status="error", reason=str(error), error=type(error))
        self._scope.end(ending)
        if ending.status != "ok" and ending.reason:
            logger.info("%s: %s", ending.status, ending.reason)
        reason, code = describe_ending(ending)
        kind = None if self._prepared is None else self._prepared.request.kind
        self._tell(stage="ending", reason=reason, program_code=program_code(ending, kind))
        pushed, problem = self._finish(ending)
        code = code if problem is None else PushError.exit_code
        reason = reason if problem is None else f"{reason}; {problem}"
        self._tell(stage="ended", reason=reason, exit_code=code, pushed=pushed, waits_on_nodes=problem is not None, deadline=None)
        self._finish_state()
        return code

    def _hold(self, here: Path) -> None:
        self._lock = LockFile(here.with_name(f"{here.name}{HELD}"), trusted=True)
        self._lock.take(limit_s=1.0)
        self._scope.loop.private.append(self._lock.descriptor)
        sweep(here.parent, here.name)

    def _begin(self, prepared: Prepared) -> description.Work:
        run, scope = prepared.run, self._scope
        private_umask(run.site.shared == "group")
        allocation = run.allocation
        holder = holder_of(os.getpid(), allocation.scheduler, allocation.job_id, allocation.restart_count)
        self._tell(stage="staging", job_id=allocation.job_id, holder=holder, node=allocation.head.hostname, directory=prepared.directory)
        limit = TimeLimit(scope, run)
        locks = NodeLocks(scope, (), 0)
        self._clock.enter("stage")
        limit.begin()
        self._attempt = attempt = RunningAttempt(scope, self._clock, limit, allocation, locks, run)
        images = str(Path(self._directory, IMAGES)) if in_container(run.site.engine) else None
        work = attempt.start(images)
        scope.loop.after(READY_LOOK_S, self._look)
        return work

    def _look(self) -> None:
        """Look at the program, and for a request of the session's end, in a child; again after a pause."""
        prepared, attempt = self._prepared, self._attempt
        if prepared is None or attempt is None or self._scope.ending is not None:
            return
        kind, ends = prepared.request.kind, self._ends(attempt)
        if attempt.started and self._started is None:
            self._started = time.monotonic()
            self._tell(stage="ready" if kind == "run" else "starting", deadline=ends)
        elif self._state.deadline is None or abs(self._state.deadline - ends) > 5:
            self._tell(deadline=ends)
        self._warn(ends - time.time())
        program = (kind, sockets(prepared.request, prepared.directory), str(Path(prepared.directory, TOKEN))) if attempt.started else None
        arguments = (self._directory, program, self._cache(attempt), self._brought)
        self._looking = Call(self._scope.loop, "look", look, *arguments, timeout_s=ANSWER_S + LIMIT_S).then(self._seen)

    def _seen(self, call: Call) -> None:
        """Take what a look has found. The next one tries again after a failure."""
        try:
            stop, use, self._brought = call.result(Seen)
        except SlipwayError as error:
            logger.debug("look: %s", error)
        else:
            if stop:
                self._scope.end(Ending(status="cancelled", reason="it was stopped by `slipway session stop`", planned=True))
            elif use is not None:
                self._note_use(use)
        is_command = self._prepared is not None and self._prepared.request.kind == "run"
        self._scope.loop.after(OUTPUT_S if is_command else LOOK_S if self._state.stage == "ready" else READY_LOOK_S, self._look)

    def _note_use(self, use: Use) -> None:
        assert self._prepared is not None
        assert self._started is not None
        request = self._prepared.request
        if use.answers and self._state.stage != "ready":
            logger.info("the %s answers", request.kind)
            self._tell(stage="ready")
        if not use.answers and self._state.stage == "starting" and time.monotonic() - self._started > START_S:
            words = f"it did not answer within {format_duration(START_S)} of its start"
            self._scope.end(Ending(status="error", reason=f"{words}; the log of the session has what it said"))
        idle = use.idle_s
        if idle is None or self._state.stage != "ready":
            return
        self._tell(idle_s=round(idle))
        if request.idle_s is not None and idle > request.idle_s:
            self._scope.end(Ending(status="cancelled", reason=f"nobody used it for {format_duration(request.idle_s)}", planned=True))

    @staticmethod
    def _cache(attempt: RunningAttempt) -> str:
        """Return the cache of the first node, which is this one, as the site file names it: its variables may not be set here."""
        return str(node_cache(attempt.run.allocation.scheduler, attempt.run.site.cache.path, attempt.run.allocation.head))

    def _bring_rest_of_output(self, attempt: RunningAttempt) -> None:
        """Copy the rest of the command's output to storage. A failure is only logged, since the pushed files contain the output."""
        before, loop = self._looking, self._scope.loop
        loop.until(lambda: before is None or before.finished, ANSWER_S)
        try:
            Call(loop, "output", bring_output, self._cache(attempt), self._directory, self._brought, timeout_s=ANSWER_S).wait()
        except SlipwayError as error:
            logger.warning("the end of what the command printed is not shown: %s", error)

    @staticmethod
    def _ends(attempt: RunningAttempt) -> float:
        """Return the Unix time at which the session will be ended."""
        return time.time() + attempt.limit.deadline - attempt.limit.margin_s - time.monotonic()

    def _warn(self, left: float) -> None:
        """Warn when little time is left, and more was when the session began."""
        due = {warn for warn in WARN_S if left < warn} - self._warned
        if due and self._deadline_seen and self._prepared is not None:
            text = f"this session ends in {format_duration(max(0.0, left))}: save what you want to keep"
            logger.warning("%s", text)
            with contextlib.suppress(OSError):
                publish(Path(self._prepared.directory, NOTICE), text.encode() + b"\n", 0o600)
        self._warned |= due
        self._deadline_seen = True

    def _signalled(self, number: int) -> None:
        self._scope.cancels += 1
        told = f"it got {signal.Signals(number).name}"
        if self._attempt is not None and self._scope.cancels == 1:
            self._attempt.end_by_scheduler(told)
        else:
            self._scope.end(Ending(status="cancelled", reason=told))

    def _tell(self, **changes: Any) -> None:
        """Publish the changed state; a change during a publication is published after it."""
        self._state = replace(self._state, **changes, told=time.time())
        self._unpublished = True
        self._publish()

    def _publish(self) -> None:
        if not self._unpublished or (self._publishing is not None and not self._publishing.finished):
            return
        self._unpublished = False
        call = Call(self._scope.loop, "state", write_state, Path(self._directory), self._state, timeout_s=STATE_S)
        self._publishing = call.then(self._published)

    def _published(self, call: Call) -> None:
        try:
            call.result()
        except SlipwayError as error:
            logger.warning("how the session stands cannot be told: %s", error)
        self._publish()

    def _finish_state(self) -> None:
        loop = self._scope.loop
        loop.until(lambda: not self._unpublished and (self._publishing is None or self._publishing.finished), 2 * STATE_S)
        with contextlib.suppress(SlipwayError):
            Call(loop, "token", Path(self._directory, TOKEN).unlink, True, timeout_s=STATE_S).wait()

    def _finish(self, ending: Ending) -> tuple[str | None, str | None]:
        """Stop the program and push what was requested. Return the target, or why it failed."""
        attempt, prepared = self._attempt, self._prepared
        if attempt is None or prepared is None:
            return None, None
        stop_s = step_limits.CONTAINERS_STOP_S if in_container(prepared.run.site.engine) else step_limits.NODES_STOP_S
        attempt.nodes.ask(commands.Stop(), reports.Stopped, stop_s)
        pushed = problem = None
        if prepared.request.push and attempt.started:
            pushed, problem = self._push(attempt)
        if prepared.request.kind == "run" and attempt.started:
            self._bring_rest_of_output(attempt)
        attempt.nodes.ask(commands.Release(), reports.Released, step_limits.RELEASE_S)
        attempt.nodes.end(step_limits.NODES_LEAVE_S, None if problem is None else partial(self._pending, problem))
        if ending.rank_end is not None and ending.rank_end.last_lines:
            logger.error("last lines:\n%s", ending.rank_end.last_lines)
        return pushed, problem

    def _push(self, attempt: RunningAttempt) -> tuple[str | None, str | None]:
        """Return the target of the push and the reason of a failure; tries go on until the job's time is over."""
        attempt.nodes.ask(commands.Collect(), reports.Collected, step_limits.RELEASE_S)
        is_late = bool(self._scope.cancels) or attempt.limit.deadline < time.monotonic()
        again = Retries(self._scope, time.monotonic() + CANCELLED_PUSH_S if is_late else attempt.limit.deadline)
        pushed: list[str] = []
        try:
            again.repeat("push", lambda left_s: pushed.append(self._push_once(attempt.nodes, again, left_s)))
        except SlipwayError as error:
            names = waiting_words([node.node.name for node in attempt.nodes.present()])
            return None, f"what was written could not be pushed: {'; '.join(str(error).splitlines())}; {names}"
        return pushed[0], None

    def _push_once(self, nodes: Nodes, again: Retries, left_s: float) -> str:
        part = str(again.call("push", make_part, self._directory, left_s=left_s))
        try:
            nodes.forget(reports.Pushed, reports.Failed)
            nodes.send_all(commands.Push(part=part, limit_s=left_s))
            again.wait(lambda: all(has_answered(node) for node in nodes.present()), left_s)
            failed = next((push_error(node) for node in nodes.present() if not node.has_reported(reports.Pushed)), None)
            if failed is not None:
                raise failed
            return str(again.call("push", finish_push, part, self._directory, left_s=left_s))
        except SlipwayError:
            try_once(self._scope.loop, "removal of what was half pushed", remove_tree, Path(part))
            raise

    def _pending(self, problem: str, node: NodeHandle) -> commands.Pending:
        """Describe the files that a node keeps, for `slipway reap --push`."""
        name = PUSHED if node.index == 0 else f"{PUSHED}.node-{node.index}"
        return commands.Pending(target=str(Path(self._directory, name)), reason=problem, record=None, ended=None)


def describe_ending(ending: Ending) -> tuple[str, int]:
    """Describe the ending to the user of a session, and return that text and the exit code."""
    if ending.status == "ok":
        return "its program has ended", 0
    if ending.status == "timeout":
        return "its time is over", 0
    if ending.planned:
        return ending.reason or ending.status, 0
    return (ending.reason or ending.status).replace(SHOWN, ""), ending.exit_code or 17


def program_code(ending: Ending, kind: Kind | None) -> int | None:
    """Return the program's exit code as a shell would. A command that the session's end interrupts has failed: the next command of a
    script must not use incomplete output."""
    if ending.status == "timeout" or ending.planned:
        early = Preempted if ending.status == "timeout" else Cancelled
        return early.exit_code if kind == "run" else None
    code = None if ending.rank_end is None else ending.rank_end.exit_code
    return code and (code if code > 0 else 128 - code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the supervisor of one session, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m extras.session.supervisor", description="One session inside its allocation.")
    parser.add_argument("--session", required=True, metavar="DIR", help="<storage>/sessions/<id>")
    arguments = parser.parse_args(argv)
    private_umask()
    configure("session")
    os.environ.pop(SUBMISSION, None)  # the nodes are ours alone: no other runs share them
    try:
        return Session(os.path.abspath(arguments.session)).main()
    except Exception:
        logger.exception("a bug in Slipway; the session is ended")
        return 1


if __name__ == "__main__":
    sys.exit(main())
