"""What `slipway doctor` asks of a scheduler: the functions of its DOCTOR, and what it proposes for a site file."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from base.command import CommandResult, last_lines, run
from base.errors import SchedulerSilent, SlipwayError
from base.finding import Finding
from base.units import format_duration
from cluster.doctor.checks import Asked
from cluster.schedulers.queries import STEP_S


@dataclass(frozen=True, kw_only=True)
class Value:
    """A value for a key of a site file. `why` becomes its comment; `sure` is False where it is a guess."""

    value: str | int | None
    why: str
    sure: bool = True


class Doctor(Protocol):
    """What the module behind a scheduler's DOCTOR offers. All of it ends soon, also while nobody answers."""

    STEP_S: float
    """How long `try_step` waits for the step on all nodes."""

    def is_here(self) -> bool:
        """Whether its commands know a cluster: as a package leaves them, they do not."""

    def nodes_of_job(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The nodes of the job that `environ` is of; none where it does not say them."""

    def check(self, asked: Asked) -> tuple[Finding, ...]:
        """The scheduler and its configuration, against the site file."""

    def is_silent(self, found: Sequence[Finding]) -> bool:
        """Pure: whether `check` has found that nobody answers, so that nothing else should be asked."""

    def check_launcher(self) -> tuple[Finding, ...]:
        """The command that starts programs on nodes, as far as it can be looked at outside of a job."""

    def try_step(self, job_id: str, nodes: Sequence[str]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
        """One program on each of these nodes of our job: findings, and the nodes that answered."""

    def run_step(self, job_id: str, nodes: Sequence[str], argv: Sequence[str], timeout_s: float, more: Mapping[str, str]) -> CommandResult:
        """`argv` on each of these nodes of our job, with `more` in its environment. Raises SlipwayError."""

    def node_names(self, queue: str | None, most: int) -> tuple[str, ...]:
        """Names of nodes of a queue (None: of any), at most so many; none where nobody says them."""

    def private_tmp(self) -> bool:
        """Whether jobs get a /tmp of their own. False where nobody says it."""

    def proposals(self, user: str) -> dict[str, Value]:
        """Keys of a site file, by what the scheduler says. Raises SchedulerOutputError."""

    def allocation_argv(self, asked: Asked) -> tuple[str, ...]:
        """Pure: the command that gets two nodes for the rest of its words, at the terminal."""


def mib(num_bytes: int) -> str:
    """Pure: as a site file writes it."""
    return f"{max(1, num_bytes >> 20)}MiB"


# What the doctor tries of a launcher that starts one program on one node: a program on each node of our job, one after the other.


LAUNCHER: Final = "launcher"


@dataclass(frozen=True, kw_only=True)
class NodeLauncher:
    """One scheduler's."""

    command: str
    advice: str
    """What to do where it is not here."""
    argv: Callable[[str, Sequence[str]], tuple[str, ...]]
    """Starts a program on the node of that name."""
    environ: Callable[[Mapping[str, str]], dict[str, str]]
    """What the node may have of ours."""
    probe: tuple[str, ...]
    has_run: Callable[[CommandResult], bool]
    """By what `probe` came to."""
    look: str
    """The command that shows a `{node}`."""
    tries: int = 1
    """How often one that says nothing of `probe` is asked."""


def is_configured(variable: str, command: str, question: Callable[[], str]) -> bool:
    """Whether commands know a cluster that answers `question`, or is silent only now."""
    if not os.environ.get(variable) and shutil.which(command) is None:
        return False
    try:
        question()
    except SchedulerSilent:
        return True
    except SlipwayError:
        return False
    return True


def check_launcher(launcher: NodeLauncher) -> tuple[Finding, ...]:
    """Whether it is here."""
    if shutil.which(launcher.command) is None:
        return (Finding(LAUNCHER, "error", f"{launcher.command} is not on PATH: no programs start on nodes", launcher.advice),)
    return (Finding(LAUNCHER, "ok", f"{launcher.command} is here"),)


def try_step(launcher: NodeLauncher, nodes: Sequence[str]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """The probe on each of these nodes: findings, and the nodes that answered."""
    begun, answered, found = time.monotonic(), [], []
    for node in nodes:
        result = _probed(launcher, node)
        if launcher.has_run(result):
            answered.append(node)
        else:
            words = last_lines(result.stderr, 2) or (f"exit code {result.returncode}" if result.returncode else "it has said nothing")
            text = f"{launcher.command} starts no program on {node}: {words}"
            found.append(Finding(LAUNCHER, "error", text, f"`{launcher.look.format(node=node)}`", (node,)))
    if answered:
        text = f"{launcher.command} started a program on each of {len(answered)} nodes in {format_duration(time.monotonic() - begun)}"
        found.append(Finding(LAUNCHER, "ok", text))
    return tuple(found), tuple(answered)


def _probed(launcher: NodeLauncher, node: str) -> CommandResult:
    for _ in range(launcher.tries - 1):
        result = _on_node(launcher, node, launcher.probe, STEP_S, {})
        if launcher.has_run(result) or result.returncode or result.stderr.strip():
            return result
    return _on_node(launcher, node, launcher.probe, STEP_S, {})


def run_step(launcher: NodeLauncher, nodes: Sequence[str], argv: Sequence[str], timeout_s: float, more: Mapping[str, str]) -> CommandResult:
    """The output of all, and the first exit code that is not 0. Raises SlipwayError."""
    give_up = time.monotonic() + timeout_s
    done = [_on_node(launcher, node, argv, max(1.0, give_up - time.monotonic()), more) for node in nodes]
    code = next((result.returncode for result in done if result.returncode), 0)
    words = {name: "".join(getattr(result, name) for result in done) for name in ("stdout", "stderr")}
    return CommandResult(argv=tuple(argv), returncode=code, **words)


def _on_node(launcher: NodeLauncher, node: str, argv: Sequence[str], timeout_s: float, more: Mapping[str, str]) -> CommandResult:
    return run(launcher.argv(node, argv), timeout_s=timeout_s, env={**launcher.environ(os.environ), **more})
