"""The jobs of `fake_pbs`: a queue that a test fills, commands that are words only."""

from collections.abc import Mapping, Sequence

from cluster.schedulers.jobs import BatchJob, QueuedJob
from cluster.schedulers.pbs.answers import PBS

SERVER = PBS
QUEUE: list[QueuedJob] = []
SUBMITTED: list[BatchJob] = []


def our_jobs(patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:  # noqa: ARG001 - it answers at once
    return tuple(QUEUE)


def jobs_named(name: str, patience_s: float) -> tuple[QueuedJob, ...]:  # noqa: ARG001 - it answers at once
    return tuple(job for job in QUEUE if job.name == name)


def known_jobs(job_ids: Sequence[str], patience_s: float) -> tuple[QueuedJob, ...]:  # noqa: ARG001 - it answers at once
    return tuple(job for job in QUEUE if job.job_id in job_ids)


def cancel(job_ids: Sequence[str], patience_s: float) -> None:  # noqa: ARG001 - it answers at once
    QUEUE[:] = [job for job in QUEUE if job.job_id not in job_ids]


def script(job: BatchJob) -> str:
    return "\n".join(["#!/bin/sh", *(f"#PBS {option}" for option in options(job)), f"exec {' '.join(job.argv)}"]) + "\n"


def options(job: BatchJob) -> tuple[str, ...]:
    return (f"-l select={job.size.nodes}", f"-N {job.name}")


def submit(job: BatchJob, patience_s: float) -> str:  # noqa: ARG001 - it answers at once
    SUBMITTED.append(job)
    return "7.server"


def num_nodes_of_job(environ: Mapping[str, str]) -> int | None:
    return int(environ["PBS_NUM_NODES"]) if "PBS_NUM_NODES" in environ else None


def end_of_job(environ: Mapping[str, str], patience_s: float) -> float | None:  # noqa: ARG001 - it does not say it
    return None
