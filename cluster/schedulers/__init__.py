"""Schedulers: one module of plain functions each. A new one is a module here and a line in SCHEDULERS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from base.errors import UnsupportedRequest
from base.names import choices
from cluster.schedulers import local, lsf, pbs, sge, slurm
from cluster.schedulers.doctor import Doctor
from cluster.schedulers.jobs import Jobs
from cluster.types import Allocation, AllocationRequest, Grant, Holder, Launch, Node


class Scheduler(Protocol):
    """What a scheduler's module offers. Nothing here polls; what may take long runs in a child process with a limit."""

    NAME: str
    JOBS: Jobs | None
    """For a scheduler to which runs can be submitted, each as a job of its own, or all in one job: what commands ask of it."""
    DOCTOR: Doctor | None
    """What `slipway doctor` asks of it, where there is more to look at than this machine."""
    LIMIT_SIGNAL: int | None
    """Its signal to a job whose time is over, and to no other; None where it has none."""
    KILLS_UNTOLD: bool
    """Whether programs on nodes of a job that it ends may be gone before anybody is told of the end."""

    def detect(self, environ: Mapping[str, str]) -> bool:
        """Whether `environ` is that of a job of this scheduler."""

    def allocate(self, request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:
        """What was granted to this job, read where the job runs; `supervisor` is the pid of the process it is for.

        Raises AllocationError when it is not what was asked.
        """

    def planned(self, request: AllocationRequest, environ: Mapping[str, str]) -> Allocation:
        """What would be granted, for a plan that is only printed; nothing is asked. Raises AllocationError, UnsupportedRequest."""

    def here(self, environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant | None:
        """In a node program: what this node got; None where `allocate` has told it all. `peer`: the supervisor's address, `interface`: the
        site's network_interface. Raises AllocationError."""

    def launches(self, allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
        """Pure: the commands that start `node_argv` once on every node, with `--node` or `--nodes`, by which each finds its position in the
        allocation; each reads its standard input to the first newline."""

    def launch_environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment for a launch, made of ours: without what the scheduler's launcher would take for orders."""

    def job_start(self, environ: Mapping[str, str]) -> str | None:
        """Pure: the job that `environ` is of and which start of it this is, as a word for names of files; None outside of its jobs."""

    def off_node(self, environ: Mapping[str, str]) -> str | None:
        """Pure: in a job of it, why nothing is granted to this process itself, and what to type; None where it runs on a node."""

    def node_cache(self, cache: Path, node: Node) -> Path:
        """Pure: the directory of the node-local cache on `node`, where the site says `cache`."""

    def run_locks(self, allocation: Allocation, nodes: int) -> tuple[tuple[Path, ...], int]:
        """Files on this machine, and how many of them a run locks while it has its nodes: of the machine, where runs would share it, or one
        per node of `allocation`, in its order, where runs side by side take `nodes` of them. None where the run's job is its own."""

    def holder_alive(self, holder: Holder) -> bool | None:
        """Whether the holder of a lease still runs; None when that cannot be known."""

    def holders_alive(self, holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
        """The same of many, with one question for each job, all within about `limit_s`; who could not be asked for is None."""

    def describe_holder(self, holder: Holder) -> str:
        """Pure: for the message that refuses a run: who holds it, and how to end that."""

    def job_facts(self, allocation: Allocation) -> dict[str, float | None]:
        """Asks the scheduler once: `deadline`, `submitted`, `started` in unix time, None what is not known. Raises SchedulerSilent."""

    def ended_by(self, allocation: Allocation) -> str | None:
        """Why the scheduler ends the job: `cancelled`, `preempted`, `requeued`, `timeout`, `node_lost`; None if it does not, as far as is
        known. Asks once. Raises SchedulerSilent."""

    def requeue(self, allocation: Allocation) -> None:
        """Put the job back into the queue: it ends now, and starts again later. Raises UnsupportedRequest where it is not this run's alone,
        or may not be requeued."""


SCHEDULERS: Final[dict[str, Scheduler]] = {"local": local, "slurm": slurm, "lsf": lsf, "sge": sge, "pbs": pbs}


def jobs_of(name: str) -> Jobs | None:
    """What the scheduler of that name offers for jobs; None for one without jobs, and for one that is not here yet."""
    return SCHEDULERS[name].JOBS if name in SCHEDULERS else None


def doctor_of(name: str) -> Doctor | None:
    """What the scheduler of that name offers `slipway doctor`."""
    return SCHEDULERS[name].DOCTOR if name in SCHEDULERS else None


def with_jobs() -> dict[str, Jobs]:
    """The schedulers to which runs can be submitted."""
    return {name: scheduler.JOBS for name, scheduler in SCHEDULERS.items() if scheduler.JOBS is not None}


def holder_alive(holder: Holder) -> bool | None:
    """Whether the holder of a lease lives, asked of its scheduler; None where that is not known here, or does not know."""
    scheduler = SCHEDULERS.get(holder.scheduler)
    return None if scheduler is None else scheduler.holder_alive(holder)


def get_scheduler(name: str) -> Scheduler:
    """The module of that name. Raises UnsupportedRequest."""
    if name not in SCHEDULERS:
        raise UnsupportedRequest(f"scheduler {name!r} is not here yet; {choices(name, SCHEDULERS)}")
    return SCHEDULERS[name]
