"""List the schedulers, load their modules by name, and define the functions that the module of each one offers.

A new scheduler is a package here, and a line in SCHEDULERS and in the dicts by which mypy compares it with the Protocols. A
module is imported when its scheduler is asked for: a run needs one of them, and none of the modules that submit jobs or examine a site.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from base import errors, humanize
from cluster import detection, runtime
from cluster.schedulers import inside_job, queries
from cluster.types import Allocation, AllocationRequest, Holder, Launch, Node

if TYPE_CHECKING:
    from cluster.schedulers.jobs import BatchJob, QueuedJob

LOCAL: Final = "local"
SCHEDULERS: Final[dict[str, str]] = {
    "local": "cluster.schedulers.local",
    "slurm": "cluster.schedulers.slurm",
    "lsf": "cluster.schedulers.lsf",
    "sge": "cluster.schedulers.sge",
    "pbs": "cluster.schedulers.pbs",
}
"""The module of each scheduler. All but `local`, which has no jobs, are packages with a module `jobs`."""


class Scheduler(Protocol):
    """The functions of a scheduler's module. No function polls; one that may take long runs in a child process with a time limit."""

    NAME: str
    LIMIT_SIGNAL: int | None
    """The signal that a job gets only when its time is over, or None if the scheduler has no such signal."""

    def allocate(self, request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:
        """Read what was granted to this job, on the host where the job runs.

        `supervisor` is the pid of the process that the allocation is for. Raises AllocationError if the grant does not match the request.
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

    def holders_alive(self, holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:
        """Return for each holder whether it still runs, within about `limit_s`; None for one that could not be queried."""

    def job_facts(self, allocation: Allocation) -> dict[str, float | None]:
        """Query the scheduler once for the unix times `deadline`, `submitted` and `started`; None: unknown. Raises SchedulerSilent."""

    def ended_by(self, allocation: Allocation) -> str | None:
        """Query the scheduler once for the reason why it ends the job.

        The reasons are `cancelled`, `preempted`, `requeued`, `timeout` and `node_lost`; None if no end is known. Raises SchedulerSilent.
        """

    def requeue(self, allocation: Allocation) -> None:
        """Requeue the job. Raises UnsupportedRequest if it is not this run's alone, or may not be requeued."""


class Jobs(Protocol):
    """The functions of the module `jobs` of a scheduler that takes jobs, for commands.

    A query is repeated for `patience_s` while the server is silent, each time for at most `timeout_s`. It raises SchedulerSilent when the
    time is over, and SchedulerOutputError for an answer that cannot be read.
    """

    SERVER: queries.Server

    def our_jobs(self, patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
        """Return all jobs of this user that are not over, oldest first."""

    def jobs_named(self, name: str, patience_s: float) -> tuple[QueuedJob, ...]:
        """Return this user's jobs of exactly that name, in any stage that the scheduler still knows, oldest first."""

    def known_jobs(self, job_ids: Sequence[str], patience_s: float) -> tuple[QueuedJob, ...]:
        """Return the jobs that the scheduler still knows, in any stage, by one query: this tells how a job ended."""

    def cancel(self, job_ids: Sequence[str], patience_s: float) -> None:
        """Cancel jobs, by one command if possible. Jobs that are over or unknown are no failure."""

    def script(self, job: BatchJob) -> str:
        """Return the batch script as it would be submitted: the directives, then `script_lines`. Raises ConfigError."""

    def options(self, job: BatchJob) -> tuple[str, ...]:
        """Return the requests of the script as options of SUBMIT. Raises ConfigError."""

    def submit(self, job: BatchJob, patience_s: float) -> str:
        """Submit a job exactly once, and return its id.

        While the server is silent, the job is looked for by its name and submitted again for `patience_s`, which may be infinite; a message
        on standard error says so once. Raises SubmitError.
        """

    def num_nodes_of_job(self, environ: Mapping[str, str]) -> int | None:
        """Return the number of nodes of the job that `environ` belongs to."""

    def end_of_job(self, environ: Mapping[str, str], patience_s: float) -> float | None:
        """Return the unix time at which the job that `environ` belongs to ends, or None if it is unknown."""


def get_scheduler(name: str) -> Scheduler:
    """Return the module of the named scheduler. Raises UnsupportedRequest."""
    if name not in SCHEDULERS:
        raise errors.UnsupportedRequest(f"scheduler {name!r} is not here yet; {humanize.choices(name, SCHEDULERS)}")
    return cast("Scheduler", import_module(SCHEDULERS[name]))


def with_jobs() -> tuple[str, ...]:
    """Return the names of the schedulers to which runs can be submitted."""
    return tuple(name for name in SCHEDULERS if name != LOCAL)


def jobs_of(name: str) -> Jobs | None:
    """Return the job functions of the named scheduler. Returns None if it has no jobs or is unknown."""
    return cast("Jobs", import_module(f"{SCHEDULERS[name]}.jobs")) if name in with_jobs() else None


if TYPE_CHECKING:
    from cluster.schedulers import local, lsf, pbs, sge, slurm
    from cluster.schedulers.lsf import jobs as lsf_jobs
    from cluster.schedulers.pbs import jobs as pbs_jobs
    from cluster.schedulers.sge import jobs as sge_jobs
    from cluster.schedulers.slurm import jobs as slurm_jobs

    _schedulers: dict[str, Scheduler] = {"local": local, "slurm": slurm, "lsf": lsf, "sge": sge, "pbs": pbs}
    _jobs: dict[str, Jobs] = {"slurm": slurm_jobs, "lsf": lsf_jobs, "sge": sge_jobs, "pbs": pbs_jobs}


def shared_profile(name: str) -> str:
    """Return our Snakemake profile for use inside one job that holds all runs. The profile with a job for each run is called `name`."""
    return f"{name}-allocation"


# What is the same for all schedulers but for `local`, whose nodes are parts of this machine.


def is_job_of(name: str, environ: Mapping[str, str]) -> bool:
    """Return True if `environ` belongs to a job of the named scheduler, or to no job if that is `local`."""
    return (detection.scheduler_of(environ) or LOCAL) == name


def plan_allocation(name: str, request: AllocationRequest, environ: Mapping[str, str]) -> Allocation:
    """Return the allocation of a plan that is only printed, without a query. Raises AllocationError and UnsupportedRequest."""
    return get_scheduler(LOCAL).allocate(request, environ, os.getpid()) if name == LOCAL else inside_job.planned_allocation(name, request)


def node_cache(name: str, cache: Path, node: Node) -> Path:
    """Return the node-local cache on `node`. Nodes of this machine have one each, so that two nodes stage twice, as on a cluster."""
    return cache / node.name if name == LOCAL else cache


def run_locks(allocation: Allocation, nodes: int) -> tuple[tuple[Path, ...], int]:
    """Return lock files on this machine, and how many of them a run holds while it has its nodes.

    On this machine one run of this user at a time measures. Where runs take `nodes` nodes each of one job, there is one file per node, in
    the order of the allocation, on the host of all their supervisors. There are no files if the run has its own job. Raises
    AllocationError.
    """
    if allocation.scheduler == LOCAL:
        return (runtime.runtime_directory() / "measuring.lock",), 1
    if allocation.own_job:
        return (), 0
    directory = runtime.runtime_directory() / f"{allocation.scheduler}-{allocation.job_id}-{allocation.restart_count}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return tuple(directory / f"{node.name}.lock" for node in allocation.nodes), nodes


def holder_alive(holder: Holder) -> bool | None:
    """Return True if the holder of a lease still runs, and None if that is unknown."""
    return get_scheduler(holder.scheduler).holders_alive((holder,), queries.PATIENCE_S)[0] if holder.scheduler in SCHEDULERS else None


def describe_holder(holder: Holder) -> str:
    """Describe the holder of a run and how to end it, for the message that refuses another run."""
    if holder.scheduler == LOCAL:
        return f"process {holder.pid} on {holder.host}; end it there (kill {holder.pid})"
    jobs = jobs_of(holder.scheduler)
    if jobs is None:
        return f"job {holder.job_id} of {holder.scheduler} on {holder.host}"
    server = jobs.SERVER
    return f"{server.title} job {holder.job_id} (process {holder.pid} on {holder.host}); end it with `{server.cancel} {holder.job_id}`"
