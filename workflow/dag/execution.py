"""How Snakemake runs the study: on this machine, each run as a job of its own, or all inside one job; and whether the site fits that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from base.errors import ConfigError
from cluster.jobs import scheduler_of
from cluster.schedulers import SCHEDULERS, takes_jobs
from workflow.study.cell import Run
from workflow.study.site import Site

Way = Literal["local", "jobs", "allocation"]
NODES: Final = "nodes"
SLURM: Final = "slurm"
NO_JOB: Final = "0-0"
"""In the place of a job's name, where none is known."""
PROFILES: Final[Mapping[Way, str]] = {"local": "profiles/local", "jobs": "profiles/slurm", "allocation": "profiles/slurm-allocation"}


@dataclass(frozen=True, kw_only=True)
class Mode:
    """How one Snakemake runs: its way; of how many nodes it may use at once; whether it decides what to run, or makes one job's files.

    `job`: the job that it runs in and that job's restart count; "" outside of a job.
    """

    way: Way = "local"
    nodes: int | None = None
    main: bool = True
    job: str = ""


def mode_of(scopes: Mapping[str, str], limits: Mapping[str, Any], main: bool, environ: Mapping[str, str]) -> Mode:
    """The mode a profile means: one whose `nodes` are each job's own submits jobs, one that limits `nodes` shares an allocation out.

    `scopes` and `limits` are Snakemake's --set-resource-scopes and --resources: its executor is not known yet when rules are read.
    """
    if scopes.get(NODES) == "local":
        return Mode(way="jobs", main=main)
    if NODES in limits:
        limit = limits[NODES]
        job = next((start for scheduler in SCHEDULERS.values() if (start := scheduler.job_start(environ))), NO_JOB)
        return Mode(way="allocation", nodes=int(getattr(limit, "value", limit)), main=main, job=job)  # Snakemake's own values have a .value
    return Mode(main=main)


def refuse_wrong_executor(way: Way, executor: str) -> None:
    """Raise ConfigError when Snakemake's executor is not that of the profile: by `--executor`, or in a profile of one's own."""
    wanted = "slurm" if way == "jobs" else "local"
    if executor != wanted:
        raise ConfigError(
            f"the executor is 'slurm', and without {PROFILES['jobs']} runs ask Slurm for nothing; `slipway run STUDY` takes that profile"
            if executor == "slurm"
            else f"{PROFILES[way]} is made for the executor {wanted!r}, found {executor!r}; leave out --executor"
        )


def refuse_wrong_way(site: Site, way: Way, environ: Mapping[str, str]) -> None:
    """Raise ConfigError when Snakemake would run the study in a way that the site's scheduler does not offer here."""
    said = f"{PROFILES[way]} {_does(way)}, and the site {site.name!r} says scheduler: {site.scheduler}"
    if not takes_jobs(site.scheduler):
        if way != "local":
            fits = "`slipway run STUDY` takes the profile that fits"
            raise ConfigError(f"{said}; {fits}; or choose a site with scheduler: slurm (--site NAME)")
        return
    inside = scheduler_of(environ) == site.scheduler
    if way == "local":
        ways = (
            "this is inside a job: use `slipway run STUDY`, whose runs share its nodes"
            if inside
            else "use `slipway run STUDY` for a job per run, or `slipway submit STUDY` for one job for all"
        )
        raise ConfigError(f"{said}; {ways}; or a site with scheduler: local (--site local)")
    if way == "allocation" and not inside:
        raise ConfigError(
            f"{PROFILES[way]} {_does(way)}, and this is not a job of Slurm; use `slipway submit STUDY`, which starts it inside of one, "
            f"or `slipway run STUDY` for a job per run"
        )


def refuse_too_few_nodes(mode: Mode, runs: Sequence[Run]) -> None:
    """Raise ConfigError when a run to be made needs more nodes than the allocation has: it could never start."""
    largest = max(runs, key=lambda run: run.cell.nodes, default=None)
    if mode.nodes is not None and largest is not None and largest.cell.nodes > mode.nodes:
        raise ConfigError(
            f"--resources nodes={mode.nodes}: {largest.run_id} needs {largest.cell.nodes} nodes; use a job of at least as many "
            f"(`slipway submit` takes as many as the largest cell needs)"
        )


def _does(way: Way) -> str:
    return {"local": "runs on this machine", "jobs": "submits jobs to Slurm", "allocation": "runs inside a job of Slurm"}[way]
