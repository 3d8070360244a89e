"""Hear how the ranks of a run end and hang: all end well, or the first failure among many is found and named."""

import logging
import time
from collections.abc import Callable
from typing import assert_never

from workflow.run.link import commands, reports
from workflow.run.plan import Framework
from workflow.run.record import outcome, progress_line, window_check
from workflow.run.supervisor import run_scope, step_limits
from workflow.run.supervisor.nodes import NodeHandle, Nodes

logger = logging.getLogger(__name__)


class Training:
    """The ends of all ranks. `on_end(ending)` is called once, for the first failure; `finished` is true when every rank has succeeded."""

    def __init__(
        self,
        scope: run_scope.RunScope,
        nodes: Nodes,
        world_size: int,
        progress: progress_line.ProgressLine,
        framework: Framework,
        on_end: Callable[[outcome.Ending], None],
    ) -> None:
        self._loop, self._limits = scope.loop, scope.limits
        self._nodes, self._progress, self._framework, self._on_end = nodes, progress, framework, on_end
        self._left = set(range(world_size))
        self._ends: list[outcome.RankEnd] = []
        self._first_failure: float | None = None
        self._overdue = False
        self._on_saved: Callable[[int | None, str | None], None] | None = None

    @property
    def finished(self) -> bool:
        return not self._left and self._first_failure is None

    def windows(self) -> list[outcome.ObservedWindow]:
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
            return f"{self._framework.name!r} writes none"
        self._on_saved = on_saved
        self._nodes.send(self._nodes.all[0], commands.Checkpoint())
        return None

    def _fail(self, ending: outcome.Ending) -> None:
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
        windows = tuple(window_check.in_supervisor_s(seen, time.monotonic()) for seen in message.end.windows)
        end = message.end._replace(time=message.end.time + skew_s, windows=windows)
        if end.sidecar is not None and not self._left:
            return
        self._ends.append(end)
        self._left -= set(end.ranks)
        if self._is_saved(end):
            self._stopped_at_checkpoint(end)
            return
        if outcome.verdict(end) is None or self._first_failure is not None:
            return
        if self._on_saved is not None and 0 in end.ranks:
            failure = outcome.root_cause([end])
            self._on_saved(None, failure.reason if failure is not None else None)
            return
        self._first_failure = time.monotonic()
        self._nodes.forget(reports.RankReport)
        self._nodes.send_all(commands.ReportRanks())
        self._loop.after(self._limits.other_failures_s, self._judge)

    def _is_saved(self, end: outcome.RankEnd) -> bool:
        """Return True if rank 0 has ended with a checkpoint. torchrun exits with 1 for every exit code of its ranks: without the rank's own
        code, a checkpoint must have been requested and rank 0 must have reported no error."""
        by_torchrun = self._framework.launcher == "torchrun" and self._on_saved is not None and end.exit_code == 1 and end.failed_rank != 0
        return end.checkpoint is not None and (by_torchrun or end.exit_code == outcome.CHECKPOINT_EXIT)

    def _stopped_at_checkpoint(self, end: outcome.RankEnd) -> None:
        if self._on_saved is not None:
            self._on_saved(end.checkpoint, None)
            return
        reason = f"{end.who} stopped at a checkpoint (exit code {outcome.CHECKPOINT_EXIT}) that nobody had asked for"
        self._on_end(outcome.Ending(status="error", reason=reason, rank_end=end))

    def _judge(self) -> None:
        """Name the cause after the grace period. While all failures look like consequences, wait for a node that may be lost."""
        assert self._first_failure is not None
        waited = time.monotonic() - self._first_failure
        silent = [node for node in self._nodes.present() if not node.has_reported(reports.RankReport)]
        if outcome.only_consequences(self._ends) and waited < self._limits.cause_search_s and (silent or self._left):
            self._loop.after(self._limits.other_failures_s, self._judge)
            return
        if outcome.only_consequences(self._ends) and silent:
            names = ", ".join(node.node.name for node in silent)
            reason = f"{names} did not answer within {self._limits.cause_search_s:.0f} s after other ranks lost their connections"
            self._fail(outcome.Ending(status="node_lost", reason=reason, nodes=tuple(node.node.name for node in silent)))
            return
        ending = outcome.root_cause(self._ends)
        assert ending is not None
        self._fail(ending)

    def overdue(self) -> None:
        """Look at all ranks after a node has reported a silent one, then name the rank that hangs."""
        if self._overdue or self._on_saved is not None:
            return
        self._overdue = True
        self._nodes.forget(reports.RankReport)
        self._nodes.send_all(commands.ReportRanks())
        self._loop.after(step_limits.RANK_LOOKS_S, self._name_hanging)

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
        self._on_end(outcome.hang([rank for rank in ranks if rank.is_overdue or rank.is_frozen] or ranks))

    def show(self, node: NodeHandle) -> None:
        alive = [message for other in self._nodes.all if (message := other.last(reports.Alive)) is not None]
        steps = [message.step for message in alive if message.step is not None]
        tokens = [message.tokens for message in alive if message.tokens is not None]
        all_tokens = sum(tokens) if len(tokens) == (1 if self._framework.launcher == "single" else len(self._nodes.all)) else None
        line = self._progress.due(min(steps), time.monotonic(), all_tokens) if steps and node.index == 0 else None
        if line is not None:
            logger.info("%s", line)
