"""Plan the one job in which `slipway submit` runs a study: how many nodes, how long, what it executes. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from base.errors import ConfigError
from cluster.installation import PROFILES
from cluster.schedulers import shared_profile
from cluster.schedulers.jobs import JOB_ID_PLACEHOLDER, BatchJob, JobSize, job_name
from workflow.dag.execution import NODES, snakemake_argv
from workflow.dag.job_size import START_S, node_share, requests_of_site, whole_minutes
from workflow.study.cell import SETS, Cell, Run, node_sets
from workflow.study.study import Study

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
