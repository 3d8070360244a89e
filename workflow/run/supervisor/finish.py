"""End a run, whatever ended it: stop, collect, push, release, publish the record; or give the run back if nothing had begun.

Order: ranks stopped, results pushed, the dataset's lease dropped, the record last. A result that storage does not take stays on its
nodes, and the attempt counts as prevented.
"""

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from base import humanize, jsonfile, system
from base.errors import Cancelled, Defect, LeaseError, PushError, SlipwayError, StorageFull, error_named
from containers.engines import in_container
from workflow.run.link import commands, protocol, reports
from workflow.run.link.event_loop import Call, Loop
from workflow.run.record import progress_line, step_clock
from workflow.run.record.model import File, NewRecord, OwnKeys
from workflow.run.record.outcome import RESULT, Ending
from workflow.run.record.run_record import EndedNote, Measurements, build_record, ending_note, measured_words
from workflow.run.storage import attempt as attempts
from workflow.run.storage import description, results
from workflow.run.supervisor import facts, run_scope, running_attempt, step_limits
from workflow.run.supervisor.nodes import NodeHandle
from workflow.study.cell import unit_of

logger = logging.getLogger(__name__)

# Repeated last steps, where storage fails: until the deadline, but not where it is full, since time alone frees no space. A signal to end
# the run ends this at once.


def is_full(error: SlipwayError) -> bool:
    """Return True if storage or its quota is full."""
    return isinstance(error, StorageFull) or any(words in str(error) for words in system.FULL_WORDS)


class Retries:
    """The retries of one run, from its push on, until the monotonic time `until`."""

    def __init__(self, scope: run_scope.RunScope, until: float) -> None:
        self._scope, self._until = scope, until
        self._cancels = scope.cancels

    @property
    def cancelled(self) -> bool:
        """Return True if somebody has told us to end since we began."""
        return self._scope.cancels > self._cancels

    def repeat(self, what: str, step: Callable[[float], None]) -> None:
        """Call `step(seconds left)` until it succeeds, or raise its last error when time is over; a lost lease, a defect or full storage at
        once."""
        pause = step_limits.STORAGE_FIRST_PAUSE_S
        while True:
            try:
                step(max(1.0, self._until - time.monotonic()))
                return
            except (LeaseError, Defect):
                raise
            except SlipwayError as error:
                left = self._until - time.monotonic()
                if is_full(error) or left < pause or self.cancelled:
                    raise
                logger.warning("%s failed: %s; again in %.0f s, for %s more", what, error, pause, humanize.format_duration(left))
                self._scope.loop.until(lambda: self.cancelled, pause)
                if self.cancelled:
                    raise
            pause = min(2 * pause, step_limits.STORAGE_LONGEST_PAUSE_S)

    def call(self, what: str, function: Any, *arguments: Any, left_s: float, kind: Any = Any) -> Any:
        """Call `function` in a child, and return its result as a `kind`. Raises what it raises, StorageError when it takes too long,
        PushError when told to end before."""
        call = Call(self._scope.loop, what, function, *arguments, timeout_s=left_s)
        self.wait(lambda: call.finished)
        if not call.finished:
            call.abandon()
            raise PushError(f"{what}: storage had not answered when this run was told to end")
        return call.result(kind)

    def wait(self, done: Callable[[], bool], limit_s: float | None = None) -> None:
        """Wait until `done()`, at most `limit_s`. If we are told to end meanwhile, wait at most CANCELLED_PUSH_S from then on."""
        self._scope.loop.until(lambda: done() or self.cancelled, limit_s)
        if not done() and self.cancelled:
            self._scope.loop.until(done, protocol.CANCELLED_PUSH_S)


NEED_ALL_FILES: Final = frozenset({"ok", "timeout"})
"""Results that are made of every node's files: measurements, a checkpoint."""


def give_up(loop: Loop, ending: Ending, attempt: running_attempt.RunningAttempt | None, run: results.PreparedRun | None) -> int:
    """End the node programs, if they were started, and give the run back, if it was taken, when nothing had begun. Return the exit code."""
    if ending.reason:
        logger.info("%s: %s", ending.status, ending.reason)
    if attempt is not None:
        attempt.nodes.end(step_limits.NODES_LEAVE_S)
    if run is not None:
        try_once(loop, "release of the run", attempts.give_up, run)
    return ending.exit_code or Cancelled.exit_code  # a result that has no record is none


def finish(attempt: running_attempt.RunningAttempt, work: description.Work, ending: Ending) -> int:
    """Push the attempt and publish its record. Return the exit code."""
    return _Finish(attempt, work, ending).main()


def try_once(loop: Loop, what: str, function: Any, *arguments: Any) -> None:
    """Call `function` in a child for a short time; a failure is only logged."""
    try:
        Call(loop, what, function, *arguments, timeout_s=step_limits.STORAGE_CLEAN_UP_S).wait()
    except SlipwayError as error:
        logger.warning("%s", error)


class _Finish:
    def __init__(self, attempt: running_attempt.RunningAttempt, work: description.Work, ending: Ending) -> None:
        self.attempt, self.work, self.ending = attempt, work, ending
        self.run, self.nodes, self.clock, self.limit = attempt.run, attempt.nodes, attempt.clock, attempt.limit
        self.loop = attempt.scope.loop
        self.part_directory: str | None = None
        self.files: dict[int, tuple[File, ...]] = {}
        self.found = Measurements()

    def main(self) -> int:
        if not self.limit.unheard:
            self._announce()
        self.clock.enter("result")
        self.nodes.ask(commands.Stop(), reports.Stopped, self._stop_limit_s())
        if self.limit.unheard:
            self._look_for_checkpoint()
            self._announce()
        self._look_at_leftovers()
        self.nodes.ask(commands.Collect(), reports.Collected, step_limits.COLLECT_S)
        self._push_and_publish()
        if self.ending.requeue:
            self._requeue()
        if self.ending.status == "ok":
            logger.info(
                "%s: ok in %s%s",
                self.run.run_id,
                humanize.format_duration(step_clock.run_s(self.clock.steps_s())),
                measured_words(self.found, unit_of(self.run.cell.to_json())),
            )
        return self.ending.exit_code

    def _announce(self) -> None:
        if self.ending.status != "ok":
            end = self.ending.rank_end
            if end is not None and end.last_lines:  # before the reason, since what is said last is shown as what the run does
                logger.error("last lines of %s:\n%s", end.printed_by, end.last_lines)
            logger.error("%s: %s", self.ending.status, self.ending.reason)

    def _look_for_checkpoint(self) -> None:
        """Take a checkpoint of ranks that were slow to end, such as those of torchrun: now their last words are known."""
        if self.attempt.checkpoint is not None:
            self.ending = self.limit.saved_at(self.attempt.checkpoint)

    def _look_at_leftovers(self) -> None:
        """Warn of what could not be ended: it disturbs whoever measures there next."""
        left = not_clean(self.nodes.present())
        if left:
            warning = f"not all that this run started could be ended on {', '.join(left)}: see the node's log"
            self.attempt.warnings.append(warning)
            logger.warning("%s", warning)

    def _requeue(self) -> None:
        """Put the job back into the queue, to resume from the checkpoint. Last of all, since the scheduler then ends this job."""
        try:
            attempt = self.attempt
            Call(self.loop, "requeue", attempt.scheduler.requeue, attempt.allocation, timeout_s=step_limits.REQUEUE_S).wait()
        except SlipwayError as error:
            logger.info("the job is not put back into the queue (%s): the same command continues the run", error)
        else:
            logger.info("the job is put back into the queue, and resumes from the checkpoint")

    # -- push and publish

    def _push_and_publish(self) -> None:
        again = Retries(self.attempt.scope, time.monotonic() + self._push_limit_s())
        pending: SlipwayError | None = None
        try:
            self.clock.enter("push")
            logger.info("push: the result goes to storage")
            again.repeat("push", lambda left_s: self._push(again, left_s))
            self.clock.enter("release")
            self.nodes.ask(commands.Release(), reports.Released, step_limits.RELEASE_S)
            again.repeat("publish", lambda left_s: again.call("publish", attempts.publish_result, *self._publication(), left_s=left_s))
        except LeaseError as error:
            self.ending = Ending(status="storage", reason=str(error), error=LeaseError)
            logger.error("%s", error)
        except SlipwayError as error:
            pending = error
            self._keep(error)
        if pending is None:
            self.nodes.end(step_limits.NODES_LEAVE_S)

    def _in_a_hurry(self) -> bool:
        """Return True if the scheduler kills what is left, some 30 s after it has told us to end."""
        return self.ending.status in ("cancelled", "preempted") and not self.ending.planned

    def _stop_limit_s(self) -> float:
        if not in_container(self.run.site.engine) or self._in_a_hurry():
            return step_limits.NODES_STOP_S
        return max(step_limits.NODES_STOP_S, min(step_limits.CONTAINERS_STOP_S, self.limit.deadline - time.monotonic()))

    def _push_limit_s(self) -> float:
        if self._in_a_hurry():
            return protocol.CANCELLED_PUSH_S
        limit_s = self.attempt.scope.limits.push_s
        return max(step_limits.MIN_PUSH_S, self.limit.deadline - time.monotonic()) if limit_s is None else limit_s

    def _push(self, again: Retries, left_s: float) -> None:
        self._judge_lost()
        if self.part_directory is None:
            self.part_directory = again.call("push", attempts.make_part, self.run.run_dir, self.run.attempt, left_s=left_s)
        self.nodes.forget(reports.Pushed, reports.Failed)
        missing = [node for node in self.nodes.present() if node.index not in self.files]
        for node in missing:
            self.nodes.send(node, commands.Push(part=self.part_directory, limit_s=left_s))
        again.wait(lambda: all(has_answered(node) for node in missing), left_s + 5)
        problems = []
        for node in missing:
            pushed = node.last(reports.Pushed)
            if pushed is not None:
                self.files[node.index] = pushed.files
            elif node.lost:
                self._begin_again()
                raise PushError(f"{node.node.name} was lost while it pushed")
            else:
                problems.append(push_error(node))
        if problems:
            raise problems[0]
        arguments = (self.part_directory, self.run.cell, _parameters(self.work), self.attempt.requested_steps(self.work))
        device, status = self.attempt.allocation.device, self.ending.status
        self.found = again.call("its record", attempts.read_measured, *arguments, device, status, left_s=left_s, kind=Measurements)
        if self.ending.status == "ok" and (wrong := self.found.contradiction) is not None:
            self.ending = Ending(status="error", reason=wrong)
            logger.error("%s", wrong)

    def _judge_lost(self) -> None:
        """End the run as lost if a node that had ended well went before its files were on storage: no result is whole."""
        gone = [node.node.name for node in self.nodes.all if node.lost and node.index not in self.files]
        if gone and self.ending.status in NEED_ALL_FILES:
            reason = f"the run ended {self.ending.status}, and {', '.join(gone)} was lost before its files were on network storage"
            self.ending = Ending(status="node_lost", reason=reason, nodes=tuple(gone))
            logger.error("%s", reason)

    def _begin_again(self) -> None:
        """Push into a new directory: half of a lost node's files are in the old one."""
        assert self.part_directory is not None
        try_once(self.loop, "removal of the half-pushed attempt", attempts.remove_part, self.part_directory)
        self.part_directory, self.files = None, {}

    def _publication(self) -> tuple[Any, ...]:
        files = [file for node_files in self.files.values() for file in node_files]
        return self.run, self.part_directory, files, lambda: self._record(self.ending, files)

    def _record(self, ending: Ending, files: list[File]) -> NewRecord:
        return build_record(facts.run_facts(self.attempt, self.work), ending, facts.times_of(self.clock), self.found, files)

    # -- what storage did not take

    def _keep(self, error: SlipwayError) -> None:
        """Keep the result on its nodes under pending.json; the attempt is a prevented one. The lease stays too: it holds the attempt's
        number until the files have that name on storage, whoever starts the run meanwhile."""
        was = self.ending
        failed = "no record could be made of it" if isinstance(error, Defect) else "its result could not be pushed"
        reason = f"the run ended {was.status}, and {failed}: {'; '.join(str(error).splitlines())}"
        reason += f"; {progress_line.waiting_words([node.node.name for node in self.nodes.present()])}"
        code = type(error) if was.kind == "result" else None
        self.ending = Ending(
            status=was.status if was.kind == "prevented" else "storage",
            reason=reason if was.kind == "result" else f"{was.reason}; {reason}",
            rank_end=was.rank_end,
            error=code or was.error,
        )
        logger.error("%s", reason)
        if self.part_directory is not None:
            try_once(self.loop, "removal of the half-pushed attempt", attempts.remove_part, self.part_directory)
        self.clock.enter("release")
        self.nodes.ask(commands.Release(), reports.Released, step_limits.RELEASE_S)
        if isinstance(error, Defect):
            self.found = Measurements()  # perhaps it cannot be made of that
        record, ended = self._notes(was)
        target = Path(self.run.run_dir, "attempts", str(self.run.attempt))
        text = str(error)

        def pending(node: NodeHandle) -> commands.Pending:
            own = target if node.index == 0 else target.with_name(f"{target.name}.node-{node.index}")
            notes = (record, ended) if node.index == 0 else (None, None)
            return commands.Pending(target=str(own), reason=text, record=notes[0], ended=notes[1])

        self.nodes.end(step_limits.NODES_LEAVE_S, pending)

    def _notes(self, was: Ending) -> tuple[OwnKeys | None, OwnKeys | None]:
        """Return the notes of the attempt as it is, and as it will be when it is delivered. Whatever fails here, the files are kept."""
        try:
            return self._record(self.ending, []).to_json(), jsonfile.plain(self._ended(was))
        except Exception:
            logger.exception("a defect of Slipway: the files are kept without a record")
            return None, None

    def _ended(self, was: Ending) -> EndedNote:
        """Return how it ends when it is delivered from all nodes that have files of it: `was`, or prevented if those are not enough."""
        present = [node.index for node in self.nodes.present()]
        enough = was.kind == RESULT and (was.status not in NEED_ALL_FILES or len(present) == len(self.nodes.all))
        ending = was if enough else self.ending
        return EndedNote(
            facts=facts.run_facts(self.attempt, self.work),
            times=facts.times_of(self.clock),
            nodes=tuple(present),
            parameters=_parameters(self.work),
            steps=self.attempt.requested_steps(self.work),
            ending=ending_note(ending),
        )


def not_clean(nodes: Iterable[NodeHandle]) -> list[str]:
    """Name the nodes that did not report that they have ended all."""
    return [node.node.name for node in nodes if (answer := node.last(reports.Stopped)) is None or not answer.clean]


def has_answered(node: NodeHandle) -> bool:
    """Return True if a node that was told to push has done so, has failed, or is lost."""
    failed = node.last(reports.Failed)
    return node.lost or node.has_reported(reports.Pushed) or (failed is not None and failed.during == "push")


def push_error(node: NodeHandle) -> SlipwayError:
    """Return why a node has not pushed."""
    failed = node.last(reports.Failed)
    if failed is None:
        return PushError(f"{node.node.name} did not end its push in time")
    return error_named(failed.error, PushError)(failed.message)


def _parameters(work: description.Work) -> int | None:
    return None if work.model is None else work.model.parameters
