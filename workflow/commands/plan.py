"""`slipway plan`: print the plan of a study, or of one cell; refuse what is over its limit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from base.units import and_more, counted, format_duration, format_size
from cluster.schedulers import jobs_of, with_jobs
from workflow.commands.study_plan import CellPlan, StudyPlan, nodes_of, nodes_staged, plan_study
from workflow.commands.told_study import told_study
from workflow.commands.watching import show
from workflow.commands.watching.state import STATES, counts
from workflow.dag.execution import jobs_at
from workflow.dag.refusals import refuse_runs, refuse_site
from workflow.dag.requirements import DatasetRequirements
from workflow.study.baseline_keys import NOT_SERIES, flat, tells_nothing
from workflow.study.cell import NO_DATASET
from workflow.study.cell_maker import without_sum
from workflow.study.cell_words import beside_ids
from workflow.study.origin import refuse_foreign_results
from workflow.study.series import Series
from workflow.study.site import refuse_foreign_scheduler

MAX_ROWS: Final = 60
INDENT: Final = "  "
LEAST_SAID_S: Final = 1.0  # reading from storage that takes less is not worth a word


def main(path: Path, cell: str | None, site: str | None, as_json: bool) -> None:
    """Print the plan. Raises after it what Snakemake would refuse the study with."""
    study = told_study(path, site)
    if cell is not None:
        refuse_foreign_scheduler(study.site, os.environ)
        from workflow.commands import cell_plan

        cell_plan.main(study, study.cell(cell), as_json)
        refuse_foreign_results(study)
        return
    plan = plan_study(study)
    if as_json:
        show.json_value(to_json(plan))
    else:
        _print(plan)
    refuse_site(study, os.environ)
    refuse_foreign_results(study)
    refuse_runs(study, plan.to_run, os.environ, ask_scheduler=True)


def to_json(plan: StudyPlan) -> dict[str, Any]:
    """The plan for programs."""
    study = plan.study
    return {
        "study": study.name,
        "file": str(study.path),
        "site": study.site.to_json(),
        "results": str(study.results_dir),
        "baseline": dict(study.baseline),
        "runs": {**counts(plan.states), "to_run": [run.run_id for run in plan.to_run]},
        "gpu_hours": {"planned": plan.gpu_hours, "limit": study.limits.gpu_hours},
        "process_hours": plan.process_hours,
        "estimate": asdict(plan.outlook),
        "datasets": [_dataset_json(plan, needs) for needs in plan.datasets],
        "series": [
            {"cells": [cell.cell_id for cell in one.cells], "scaling": one.scaling, "has_baseline": one.has_baseline} for one in plan.series
        ],
        "cells": [
            {
                **cell.cell.to_json(),
                "states": dict(cell.states),
                "memory_bytes": cell.memory_bytes,
                "available_bytes": cell.available_bytes,
                "fits": cell.fits,
                "estimate": None if cell.estimate is None else asdict(cell.estimate),
            }
            for cell in plan.cells
        ],
        "notes": list(plan.notes),
        **_asked_of_schedulers(plan),
    }


def _asked_of_schedulers(plan: StudyPlan) -> dict[str, Any]:
    """What each scheduler with jobs would be asked, in both ways: None but for the site's own, where a run is left."""
    return {name: _asked(plan) if plan.study.site.scheduler == name and plan.to_run else None for name in with_jobs()}


def _asked(plan: StudyPlan) -> dict[str, Any]:
    from workflow.commands.job_plan import jobs_of_study, submission_of

    return {"jobs": jobs_of_study(plan.study, plan.to_run), "submit": submission_of(plan.study, plan.to_run)}


def _dataset_json(plan: StudyPlan, needs: DatasetRequirements) -> dict[str, Any]:
    return {
        "name": needs.name,
        "root": str(needs.root) if needs.root else None,
        "samples": needs.samples,
        "bytes": needs.bytes,
        "bytes_are": needs.bytes_are,
        "nodes": nodes_of(plan, needs.name),
        "nodes_staged": nodes_staged(plan, needs),
        "seconds_to_read": _seconds_to_read(plan, needs),
    }


def _seconds_to_read(plan: StudyPlan, needs: DatasetRequirements) -> float | None:
    """How long staging takes, where the site says how fast storage may be read, or earlier runs tell how fast it was."""
    limit = plan.study.site.storage_limit
    rates = [rate for rate in (limit.bytes_per_s if limit else None, plan.staged_per_s) if rate is not None]
    return needs.bytes / min(rates) if rates and needs.bytes is not None else None


def _print(plan: StudyPlan) -> None:
    study = plan.study
    product = f"{counted(len(study.cells), 'cell')} x {counted(study.repeats, 'repeat')} = {counted(len(study.runs), 'run')}"
    show.prose(f"{study.name}: {product}  ({study.path})", INDENT)
    site = study.site
    show.prose(f"site {study.site_words}: scheduler {site.scheduler}, engine {site.engine}, device {site.device}", INDENT)
    show.line(f"results: {study.results_dir}")
    total = ", ".join(f"{count} {state}" for state, count in counts(plan.states).items() if count)
    show.prose(f"runs: {total}; {len(plan.to_run)} to run", INDENT)
    for text in _cost(plan):
        show.prose(text, INDENT)
    show.line()
    if plan.datasets:
        show.table(("dataset", "samples", "bytes", "to stage"), [_dataset_row(plan, needs) for needs in plan.datasets])
    else:
        show.line("no dataset: nothing is built or staged")
    show.line()
    rows = _series_rows(plan.series)
    show.table(("series", "scaling", "processes", "cells"), rows[:MAX_ROWS])
    _more(len(rows), "series")
    show.line()
    told = beside_ids(study.cells)
    show.table(
        ("cell", *(["differs by"] if told else []), "batch", "global", "nodes", "per node", "memory", "of", "a run", "runs"),
        [_cell_row(cell, told) for cell in plan.cells[:MAX_ROWS]],
    )
    _more(len(plan.cells), "cells")
    for note in plan.notes:
        show.prose(f"note: {note}", INDENT)
    if jobs_of(study.site.scheduler) is not None and plan.to_run:
        _print_asked(plan)
    show.line(f"\none cell in full:\n  {study.command('plan', str(study.path), '--cell', study.cells[0].cell_id)}")


def _print_asked(plan: StudyPlan) -> None:
    asked, command = _asked(plan), jobs_at(plan.study.site).SUBMIT
    path = str(plan.study.path)
    show.line(f"\n{plan.study.command('run', path)} submits")
    for kind in asked["jobs"][:MAX_ROWS]:
        show.line(f"  {counted(kind['jobs'], 'job')}, the first: {kind[command]}")
    _more(len(asked["jobs"]), "kinds of jobs")
    show.line(f"{plan.study.command('submit', path)} submits one\n  {' '.join([command, *asked['submit'][command]])}")


def _more(count: int, what: str) -> None:
    if more := and_more(count, MAX_ROWS, what):
        show.line(f"... {more}; --json lists all")


def _cost(plan: StudyPlan) -> Iterator[str]:
    """The bound, which the limit is checked against, and the estimate, which it is not."""
    if not plan.to_run:
        yield "cost: nothing is left to run"
        return
    limits, outlook = plan.study.limits, plan.outlook
    most, runs = _hours(plan.gpu_hours, plan.process_hours), counted(len(plan.to_run), "run")
    walltime = format_duration(limits.walltime_s)
    yield f"cost, at most: {most}: {runs} x walltime {walltime} x processes (limit: {limits.gpu_hours:,g} GPU hours)"
    if outlook.own + outlook.scaled == 0:
        yield f"cost, estimated: not known: no run like these has a result in {plan.study.site.storage} yet"
        return
    about = f"about {_hours(outlook.gpu_hours, outlook.process_hours)}, {format_duration(outlook.run_s)} one run after the other"
    parts = {
        "by earlier runs of their cells": outlook.own,
        "by the work of cells of other sizes": outlook.scaled,
        "not known and not counted": outlook.unknown,
    }
    of = ", ".join(f"{counted(count, 'run')} {how}" for how, count in parts.items() if count)
    yield f"cost, estimated: {about}: {of}"


def _hours(gpu: float, process: float) -> str:
    """Those of GPUs, and of processes on the CPU, which cost none."""
    parts = [f"{gpu:,.2g} GPU hours" if gpu < 1 else f"{gpu:,.1f} GPU hours"] if gpu or not process else []
    parts += [f"{process:,.2g} process hours on the CPU" if process < 1 else f"{process:,.1f} process hours on the CPU"] if process else []
    return " and ".join(parts)


def _dataset_row(plan: StudyPlan, needs: DatasetRequirements) -> Sequence[object]:
    nodes = nodes_of(plan, needs.name)
    seconds = _seconds_to_read(plan, needs)
    staged = None if needs.bytes is None else f"{format_size(needs.bytes)} to {f'each of {nodes} nodes' if nodes > 1 else 'one node'}"
    there = nodes_staged(plan, needs)
    if staged and there:
        staged += f" ({there} {'has' if there == 1 else 'have'} it)"
    if staged and seconds is not None and seconds >= LEAST_SAID_S:
        staged += f", about {format_duration(seconds)} from storage"
    size = needs.bytes_are if needs.bytes is None else f"{format_size(needs.bytes)}, {needs.bytes_are}"
    return needs.name, needs.samples, size, staged


def _series_rows(series: Sequence[Series]) -> list[Sequence[object]]:
    return [
        (label, one.scaling + ("" if one.has_baseline else ", no baseline"), ", ".join(map(str, one.world_sizes)), len(one.cells))
        for label, one in zip(_labels(series), series, strict=True)
    ]


def _labels(series: Sequence[Series]) -> list[str]:
    """Model and dataset, and whatever else differs between the series."""
    keys = [one.cells[0].to_json() for one in series]
    for key in NOT_SERIES + ("dataset_spec",):
        for one in keys:
            one.pop(key)
    flat = [_flat(one) for one in keys]
    names = sorted({name for one in flat for name in one} - {"model", "dataset"} - tells_nothing(flat))
    varying = [name for name in names if len({json.dumps(one.get(name)) for one in flat}) > 1]
    trained = [f"{one['model']} on {one['dataset']}" if one["dataset"] != NO_DATASET else str(one["model"]) for one in flat]
    return [" ".join([what, *(f"{name}={one.get(name)}" for name in varying)]) for what, one in zip(trained, flat, strict=True)]


def _flat(keys: dict[str, Any]) -> dict[str, Any]:
    """Nested keys as `optimizer.momentum`; a total that only adds up the other steps says nothing new."""
    return flat({**keys, "steps": without_sum(keys["steps"] or {})})


def _cell_row(plan: CellPlan, told: Mapping[str, str]) -> Sequence[object]:
    """`told`: of each cell what its id has as digits only; nothing where ids tell all."""
    cell = plan.cell
    name = (cell.cell_id, told[cell.cell_id]) if told else (cell.cell_id,)
    states = ", ".join(f"{plan.states[state]} {state}" for state in STATES if plan.states[state])
    need = None if plan.memory_bytes is None else format_size(plan.memory_bytes)
    have = None if plan.available_bytes is None else format_size(plan.available_bytes) + ("" if plan.fits is not False else " TOO LITTLE")
    takes = None if plan.estimate is None else f"~{format_duration(plan.estimate.seconds)}"
    return *name, cell.batch_size, cell.global_batch_size, cell.nodes, cell.gpus_per_node, need, have, takes, states
