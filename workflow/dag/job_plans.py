"""Size and plan the jobs that the site's scheduler is asked for: the one in which `slipway submit` runs a study, and that of each run."""

import math
import shlex
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from base.errors import ConfigError
from cluster.installation import PROFILES
from cluster.schedulers import Jobs, shared_profile
from cluster.schedulers.jobs import JOB_ID_PLACEHOLDER, RUN, BatchJob, JobSize, Work, job_name, mark_of
from workflow.dag import cell_needs, execution, submitting
from workflow.dag.execution import NODES, snakemake_argv
from workflow.run import plan as run_plan
from workflow.run.storage.results import nodes_to_avoid
from workflow.study import paths
from workflow.study.cell import SETS, Cell, Run, node_sets
from workflow.study.site import Site
from workflow.study.study import Study

# The size of jobs: nodes, walltime in whole minutes, cores, memory, GPUs, and what the site requests for all. Pure.


NUMBERS: Final = {"nodes": "nodes", "runtime": "minutes", "cores": "cores", "memory_mb": "memory_mb", "gpus": "gpus"}
"""Snakemake's resources that are numbers, and the fields of a job's size that they mean."""
WORDS: Final = ("queue", "account", "qos", "constraint", "parallel_environment")
"""Resources that are words, and fields of a job's size and of a site."""


Resources = dict[str, int | str | None]


def resources_of(size: JobSize) -> Resources:
    """Return the Snakemake resources of a job as numbers and words. A resource that the job does not request is None."""
    return {
        **{name: getattr(size, field) for name, field in NUMBERS.items()},
        "whole_nodes": int(size.whole_nodes),
        **{name: getattr(size, name) for name in WORDS},
        "directives": shlex.join(size.directives) or None,
    }


def size_of(resources: Mapping[str, Any]) -> JobSize:
    """Return the job size that Snakemake's resources mean, which the user may have changed by --set-resources. Raises ValueError."""
    for name in (*NUMBERS, "whole_nodes"):
        if not isinstance(resources.get(name), int | None):
            raise ValueError(f"the resource {name} must be a whole number, found {resources[name]!r}")
    values: dict[str, Any] = {field: resources.get(name) for name, field in NUMBERS.items()}
    values |= {name: str(resources[name]) for name in WORDS if resources.get(name)}
    values |= {"nodes": values["nodes"] or 1, "minutes": values["minutes"] or 1, "whole_nodes": bool(resources.get("whole_nodes"))}
    return JobSize(**values, directives=tuple(shlex.split(str(resources.get("directives") or ""))))


START_S: Final = 60.0
"""The seconds between the start of a job and that of its run: Snakemake starts twice in it."""
SHARD_MINUTES: Final = 240
SHARD_MEM_MB: Final = 2000
MIB: Final = 1 << 20


def job_minutes(limit_s: float, site: Site) -> int:
    """Return the whole minutes of the job of a run that may take `limit_s`, at most the site's.

    The run's own clock ends it first, with time to push.
    """
    return whole_minutes(limit_s + site.deadline_margin_s + START_S, site)


def whole_minutes(needed_s: float, site: Site) -> int:
    """Return a time as whole minutes of a job's walltime, rounded up; the site's walltime, beyond which its queue may refuse, is rounded
    down."""
    minutes = math.ceil(needed_s / 60)
    return minutes if site.walltime_s is None else min(minutes, max(1, int(site.walltime_s // 60)))


def node_share(cell: Cell, site: Site) -> tuple[int | None, int | None]:
    """Return the cores and the MB of memory of each node.

    None: what the node has, or what the scheduler gives; 0 MB: all of the node's.
    """
    if not site.share_nodes:
        return site.cpus_per_node, 0
    threads = cell.threads if isinstance(cell.threads, int) else 1
    cores, memory = cell.gpus_per_node * threads, None
    if site.gpus_per_node:
        part = min(1.0, cell.gpus_per_node / site.gpus_per_node)
        cores = max(cores, int((site.cpus_per_node or 0) * part))
        memory = int(site.memory_per_node_bytes * part) // MIB if site.memory_per_node_bytes else None
    return cores, memory


def run_size(cell: Cell, site: Site, limit_s: float) -> JobSize:
    """Return the size of the job of a run. GPUs are requested where the site says that its nodes have some."""
    cores, memory = node_share(cell, site)
    return JobSize(
        nodes=cell.nodes,
        minutes=job_minutes(limit_s, site),
        cores=cores,
        memory_mb=memory,
        gpus=cell.gpus_per_node if site.gpus_per_node else None,
        whole_nodes=not site.share_nodes,
        **requests_of_site(site),
    )


def shard_size(site: Site) -> JobSize:
    """Return the size of the job that builds one shard: one core of a node that is shared with others."""
    return JobSize(
        nodes=1,
        minutes=whole_minutes(60.0 * SHARD_MINUTES, site),
        cores=1,
        memory_mb=SHARD_MEM_MB,
        whole_nodes=False,
        **requests_of_site(site),
    )


def requests_of_site(site: Site) -> dict[str, Any]:
    """Return what all jobs of a site request: account, queue, constraint and directives."""
    return {name: getattr(site, name) for name in (*WORDS, "directives")}


# The one job of `slipway submit`.


BETWEEN_S: Final = 15.0
"""The most seconds between the end of a run and the start of the next on its nodes."""
BUILD_S: Final = 900.0
"""The seconds for datasets that are not built yet; larger ones are built before (`slipway dataset build`)."""


@dataclass(frozen=True, kw_only=True)
class Width:
    """The number of nodes (None: as many as the largest run needs), and whether repeats have nodes of their own, each as many as that."""

    nodes: int | None = None
    spread: bool = False


def plan_submission(
    study: Study,
    runs: Sequence[Run],
    width: Width,
    token: str,
    options: Sequence[str] = (),
    *,
    built: bool = True,
) -> BatchJob:
    """Plan the one job for `runs`. Raises ConfigError.

    `options`: more of snakemake's; `built`: whether the datasets are there.
    """
    site, nodes = study.site, width.nodes
    largest = max(run.cell.nodes for run in runs)
    if nodes is not None and nodes < largest:
        raise ConfigError(f"--nodes {nodes}: a run of the study needs {largest} nodes; valid: at least {largest}")
    sets = _num_sets(study, largest, nodes) if width.spread else 1
    count = nodes or largest * sets
    name = job_name(study.name, token)
    cores, memory = _share({run.cell.cell_id: run.cell for run in runs}.values(), study)
    return BatchJob(
        name=name,
        size=JobSize(
            nodes=count,
            minutes=minutes_for(study, runs, count, built, sets),
            cores=cores,
            memory_mb=memory,
            gpus=_gpus(runs, study),
            whole_nodes=not site.share_nodes,
            **requests_of_site(site),
        ),
        environ=((SETS, str(sets)),) if sets > 1 else (),
        output=str(study.results_dir / "logs" / f"{name}-{JOB_ID_PLACEHOLDER}.log"),
        directory=str(study.results_dir),
        argv=snakemake_argv(str(PROFILES / shared_profile(site.scheduler)), study.path, (*options, "--resources", f"{NODES}={count}")),
        setup=site.setup,
    )


def _num_sets(study: Study, largest: int, nodes: int | None) -> int:
    """Count the sets of nodes: as many as there are repeats, or as `nodes` make. Raises ConfigError."""
    if study.repeats < 2:
        raise ConfigError(f"--spread: {study.path} asks for one repeat of each cell, and only repeats are spread; set `repeats: 3` or more")
    sets = study.repeats if nodes is None else nodes // largest
    if sets < 2 or (nodes or 0) % largest:
        raise ConfigError(
            f"--spread --nodes {nodes}: sets of {largest} nodes are needed, which the largest run takes; valid: multiples of {largest} "
            f"from {2 * largest} on, {largest * study.repeats} for all {study.repeats} repeats on nodes of their own"
        )
    return sets


def minutes_for(study: Study, runs: Iterable[Run], nodes: int, built: bool = True, sets: int = 1) -> int:
    """Return the minutes in which `runs` are done on `nodes` nodes, or on their sets, even if each takes all its time.

    They are at most the site's.
    """
    taken = dict(zip((run.run_id for run in study.runs), node_sets((run.cell.cell_id for run in study.runs), sets), strict=True))
    widths: dict[int, list[int]] = defaultdict(list)
    for run in runs:
        widths[taken[run.run_id]].append(run.cell.nodes)
    rounds = max(num_rounds(found, nodes // sets) for found in widths.values())
    needed_s = rounds * (study.limits.walltime_s + BETWEEN_S) + study.site.deadline_margin_s + START_S + (0.0 if built else BUILD_S)
    return whole_minutes(needed_s, study.site)


def num_rounds(widths: Iterable[int], nodes: int) -> int:
    """Count how many runs of equal length go one after the other, where runs of so many nodes go side by side on `nodes` nodes."""
    left = Counter(widths)
    rounds = 0
    while left:
        rounds += 1
        free = nodes
        for width in sorted(left, reverse=True):
            taken = min(left[width], free // width)
            free -= taken * width
            left[width] -= taken
        left = +left
    return rounds


def _gpus(runs: Sequence[Run], study: Study) -> int | None:
    """Return all GPUs of whole nodes; of shared ones what the largest run takes."""
    site = study.site
    if not site.gpus_per_node:
        return None
    return max(run.cell.gpus_per_node for run in runs) if site.share_nodes else site.gpus_per_node


def _share(cells: Iterable[Cell], study: Study) -> tuple[int | None, int | None]:
    """Return cores and MB of each node: the most that a run takes."""
    shares = [node_share(cell, study.site) for cell in cells]
    cores = [cores for cores, _ in shares if cores is not None]
    memory = [memory for _, memory in shares if memory is not None]
    return max(cores, default=None), max(memory, default=None)


# The job of each run, as `slipway run` submits it.


JOB_TOKEN: Final = "0" * 8


def job_of_run(study: Study, cell: Cell, run_id: str) -> BatchJob:
    """Return the job that `slipway run` submits for a run; its name ends in 8 digits that are drawn at the submission."""
    results = str(study.results_dir)
    work = Work(mark=mark_of(study.name, results), rule=RUN, wildcards=run_id)
    command = shlex.join(run_plan.supervisor_argv(sys.executable, results, run_id, images=cell_needs.images_file(study)))
    size = replace(
        run_size(cell, study.site, study.limits.walltime_s),
        exclude=nodes_to_avoid(paths.run_dir(study.results_dir, run_id), time.time()),
    )
    return submitting.run_job(work, size, f"exec {command}", results, JOB_TOKEN)


def run_words(jobs: Jobs, job: BatchJob) -> str:
    """Return the command that submits the job of a run."""
    return " ".join([jobs.SERVER.submit[0], *(option.replace(JOB_TOKEN, "<token>") for option in jobs.options(job))])


def jobs_of_study(study: Study, runs: Sequence[Run]) -> list[dict[str, object]]:
    """Count each kind of job that `slipway run` submits, and add the command of the first."""
    jobs = execution.jobs_at(study.site)
    kinds: dict[JobSize, list[BatchJob]] = defaultdict(list)
    for run in runs:
        job = job_of_run(study, run.cell, run.run_id)
        kinds[job.size].append(job)
    return [{"jobs": len(found), jobs.SERVER.submit[0]: run_words(jobs, found[0])} for found in kinds.values()]


def submission_of(study: Study, runs: Sequence[Run]) -> dict[str, object]:
    """Return what `slipway submit` would request and execute now."""
    jobs = execution.jobs_at(study.site)
    job = plan_submission(study, runs, Width(), JOB_TOKEN, built=cell_needs.is_prepared(study, runs))
    return {jobs.SERVER.submit[0]: [option.replace(JOB_TOKEN, "<token>") for option in jobs.options(job)], "executes": list(job.argv)}
