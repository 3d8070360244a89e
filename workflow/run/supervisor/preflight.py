"""The preflight as the supervisor sees it: before anything is staged, the nodes of the allocation test the network between them.

A pair that cannot connect ends the run, which would hang on it; a slow node or link is told, and the run goes on. Whoever looks slow is
measured again, with more bytes, before it is named.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from msgspec.structs import asdict

from cluster.limits import REACH_S
from cluster.preflight.judgement import all_reduced, unreachable, verdict
from cluster.preflight.rates import best_of, summary
from cluster.preflight.results import Finding, Place, Reach, Sample
from cluster.preflight.schedule import exchange_bytes, exchange_s, measure_s
from cluster.types import Allocation
from workflow.run.link import orders
from workflow.run.link.said import Measured, PreflightAnswered, ProbesListen, Reached
from workflow.run.record.outcome import Ending
from workflow.run.supervisor.limits import PREFLIGHT_ANSWER_S
from workflow.run.supervisor.nodes import Nodes
from workflow.run.supervisor.run_scope import RunScope

logger = logging.getLogger(__name__)

A = TypeVar("A", ProbesListen, Reached, Measured)


def is_needed(allocation: Allocation) -> bool:
    """Pure: whether there is a network between the nodes: they have different addresses."""
    return len({node.address for node in allocation.nodes}) > 1


class Preflight:
    """Ends the run where it cannot work. `record`: for the record, as far as known."""

    def __init__(self, scope: RunScope, nodes: Nodes, allocation: Allocation) -> None:
        self._scope, self._nodes, self._allocation = scope, nodes, allocation
        self._begun = time.monotonic()
        self._places: list[Place] = []
        self.findings: list[Finding] = []
        count = len(allocation.nodes)
        self.record: dict[str, Any] = {
            "seconds": None,
            "pairs": count * (count - 1),
            "connect_ms_max": None,
            "all_reduce_ms": None,
            **summary({}),
            "findings": [],
        }

    def run(self) -> None:
        """Connect, then measure until it is clear which node is slow."""
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
            findings, clear = verdict(self._places, attempts, rings)
        self._tell([None] * len(self._places))
        rates = best_of(attempts)
        slowest = summary(rates)["slowest"]
        self.record.update(
            summary(rates),
            slowest=isinstance(slowest, tuple) and {"from": self._name(slowest[0]), "to": self._name(slowest[1])} or None,
            all_reduce_ms=min((1e3 * worst for ring in rings if (worst := _longest(ring)) is not None), default=None),
        )
        self._found(findings)
        logger.info("network: %s", self._line())
        self._end_if_fatal()

    def _listen(self) -> None:
        nodes = self._allocation.nodes
        self._tell([orders.Listen(index=index, nodes=len(nodes), address=node.address) for index, node in enumerate(nodes)])
        answers = self._answers(ProbesListen, PREFLIGHT_ANSWER_S)
        self._places = [Place(node.name, answer.address, answer.port, node.interface) for node, answer in zip(nodes, answers, strict=True)]

    def _reach(self) -> None:
        order = orders.Reach(peers=tuple((place.address, place.port) for place in self._places))
        answers = self._ask(Reached, REACH_S, order)
        reached = {
            (origin, target): Reach(*reach)
            for origin, answer in enumerate(answers)
            for target, reach in enumerate(answer.reached)
            if reach is not None
        }
        times = [reach.seconds for reach in reached.values() if reach.seconds is not None]
        self.record["connect_ms_max"] = 1e3 * max(times) if times else None
        problem = unreachable(self._places, reached)
        self._found([problem] if problem is not None else [])
        self._end_if_fatal()

    def _measure(self, attempt: int, ring: bool) -> list[Measured]:
        count, again = len(self._places), attempt > 0
        limit_s = exchange_s(count, again)
        order = orders.Measure(attempt=attempt, ring=ring, bytes=exchange_bytes(count, again), limit_s=limit_s)
        return self._ask(Measured, measure_s(count, limit_s), order)

    # -- asking

    def _tell(self, own: Sequence[orders.Listen | orders.Reach | orders.Measure | None]) -> None:
        """Each node its own; None: that was all."""
        self._nodes.forget(PreflightAnswered)
        for node, order in zip(self._nodes.all, own, strict=True):
            self._nodes.send(node, orders.Preflight(order=order))

    def _ask(self, kind: type[A], limit_s: float, order: orders.Reach | orders.Measure) -> list[A]:
        self._tell([order] * len(self._allocation.nodes))
        return self._answers(kind, limit_s + PREFLIGHT_ANSWER_S)

    def _answers(self, kind: type[A], limit_s: float) -> list[A]:
        """One per node, of this kind and about as many nodes as there are."""
        if not self._scope.wait(lambda: all(node.has_said(PreflightAnswered) for node in self._nodes.all), limit_s):
            silent = ", ".join(node.node.name for node in self._nodes.all if not node.has_said(PreflightAnswered))
            self._end(f"no answer from {silent} within {limit_s:.0f} s")
        found: list[A] = []
        for node in self._nodes.all:
            answer = node.answer(PreflightAnswered).answer
            if not isinstance(answer, kind) or _nodes_in(answer) not in (None, len(self._nodes.all)):
                self._end(f"{node.node.name} gives an answer to another question than that for {kind.__name__}")
            found.append(answer)
        return found

    # -- telling

    def _name(self, index: int) -> str:
        return self._places[index].name

    def _found(self, findings: list[Finding]) -> None:
        self.findings = findings
        self.record["findings"] = [finding.text for finding in findings]
        self.record["seconds"] = time.monotonic() - self._begun
        for finding in findings:
            logger.warning("network: %s", finding.text)

    def _end_if_fatal(self) -> None:
        fatal = [finding.text for finding in self.findings if finding.fatal]
        if fatal:
            self._end("; ".join(fatal))

    def _end(self, why: str) -> NoReturn:
        self.record["seconds"] = time.monotonic() - self._begun
        self._scope.fail(Ending(status="node_lost", reason=f"preflight: {why}"))

    def _line(self) -> str:
        record = self.record
        rates = "" if record["rate_mbit_min"] is None else f", {record['rate_mbit_min']:,.0f} Mbit/s at least"
        return f"{record['pairs']} pairs connect in {record['connect_ms_max']:.1f} ms at most{rates}; tested in {record['seconds']:.2f} s"


def _nodes_in(answer: ProbesListen | Reached | Measured) -> int | None:
    """About how many nodes it is; None: about the one that gives it."""
    match answer:
        case ProbesListen():
            return None
        case Reached():
            return len(answer.reached)
        case Measured():
            return len(answer.rates)


def _samples(answers: list[Measured]) -> dict[tuple[int, int], Sample]:
    """(from, to) -> what came, told by the node where it came; how busy it was, by both."""
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
