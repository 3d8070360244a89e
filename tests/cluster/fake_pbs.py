"""A scheduler as small as one with jobs can be, under a word that site files know: what nobody may forget when commands ask for one."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.schedulers.doctor import Doctor
from cluster.schedulers.jobs import Jobs
from cluster.schedulers.local import allocate as allocate
from cluster.schedulers.local import describe_holder as describe_holder
from cluster.schedulers.local import ended_by as ended_by
from cluster.schedulers.local import here as here
from cluster.schedulers.local import holder_alive as holder_alive
from cluster.schedulers.local import holders_alive as holders_alive
from cluster.schedulers.local import job_facts as job_facts
from cluster.schedulers.local import launch_environ as launch_environ
from cluster.schedulers.local import launches as launches
from cluster.schedulers.local import node_cache as node_cache
from cluster.schedulers.local import off_node as off_node
from cluster.schedulers.local import planned as planned
from cluster.schedulers.local import requeue as requeue
from cluster.schedulers.local import run_locks as run_locks
from tests.cluster import fake_pbs_jobs

NAME = "pbs"
JOBS: Jobs | None = fake_pbs_jobs
DOCTOR: Doctor | None = None
LIMIT_SIGNAL: int | None = None
KILLS_UNTOLD = False


def detect(environ: Mapping[str, str]) -> bool:
    return "PBS_JOBID" in environ


def job_start(environ: Mapping[str, str]) -> str | None:
    return environ.get("PBS_JOBID")
