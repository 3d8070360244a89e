"""Define the functions that the module of each scheduler offers, and list the schedulers.

A new scheduler is a module here and an entry in SCHEDULERS.
"""

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
    """The functions of a scheduler's module. No function polls; one that may take long runs in a child process with a time limit."""

    NAME: str
    JOBS: Jobs | None
    """The functions that commands call if runs can be submitted to this scheduler, each as its own job or all in one job."""
    DOCTOR: Doctor | None
    """The checks of `slipway doctor`, if there is more to check than this machine."""
    LIMIT_SIGNAL: int | None
    """The signal that a job gets only when its time is over, or None if the scheduler has no such signal."""
    KILLS_UNTOLD: bool
    """True if the programs on a job's nodes may be killed before anybody is notified of the job's end."""

    def detect(self, environ: Mapping[str, str]) -> bool:
        """Return True if `environ` belongs to a job of this scheduler."""

    def allocate(self, request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:
        """Read what was granted to this job, on the host where the job runs.

        `supervisor` is the pid of the process that the allocation is for. Raises AllocationError if the grant does not match the request.
        """

    def planned(self, request: AllocationRequest, environ: Mapping[str, str]) -> Allocation:
        """Return the allocation that a run would get, for a plan that is only printed. The scheduler is not queried.

        Raises AllocationError and UnsupportedRequest.
        """

    def here(self, environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant | None:
        """Read the grant of this node, in a node program. Returns None if `allocate` has returned all of it.

        `peer` is the supervisor's address, `interface` the site's network_interface. Raises AllocationError.
        """

    def launches(self, allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
        """Return the commands that start `node_argv` once on every node.

        Each gets `--node` or `--nodes`, by which a node program finds its position in the allocation, and reads its standard input to the
        first newline.
        """

    def launch_environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return our environment without the variables that the scheduler's launcher would read as options."""

    def job_start(self, environ: Mapping[str, str]) -> str | None:
        """Return the job of `environ` and the number of its start, as a word for file names. Returns None outside of a job."""

    def off_node(self, environ: Mapping[str, str]) -> str | None:
        """Explain why this process of a job has no grant of its own, and what to type. Returns None if it runs on a node."""

    def node_cache(self, cache: Path, node: Node) -> Path:
        """Return the directory of the node-local cache on `node`, where the site file says `cache`."""

    def run_locks(self, allocation: Allocation, nodes: int) -> tuple[tuple[Path, ...], int]:
        """Return lock files on this machine, and how many of them a run holds while it has its nodes.

        There is one file for a machine that runs would share. Where runs take `nodes` nodes each of one allocation, there is one file per
        node, in the order of the allocation. There are no files if the run has its own job.
        """

    def holder_alive(self, holder: Holder) -> bool | None:
        """Return True if the holder of a lease still runs, and None if that cannot be known."""

    def holders_alive(self, holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
        """Return for each holder whether it still runs, with one query per job and within about `limit_s`.

        The answer is None for a holder that could not be queried.
        """

    def describe_holder(self, holder: Holder) -> str:
        """Describe the holder of a run and how to end it, for the message that refuses another run."""

    def job_facts(self, allocation: Allocation) -> dict[str, float | None]:
        """Query the scheduler once for the unix times `deadline`, `submitted` and `started`. Unknown times are None.

        Raises SchedulerSilent.
        """

    def ended_by(self, allocation: Allocation) -> str | None:
        """Query the scheduler once for the reason why it ends the job.

        The reasons are `cancelled`, `preempted`, `requeued`, `timeout` and `node_lost`; None if no end is known. Raises SchedulerSilent.
        """

    def requeue(self, allocation: Allocation) -> None:
        """Requeue the job: it ends now and starts again later.

        Raises UnsupportedRequest if the job is not this run's alone, or may not be requeued.
        """


SCHEDULERS: Final[dict[str, Scheduler]] = {"local": local, "slurm": slurm, "lsf": lsf, "sge": sge, "pbs": pbs}


def jobs_of(name: str) -> Jobs | None:
    """Return the job functions of the named scheduler. Returns None if it has no jobs or is unknown."""
    return SCHEDULERS[name].JOBS if name in SCHEDULERS else None


def doctor_of(name: str) -> Doctor | None:
    """Return the doctor functions of the named scheduler. Returns None if it has none or is unknown."""
    return SCHEDULERS[name].DOCTOR if name in SCHEDULERS else None


def with_jobs() -> dict[str, Jobs]:
    """Return the schedulers to which runs can be submitted."""
    return {name: scheduler.JOBS for name, scheduler in SCHEDULERS.items() if scheduler.JOBS is not None}


def holder_alive(holder: Holder) -> bool | None:
    """Return True if the scheduler reports that the holder of a lease lives, and None if that is unknown."""
    scheduler = SCHEDULERS.get(holder.scheduler)
    return None if scheduler is None else scheduler.holder_alive(holder)


def get_scheduler(name: str) -> Scheduler:
    """Return the module of the named scheduler.

    Raises UnsupportedRequest.
    """
    if name not in SCHEDULERS:
        raise UnsupportedRequest(f"scheduler {name!r} is not here yet; {choices(name, SCHEDULERS)}")
    return SCHEDULERS[name]
