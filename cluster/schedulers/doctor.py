"""Define the functions of a scheduler that `slipway doctor` calls, and the values that they propose for a site file."""

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
    """A value for a key of a site file. `why` becomes its comment; `sure` is False if the value is a guess."""

    value: str | int | None
    why: str
    sure: bool = True


class Doctor(Protocol):
    """The functions of the module behind a scheduler's DOCTOR. All of them end soon, even while nobody answers."""

    STEP_S: float
    """How long `try_step` waits for the step on all nodes."""

    def is_here(self) -> bool:
        """Return True if the scheduler's commands are configured for a cluster. Fresh from a package they are not."""

    def nodes_of_job(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the nodes of the job that `environ` belongs to; empty if it does not list them."""

    def check(self, asked: Asked) -> tuple[Finding, ...]:
        """Check the scheduler and its configuration against the site file."""

    def is_silent(self, found: Sequence[Finding]) -> bool:
        """Return True if the findings of `check` show that nobody answers, so that no more queries should follow."""

    def check_launcher(self) -> tuple[Finding, ...]:
        """Check the command that starts programs on nodes, as far as that is possible outside of a job."""

    def try_step(self, job_id: str, nodes: Sequence[str]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
        """Run a program on each of these nodes of our job, and return the findings and the nodes that answered."""

    def run_step(self, job_id: str, nodes: Sequence[str], argv: Sequence[str], timeout_s: float, more: Mapping[str, str]) -> CommandResult:
        """Run `argv` on each of these nodes of our job, with `more` in its environment.

        Raises SlipwayError.
        """

    def node_names(self, queue: str | None, most: int) -> tuple[str, ...]:
        """Return up to `most` names of nodes of a queue (None: any queue); empty if they are unknown."""

    def private_tmp(self) -> bool:
        """Return True if each job gets its own /tmp, and False if that is unknown."""

    def proposals(self, user: str) -> dict[str, Value]:
        """Propose keys of a site file from what the scheduler reports.

        Raises SchedulerOutputError.
        """

    def allocation_argv(self, asked: Asked) -> tuple[str, ...]:
        """Return the command that gets two nodes for the rest of its words, at the terminal."""


def mib(num_bytes: int) -> str:
    """Format a size for a site file."""
    return f"{max(1, num_bytes >> 20)}MiB"


# Checks of a launcher that starts one program on one node at a time.


LAUNCHER: Final = "launcher"


@dataclass(frozen=True, kw_only=True)
class NodeLauncher:
    """The launcher of one scheduler."""

    command: str
    advice: str
    """The advice if the launcher is missing."""
    argv: Callable[[str, Sequence[str]], tuple[str, ...]]
    """The function that returns the command for a program on the named node."""
    environ: Callable[[Mapping[str, str]], dict[str, str]]
    """The function that selects the variables of ours that the node may have."""
    probe: tuple[str, ...]
    has_run: Callable[[CommandResult], bool]
    """The function that decides by the result of `probe` whether the program has run."""
    look: str
    """The command that shows a `{node}`."""
    tries: int = 1
    """How often a node whose output shows nothing of `probe` is tried."""


def is_configured(variable: str, command: str, question: Callable[[], str]) -> bool:
    """Return True if the commands know a cluster that answers `question`, or that is silent only now."""
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
    """Check that the launcher is installed."""
    if shutil.which(launcher.command) is None:
        return (Finding(LAUNCHER, "error", f"{launcher.command} is not on PATH: no programs start on nodes", launcher.advice),)
    return (Finding(LAUNCHER, "ok", f"{launcher.command} is here"),)


def try_step(launcher: NodeLauncher, nodes: Sequence[str]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Run the probe on each of these nodes, and return the findings and the nodes that answered."""
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
    """Run a program on each node, and combine all output with the first exit code that is not 0.

    Raises SlipwayError.
    """
    give_up = time.monotonic() + timeout_s
    done = [_on_node(launcher, node, argv, max(1.0, give_up - time.monotonic()), more) for node in nodes]
    code = next((result.returncode for result in done if result.returncode), 0)
    words = {name: "".join(getattr(result, name) for result in done) for name in ("stdout", "stderr")}
    return CommandResult(argv=tuple(argv), returncode=code, **words)


def _on_node(launcher: NodeLauncher, node: str, argv: Sequence[str], timeout_s: float, more: Mapping[str, str]) -> CommandResult:
    return run(launcher.argv(node, argv), timeout_s=timeout_s, env={**launcher.environ(os.environ), **more})
