"""Run the doctor's node program on every node of an allocation, by one step, and judge the answers together."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from base.command import CommandResult, last_lines
from base.errors import SlipwayError, UnsupportedRequest
from base.finding import Finding
from base.packages import rooms_environ
from cluster.schedulers import doctor_of
from data_prep.doctor.trial import own_directory
from data_prep.mounts import place_of
from extras.doctor.node import Orders, from_lines, to_argument

TIMEOUT_S: Final = 150.0
CLOCK_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """The answer of one node. `clock`: its time when its program began."""

    node: str
    clock: float
    facts: dict[str, Any]
    findings: tuple[Finding, ...]


def parse_answers(text: str) -> tuple[NodeAnswer, ...]:
    """Parse the answers in a step's output; one that is torn is left out."""
    found = []
    for answer in from_lines(text).values():
        try:
            value = json.loads(answer)
            findings = tuple(map(Finding.from_json, value["findings"]))
            found.append(NodeAnswer(node=value["node"], clock=value["clock"], facts=value["facts"], findings=findings))
        except (ValueError, KeyError, TypeError):
            continue
    return tuple(found)


def judge_clocks(clocks: dict[str, float], before: float, after: float) -> Iterator[Finding]:
    """Check that each node's time lies between the moments before and after the step, by our clock."""
    for node, clock in clocks.items():
        off = max(before - clock, clock - after)
        if off > CLOCK_S:
            text = f"the clock is at least {off:.0f} s {'behind' if clock < before else 'ahead of'} ours"
            advice = "ask for chrony or ntp: logs and file times of the nodes do not fit together (durations are not concerned)"
            yield Finding("clock", "warning", text, advice, (node,))
    if clocks and all(max(before - clock, clock - after) <= CLOCK_S for clock in clocks.values()):
        apart = min(after - before + CLOCK_S, max(clocks.values()) - min(clocks.values()) + CLOCK_S)
        yield Finding("clock", "ok", f"the nodes' clocks agree with ours (to {max(apart, CLOCK_S):.0f} s)")


def judge_python(result: CommandResult, answers: Sequence[NodeAnswer], nodes: Sequence[str]) -> Iterator[Finding]:
    """Check whether our Python started everywhere."""
    missing = [node for node in nodes if node not in {answer.node for answer in answers}]
    if missing:
        text = f"our Python did not start on {', '.join(missing)}: {last_lines(result.stderr, 2) or 'no word from it'}"
        advice = f"is {sys.executable} there on the nodes? Slipway and its Python belong on storage that all nodes mount at the same place"
        yield Finding("software", "error", text.replace("\n", "; "), advice)
    elif nodes:
        yield Finding("software", "ok", f"the nodes start our Python, {sys.executable}")


def ask_nodes(
    scheduler: str, job_id: str, nodes: Sequence[str], orders: Orders, timeout_s: float = TIMEOUT_S
) -> tuple[CommandResult, tuple[NodeAnswer, ...]]:
    """Run the node program everywhere. Raises SlipwayError when that does not end."""
    doctor = doctor_of(scheduler)
    if doctor is None:
        raise UnsupportedRequest(f"programs on the nodes of a job of {scheduler} cannot be started yet")
    argv = (sys.executable, "-P", "-m", "extras.doctor.node", to_argument(orders))
    result = doctor.run_step(job_id, nodes, argv, timeout_s, rooms_environ(os.environ))
    return result, parse_answers(result.stdout)


def check_on_nodes(scheduler: str, job_id: str, nodes: Sequence[str], orders: Orders, storage: Path) -> tuple[Finding, ...]:
    """Run all checks of the nodes; a file on storage shows whether they see it."""
    with own_directory(place_of(storage)[0]) as directory:
        token = secrets.token_hex(8)
        file = directory / "seen"
        file.write_text(token)
        before = time.time()
        try:
            result, answers = ask_nodes(scheduler, job_id, nodes, replace(orders, token_file=str(file), token=token))
        except SlipwayError as error:
            return (Finding("launcher", "error", f"the checks on the nodes: {error}"),)
        after = time.time()
    answers = tuple(sorted(answers, key=lambda answer: nodes.index(answer.node) if answer.node in nodes else len(nodes)))
    clocks = judge_clocks({answer.node: answer.clock for answer in answers}, before, after)
    return (*judge_python(result, answers, nodes), *clocks, *(finding for answer in answers for finding in answer.findings))
