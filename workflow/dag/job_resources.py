"""The resources of Snakemake's rules. On this machine a run asks for none; what all runs have in common costs nothing per job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workflow.dag.execution import NODES, Mode, Way
from workflow.dag.job_size import run_size, shard_size
from workflow.dag.run_job import resources_of
from workflow.study.study import Study


def resources_of_runs(study: Study, way: Way, lookup: Callable[[Callable[[str], Any]], Any]) -> dict[str, Any]:
    """Of the rule whose jobs are runs: values where all cells agree, functions of the wildcards where they do not,
    which `lookup` makes of functions of the run's id."""
    if way == "local":
        return {}
    of_cell = {cell.cell_id: _of_cell(study, way, cell) for cell in study.cells}
    of_run = {run.run_id: of_cell[run.cell.cell_id] for run in study.runs}
    names = next(iter(of_cell.values()))
    found = {}
    for name in names:
        values = {asked[name] for asked in of_cell.values()}
        if len(values) > 1:
            found[name] = lookup(_of_run(of_run, name))
        elif values != {None}:
            found[name] = values.pop()
    return found


def resources_of_shards(study: Study, way: Way) -> dict[str, Any]:
    """Of the rule that builds shards: jobs of their own only where each run is one."""
    if way != "jobs":
        return {}
    asked = resources_of(shard_size(study.site))
    return {name: value for name, value in asked.items() if value is not None}


def resources_of_staging(mode: Mode) -> dict[str, Any]:
    """Of the rule that stages a dataset on all nodes of the job, which no run may stand beside."""
    return {NODES: mode.nodes} if mode.way == "allocation" else {}


def shard_threads(way: Way, cores: int | None, host_cores: int) -> int:
    """Threads that a shard is counted with: as many shards at once as this host has cores, whatever number of them Snakemake is told."""
    return max(1, (cores or 1) // host_cores) if way == "allocation" else 1


def _of_cell(study: Study, way: Way, cell: Any) -> dict[str, Any]:
    if way == "allocation":
        return {NODES: cell.nodes}
    return resources_of(run_size(cell, study.site, study.limits.walltime_s))


def _of_run(of_run: Mapping[str, Mapping[str, Any]], name: str) -> Callable[[str], Any]:
    return lambda run_id: of_run[run_id][name]
