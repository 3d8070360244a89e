"""A scheduler as small as one with jobs can be, under a word that site files know: what nobody may forget when commands ask for one."""

from collections.abc import Mapping

from cluster.schedulers.local import allocate as allocate
from cluster.schedulers.local import ended_by as ended_by
from cluster.schedulers.local import holders_alive as holders_alive
from cluster.schedulers.local import job_facts as job_facts
from cluster.schedulers.local import launch_environ as launch_environ
from cluster.schedulers.local import launches as launches
from cluster.schedulers.local import requeue as requeue

NAME = "pbs"
LIMIT_SIGNAL: int | None = None


def job_start(environ: Mapping[str, str]) -> str | None:
    return environ.get("PBS_JOBID")
