"""Test the network between the nodes of a run before anything is staged, and end a run whose nodes cannot work together."""

import logging
import time
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from msgspec.structs import replace

from cluster.limits import REACH_S
from cluster.preflight import rates
from cluster.types import Allocation
from workflow.run.link import commands, reports
from workflow.run.record import model, outcome
from workflow.run.supervisor import run_scope, step_limits
from workflow.run.supervisor.nodes import Nodes

logger = logging.getLogger(__name__)

A = TypeVar("A", reports.ProbesListen, reports.Reached, reports.Measured)


def is_needed(allocation: Allocation) -> bool:
    """Return True if the nodes have different addresses, so that a network connects them."""
    return len({node.address for node in allocation.nodes}) > 1


class Preflight:
    """A test of the network that ends a run which cannot work. `record` holds the results so far."""

    def __init__(self, scope: run_scope.RunScope, nodes: Nodes, allocation: Allocation) -> None:
        self._scope, self._nodes, self._allocation = scope, nodes, allocation
        self._begun = time.monotonic()
        self._places: list[rates.Endpoint] = []
        self.findings: list[rates.Finding] = []
        count = len(allocation.nodes)
        self.record = model.Preflight(pairs=count * (count - 1), findings=())

    def run(self) -> None:
        """Connect all pairs of nodes, then measure until it is clear which node is slow. A pair that cannot connect ends the run. A slow
        node is measured again with more bytes, then reported, and the run goes on."""
        self._listen()
        self._reach()
        attempts: list[dict[tuple[int, int], rates.Sample]] = []
        findings: list[rates.Finding] = []
        clear = False
        while not clear:
            attempts.append(_samples(self._measure(len(attempts))))
            findings, clear = rates.network_verdict(self._places, attempts)
        found = rates.summary(rates.best_of(attempts))
        self._note(
            rate_mbit_median=found.median_mbit,
            rate_mbit_min=found.min_mbit,
            slowest=found.slowest and model.Link(from_=self._name(found.slowest[0]), to=self._name(found.slowest[1])),
        )
        self._keep_findings(findings)
        logger.info("network: %s", self._line())
        self._end_if_fatal()

    def _listen(self) -> None:
        nodes = self._allocation.nodes
        self._tell([commands.Listen(index=index, nodes=len(nodes), address=node.address) for index, node in enumerate(nodes)])
        answers = self._answers(reports.ProbesListen, step_limits.PREFLIGHT_ANSWER_S)
        self._places = [
            rates.Endpoint(node.name, answer.address, answer.port, node.interface) for node, answer in zip(nodes, answers, strict=True)
        ]

    def _reach(self) -> None:
        order = commands.Reach(peers=tuple((place.address, place.port) for place in self._places))
        answers = self._ask(reports.Reached, REACH_S, order)
        reached = {
            (origin, target): rates.Reach(*reach)
            for origin, answer in enumerate(answers)
            for target, reach in enumerate(answer.reached)
            if reach is not None
        }
        times = [reach.seconds for reach in reached.values() if reach.seconds is not None]
        self._note(connect_ms_max=1e3 * max(times) if times else None)
        problem = rates.unreachable(self._places, reached)
        self._keep_findings([problem] if problem is not None else [])
        self._end_if_fatal()

    def _measure(self, attempt: int) -> list[reports.Measured]:
        count, again = len(self._places), attempt > 0
        limit_s = rates.exchange_s(count, again)
        order = commands.Measure(attempt=attempt, bytes=rates.exchange_bytes(count, again), limit_s=limit_s)
        return self._ask(reports.Measured, rates.tournament_s(count, limit_s), order)

    # -- orders and answers

    def _tell(self, own: Sequence[commands.PreflightCommand]) -> None:
        self._nodes.forget(reports.Measured)  # which is asked for again
        for node, order in zip(self._nodes.all, own, strict=True):
            self._nodes.send(node, order)

    def _ask(self, kind: type[A], limit_s: float, order: commands.Reach | commands.Measure) -> list[A]:
        self._tell([order] * len(self._allocation.nodes))
        return self._answers(kind, limit_s + step_limits.PREFLIGHT_ANSWER_S)

    def _answers(self, kind: type[A], limit_s: float) -> list[A]:
        if not self._scope.wait(lambda: all(node.has_reported(kind) for node in self._nodes.all), limit_s):
            silent = ", ".join(node.node.name for node in self._nodes.all if not node.has_reported(kind))
            self._end(f"no answer from {silent} within {limit_s:.0f} s")
        return [node.answer(kind) for node in self._nodes.all]

    # -- results

    def _note(self, **found: Any) -> None:
        self.record = replace(self.record, seconds=time.monotonic() - self._begun, **found)

    def _name(self, index: int) -> str:
        return self._places[index].name

    def _keep_findings(self, findings: list[rates.Finding]) -> None:
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
        self._scope.fail(outcome.Ending(status="node_lost", reason=f"preflight: {why}"))

    def _line(self) -> str:
        record = self.record
        slowest = "" if record.rate_mbit_min is None else f", {record.rate_mbit_min:,.0f} Mbit/s at least"
        return f"{record.pairs} pairs connect in {record.connect_ms_max:.1f} ms at most{slowest}; tested in {record.seconds:.2f} s"


def _samples(answers: list[reports.Measured]) -> dict[tuple[int, int], rates.Sample]:
    """Collect by (sender, receiver) the rate that the receiver measured, and how busy both were."""
    found = {}
    for target, answer in enumerate(answers):
        for origin, rate in enumerate(answer.rates):
            if rate is not None:
                other = answers[origin].rates[target]
                found[origin, target] = rates.Sample(rate[0], rate[1], rate[2] + (other[2] if other else 0.0))
    return found
