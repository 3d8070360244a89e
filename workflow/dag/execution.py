"""Tell how Snakemake runs the study (on this machine, each run as a job, or all inside one job), and whether the site fits that."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from base.errors import ConfigError, UnsupportedRequest
from base.humanize import choices
from cluster import detection, installation
from cluster.schedulers import LOCAL, Jobs, get_scheduler, jobs_of, with_jobs
from workflow.study.cell import Run
from workflow.study.site import Site

Way = Literal["local", "jobs", "allocation"]
NODES: Final = "nodes"
EXECUTOR: Final = "slipway"
"""The name of our executor for Snakemake, in the package snakemake_executor_plugin_slipway, in every profile whose runs are jobs."""
SUBMITS: Final = "SLIPWAY_SUBMITS"
"""The variable that tells it: the scheduler and the study's mark, with a blank between them."""
NO_JOB: Final = "0-0"
"""The text in the place of a job's name, where none is known."""
DOES: Final[Mapping[Way, str]] = {
    "local": "runs on this machine",
    "jobs": "submits jobs to a scheduler",
    "allocation": "runs inside a job of a scheduler",
}
"""The words for what Snakemake does by a profile of each way."""
FITS: Final = "`slipway run STUDY` takes the profile that fits, and `slipway submit STUDY` starts it inside of one job"


@dataclass(frozen=True, kw_only=True)
class Mode:
    """The way in which Snakemake runs, and of how many nodes it may use at once.

    `job`: the job that it runs in and that job's restart count; "" outside of a job.
    """

    way: Way = "local"
    nodes: int | None = None
    job: str = ""


def mode_of(scopes: Mapping[str, str], limits: Mapping[str, Any], environ: Mapping[str, str]) -> Mode:
    """Return the mode that a profile means.

    One whose `nodes` are each job's own submits jobs, one that limits `nodes` shares an allocation out. `scopes` and `limits` are
    Snakemake's --set-resource-scopes and --resources: its executor is not known yet when rules are read.
    """
    if scopes.get(NODES) == "local":
        return Mode(way="jobs")
    if NODES in limits:
        limit = limits[NODES]
        job = get_scheduler(detection.scheduler_of(environ) or LOCAL).job_start(environ) or NO_JOB
        return Mode(way="allocation", nodes=int(getattr(limit, "value", limit)), job=job)  # Snakemake's own values have a .value
    return Mode()


def jobs_at(site: Site) -> Jobs:
    """Return what the site's scheduler offers for jobs. Raises UnsupportedRequest where it takes none."""
    jobs = jobs_of(site.scheduler)
    if jobs is None:
        raise UnsupportedRequest(
            f"the site {site.name!r} says scheduler: {site.scheduler}, which takes no jobs; {choices(site.scheduler, with_jobs())}"
        )
    return jobs


def snakemake_argv(profile: str, study: Path, many: Sequence[str] = (), rest: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command of this installation's Snakemake, wherever it works: every path of ours is absolute.

    What takes any number of values, such as those in `many`, stands before what takes one, or a target in `rest` would be one more of
    them. `-P`: no module of ours or of Python's comes from the directory where the user is.
    """
    begin = (sys.executable, "-P", "-m", "snakemake", "--configfile", str(study.absolute()))
    return (*begin, *many, "--snakefile", str(installation.SNAKEFILE), "--profile", profile, *rest)


def refuse_wrong_executor(way: Way, executor: str) -> None:
    """Raise ConfigError when Snakemake's executor is not that of the profile: by `--executor`, or in a profile of one's own."""
    needed = EXECUTOR if way == "jobs" else "local"
    if executor != needed:
        raise ConfigError(
            f"this profile {DOES[way]}, and is made for the executor {needed!r}, found {executor!r}; leave out --executor; {FITS}"
        )


def refuse_wrong_way(site: Site, way: Way, environ: Mapping[str, str]) -> None:
    """Raise ConfigError when Snakemake would run the study in a way that the site's scheduler does not offer here."""
    jobs = jobs_of(site.scheduler)
    inside = jobs is not None and detection.scheduler_of(environ) == site.scheduler
    if way not in (("local",) if jobs is None else ("jobs", "allocation") if inside else ("jobs",)):
        outside = "" if jobs is None or way != "allocation" else f"; this is not a job of {jobs.SERVER.title}"
        raise ConfigError(
            f"this profile {DOES[way]}, and the site {site.name!r} says scheduler: {site.scheduler}{outside}; {FITS}; or choose another "
            f"site: with scheduler: local for this machine, or with one that takes jobs: {', '.join(with_jobs())}"
        )


def refuse_too_few_nodes(mode: Mode, runs: Sequence[Run]) -> None:
    """Raise ConfigError when a run to be made needs more nodes than the allocation has: it could never start."""
    largest = max(runs, key=lambda run: run.cell.nodes, default=None)
    if mode.nodes is not None and largest is not None and largest.cell.nodes > mode.nodes:
        raise ConfigError(
            f"--resources nodes={mode.nodes}: {largest.run_id} needs {largest.cell.nodes} nodes; use a job of at least as many "
            f"(`slipway submit` takes as many as the largest cell needs)"
        )
