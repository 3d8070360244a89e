"""The one job in which `slipway submit` runs a study: how many nodes, how long, what it executes. Pure."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from cluster.slurm.batch_script import BatchJob, job_name
from workflow.study.cell import Cell, Run
from workflow.study.job_size import START_S, node_share
from workflow.study.site import CHECKOUT
from workflow.study.study import Study

BETWEEN_S: Final = 15.0
"""Between the end of a run and the start of the next on its nodes, at the most."""
BUILD_S: Final = 900.0
"""For datasets that are not built yet; larger ones are built before (`slipway dataset build`)."""


def plan_submission(
    study: Study, runs: Sequence[Run], nodes: int | None, token: str, options: Sequence[str] = (), *, built: bool = True
) -> BatchJob:
    """The job for `runs`, of as many nodes as the largest of them needs, or `nodes`. Raises ConfigError.

    `options`: more of snakemake's; `built`: whether the datasets are there.
    """
    site = study.site
    largest = max(run.cell.nodes for run in runs)
    if nodes is not None and nodes < largest:
        raise ConfigError(f"--nodes {nodes}: a run of the study needs {largest} nodes; valid: at least {largest}")
    count = nodes or largest
    name = job_name(study.name, token)
    cores, memory = _share({run.cell.cell_id: run.cell for run in runs}.values(), study)
    return BatchJob(
        name=name,
        nodes=count,
        minutes=minutes_for(study, runs, count, built),
        output=str(study.results_dir / "logs" / f"{name}-%j.log"),
        directory=str(CHECKOUT),
        argv=snakemake_argv(study.path, count, options),
        whole_nodes=not site.share_nodes,
        cores=cores,
        memory_mb=memory,
        gres=_gres(runs, study),
        queue=site.queue,
        account=site.account,
        qos=site.qos,
        constraint=site.constraint,
        directives=site.directives,
        setup=site.setup,
    )


def snakemake_argv(study: Path, nodes: int, options: Sequence[str]) -> tuple[str, ...]:
    """What the job executes: the Snakemake of this installation, which the nodes must see too."""
    profile = str(CHECKOUT / "profiles" / "slurm-allocation")
    argv = (sys.executable, "-m", "snakemake", "--profile", profile, "--configfile", str(study.absolute()))
    return (*argv, *options, "--resources", f"nodes={nodes}")


def minutes_for(study: Study, runs: Iterable[Run], nodes: int, built: bool = True) -> int:
    """Minutes in which `runs` are done on `nodes` nodes even if each takes all its time; at most the site's."""
    rounds = num_rounds((run.cell.nodes for run in runs), nodes)
    wanted = rounds * (study.limits.walltime_s + BETWEEN_S) + study.site.deadline_margin_s + START_S + (0.0 if built else BUILD_S)
    return math.ceil(min(wanted, study.site.walltime_s or math.inf) / 60)


def num_rounds(widths: Iterable[int], nodes: int) -> int:
    """How many runs of equal length one after the other, where runs of so many nodes go side by side on `nodes` nodes."""
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


def _gres(runs: Sequence[Run], study: Study) -> str | None:
    """All GPUs of whole nodes; of shared ones what the largest run takes."""
    site = study.site
    if not site.gpus_per_node:
        return None
    return f"gpu:{max(run.cell.gpus_per_node for run in runs) if site.share_nodes else site.gpus_per_node}"


def _share(cells: Iterable[Cell], study: Study) -> tuple[int | None, int | None]:
    """Cores and MB of each node: the most that a run takes."""
    shares = [node_share(cell, study.site) for cell in cells]
    cores = [cores for cores, _ in shares if cores is not None]
    memory = [memory for _, memory in shares if memory is not None]
    return max(cores, default=None), max(memory, default=None)
