"""What `slipway doctor` asks of a scheduler: the functions of its DOCTOR, and what it proposes for a site file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from base.command import CommandResult
from base.finding import Finding
from cluster.doctor.asked import Asked


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
