"""Print the plan of a study for `slipway plan`; refuse a study that is over its limit."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import structs

from base.errors import ConfigError
from base.humanize import and_more, counted, format_duration, format_size
from base.jsonfile import plain
from cluster import schedulers
from cluster.types import Allocation
from containers import engines, program_folder
from containers.spec import EnginePlan, Owner
from workflow.commands import chosen_study, options, tables
from workflow.commands.watching import output
from workflow.commands.watching.watch import RunState, counts, study_states
from workflow.dag import cell_needs, execution, job_plans, refusals
from workflow.run import plan as run_plan
from workflow.run.link import commands
from workflow.run.node.preparation import for_this_node, stage_argv
from workflow.run.node.workdir import WorkDirectory
from workflow.run.storage.results import attempt_numbers
from workflow.study import paths, publishing
from workflow.study.cell import Cell, Run, datasets_of
from workflow.study.series import keys_not_in_ids, without_baseline
from workflow.study.site import device_of, refuse_other_scheduler
from workflow.study.study import Study


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The contents of `slipway plan STUDY`.

    By the id of a cell: how its runs stand, and how long one takes by what runs took before.
    """

    study: Study
    states: tuple[RunState, ...]
    of_cells: Mapping[str, Mapping[str, int]]
    estimates: Mapping[str, cell_needs.Estimate | None]
    datasets: Mapping[str, cell_needs.DatasetRequirements]
    notes: tuple[str, ...]

    @property
    def gpu_hours(self) -> float:
        """Return the bound of the runs still to be made: walltime x GPUs."""
        return cell_needs.most_hours_on("cuda", self.study, self.to_run)

    @property
    def process_hours(self) -> float:
        """Return the bound of the runs on the CPU still to be made: walltime x processes."""
        return cell_needs.most_hours_on("cpu", self.study, self.to_run)

    @property
    def forecast(self) -> cell_needs.Forecast:
        """Return the estimate for the runs still to be made, as far as anything is known."""
        return cell_needs.forecast_of(self.to_run, self.study.site, self.estimates)

    @property
    def to_run(self) -> list[Run]:
        return [state.run for state in self.states if state.to_run]

    def memory_bytes(self, cell: Cell) -> int | None:
        """Return what a process of the cell needs at the least."""
        need = cell_needs.memory_of(cell, self.datasets.get(cell.dataset))
        return None if need is None else need.total_bytes


def plan_study(study: Study) -> StudyPlan:
    """Look at storage and this machine, and put the plan together."""
    states, silence = study_states(study)
    by_cell: dict[str, list[RunState]] = {cell.cell_id: [] for cell in (*study.cells, *study.profiles)}
    for state in states:
        by_cell[state.run.cell.cell_id].append(state)
    pasts = cell_needs.past_runs(study.site.storage, study.cells)
    return StudyPlan(
        study=study,
        states=states,
        of_cells={cell_id: counts(found) for cell_id, found in by_cell.items()},
        estimates={cell.cell_id: cell_needs.estimate_of(cell, device_of(cell.device, study.site), pasts) for cell in study.cells},
        datasets={name: cell_needs.requirements_of(study, name) for name in datasets_of(study.cells)},
        notes=(*study.notes, *_baseline_notes(study), *([silence] if silence else [])),
    )


def nodes_of(plan: StudyPlan, dataset: str) -> int:
    """Return the most nodes of one run on that dataset, which is the number of caches that it fills at once."""
    return max(cell.nodes for cell in plan.study.cells if cell.dataset == dataset)


def _baseline_notes(study: Study) -> Iterator[str]:
    for lacks, count in without_baseline(study.cells, study.baseline).items():
        yield f"{counted(count, 'cell has', 'cells have')} {lacks}: speed-up is null"


MAX_ROWS: Final = 60
INDENT: Final = "  "
LONGEST_SIZE: Final = 7  # digits
MIN_SHOWN_S: Final = 1.0  # reading from storage that takes less is not worth a word


def main(
    study: options.StudyArgument = options.DEFAULT_STUDY,
    cell: Annotated[str | None, typer.Option("--cell", help="Show one cell in full: argv, containers, cell.json, copy list.")] = None,
    predict: Annotated[
        str | None, typer.Option("--predict", metavar="N[,N...]", help="From its results: what so many GPUs (processes) would bring.")
    ] = None,
    samples: tables.SamplesOption = 1e6,
    site: options.SiteOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what a study will run, need and cost, or with --predict what more nodes would bring. Nothing is written.

    The plan lists the cells, their runs, and how many are done. It gives the most GPU hours that they can take, and an estimate by
    earlier runs. Each dataset has its samples, its bytes and the time to stage it, and each cell the least memory of a process. With a
    scheduler, the plan also has the commands that submit the jobs.

    A missing source is refused before the plan is printed. After the plan, the command refuses what `slipway run` would refuse, with
    the same message and exit code. Runs that have a result are not checked.
    """
    if predict is not None:
        _print_prediction(study, site, sizes_of(predict), samples, as_json)
        return
    loaded = chosen_study.load_chosen_study(study, site)
    if cell is not None:
        refuse_other_scheduler(loaded.site, os.environ)
        found = plan_cell(loaded, loaded.cell(cell), os.environ)
        output.json_value(found) if as_json else _print_cell(found)
        publishing.refuse_results_of_others(loaded)
        return
    plan = plan_study(loaded)
    refusals.refuse_missing_sources(loaded, datasets_of(run.cell for run in plan.to_run))
    if as_json:
        output.json_value(to_json(plan))
    else:
        _print(plan)
    refusals.refuse_site(loaded, os.environ)
    publishing.refuse_results_of_others(loaded)
    refusals.refuse_runs(loaded, plan.to_run, os.environ, ask_scheduler=True)


def sizes_of(text: str) -> tuple[int, ...]:
    """Parse `16,32`. Raises ConfigError for what is no number of processes."""
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not (word.isascii() and word.isdecimal() and len(word) <= LONGEST_SIZE and int(word) > 0)]
    if wrong:
        raise ConfigError(f"--predict {text}: {wrong[0]!r} is no number of GPUs or processes; valid: such as 16,32")
    return tuple(dict.fromkeys(int(word) for word in words))


def _print_prediction(path: Path, site: str | None, sizes: Sequence[int], samples: float, as_json: bool) -> None:
    """Print table `prediction` for these numbers of processes, of the results that are there."""
    tables.refuse_samples(samples)
    analysis = tables.analysis_of(chosen_study.results_as_they_are(path, site, []))
    from workflow.report.prediction_table import prediction

    tables.output_table(prediction(analysis, sizes, samples), None, as_json)


def to_json(plan: StudyPlan) -> dict[str, Any]:
    """Return the plan as JSON-able values, for programs."""
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
        "estimate": asdict(plan.forecast),
        "datasets": [_dataset_json(plan, needs) for needs in plan.datasets.values()],
        "cells": [
            {
                **cell.to_json(),
                "states": dict(plan.of_cells[cell.cell_id]),
                "memory_bytes": plan.memory_bytes(cell),
                "estimate": None if (found := plan.estimates[cell.cell_id]) is None else asdict(found),
            }
            for cell in study.cells
        ],
        "notes": list(plan.notes),
        # what the site's own scheduler would be asked, for a job per run and for one job, where a run is left
        **{name: _requests(plan) if plan.study.site.scheduler == name and plan.to_run else None for name in schedulers.with_jobs()},
    }


def _requests(plan: StudyPlan) -> dict[str, Any]:
    return {"jobs": job_plans.jobs_of_study(plan.study, plan.to_run), "submit": job_plans.submission_of(plan.study, plan.to_run)}


def _dataset_json(plan: StudyPlan, needs: cell_needs.DatasetRequirements) -> dict[str, object]:
    return {
        "name": needs.name,
        "root": str(needs.root) if needs.root else None,
        "samples": needs.samples,
        "bytes": needs.bytes,
        "bytes_are": needs.bytes_are,
        "check": needs.checked[0],
        "statistics": needs.checked[1],
        "nodes": nodes_of(plan, needs.name),
        "seconds_to_read": _seconds_to_read(plan, needs),
    }


def _seconds_to_read(plan: StudyPlan, needs: cell_needs.DatasetRequirements) -> float | None:
    """Estimate the seconds of staging, where the site limits what storage gives."""
    limit = plan.study.site.storage_limit
    rate = None if limit is None else limit.bytes_per_s
    return needs.bytes / rate if rate and needs.bytes is not None else None


def _print(plan: StudyPlan) -> None:
    study = plan.study
    measured = counted(len(study.runs) - len(study.profiles), "run")
    product = f"{counted(len(study.cells), 'cell')} x {counted(study.repeats, 'repeat')} = {measured}"
    product += f", and {counted(len(study.profiles), 'profile')}" if study.profiles else ""
    output.prose(f"{study.name}: {product}  ({study.path})", INDENT)
    site = study.site
    output.prose(f"site {study.site_words}: scheduler {site.scheduler}, engine {site.engine}, device {site.device}", INDENT)
    output.line(f"results: {study.results_dir}")
    total = ", ".join(f"{count} {state}" for state, count in counts(plan.states).items() if count)
    output.prose(f"runs: {total}; {len(plan.to_run)} to run", INDENT)
    for text in _cost(plan):
        output.prose(text, INDENT)
    output.line()
    if plan.datasets:
        rows = [_dataset_row(plan, needs) for needs in plan.datasets.values()]
        output.table(("dataset", "samples", "bytes", "check", "statistics", "to stage"), rows)
    else:
        output.line("no dataset: nothing is built or staged")
    output.line()
    differences = keys_not_in_ids(study.cells)
    output.table(
        ("cell", *(["differs by"] if differences else []), "batch", "global", "nodes", "per node", "memory", "a run", "runs"),
        [_cell_row(plan, cell, differences) for cell in study.cells[:MAX_ROWS]],
    )
    _more(len(study.cells), "cells")
    for note in plan.notes:
        output.prose(f"note: {note}", INDENT)
    if schedulers.jobs_of(study.site.scheduler) is not None and plan.to_run:
        _print_requests(plan)
    output.line(f"\none cell in full:\n  {study.command('plan', str(study.path), '--cell', study.cells[0].cell_id)}")


def _print_requests(plan: StudyPlan) -> None:
    requests, command = _requests(plan), execution.jobs_at(plan.study.site).SERVER.submit[0]
    path = str(plan.study.path)
    output.line(f"\n{plan.study.command('run', path)} submits")
    for kind in requests["jobs"][:MAX_ROWS]:
        output.line(f"  {counted(kind['jobs'], 'job')}, the first: {kind[command]}")
    _more(len(requests["jobs"]), "kinds of jobs")
    output.line(f"{plan.study.command('submit', path)} submits one\n  {' '.join([command, *requests['submit'][command]])}")


def _more(count: int, what: str) -> None:
    if more := and_more(count, MAX_ROWS, what):
        output.line(f"... {more}; --json lists all")


def _cost(plan: StudyPlan) -> Iterator[str]:
    """Yield the lines on cost: the bound, which the limit is checked against, and the estimate, which it is not."""
    if not plan.to_run:
        yield "cost: nothing is left to run"
        return
    limits, forecast = plan.study.limits, plan.forecast
    most, runs = _hours(plan.gpu_hours, plan.process_hours), counted(len(plan.to_run), "run")
    walltime = format_duration(limits.walltime_s)
    yield f"cost, at most: {most}: {runs} x walltime {walltime} x processes (limit: {limits.gpu_hours:,g} GPU hours)"
    if forecast.own + forecast.scaled == 0:
        yield f"cost, estimated: not known: no run like these has a result in {plan.study.site.storage} yet"
        return
    about = f"about {_hours(forecast.gpu_hours, forecast.process_hours)}, {format_duration(forecast.run_s)} one run after the other"
    parts = {
        "by earlier runs of their cells": forecast.own,
        "by the work of cells of other sizes": forecast.scaled,
        "not known and not counted": forecast.unknown,
    }
    of = ", ".join(f"{counted(count, 'run')} {how}" for how, count in parts.items() if count)
    yield f"cost, estimated: {about}: {of}"


def _hours(gpu: float, process: float) -> str:
    parts = [f"{gpu:,.2g} GPU hours" if gpu < 1 else f"{gpu:,.1f} GPU hours"] if gpu or not process else []
    parts += [f"{process:,.2g} process hours on the CPU" if process < 1 else f"{process:,.1f} process hours on the CPU"] if process else []
    return " and ".join(parts)


def _dataset_row(plan: StudyPlan, needs: cell_needs.DatasetRequirements) -> Sequence[object]:
    nodes = nodes_of(plan, needs.name)
    seconds = _seconds_to_read(plan, needs)
    staged = None if needs.bytes is None else f"{format_size(needs.bytes)} to {f'each of {nodes} nodes' if nodes > 1 else 'one node'}"
    if staged and seconds is not None and seconds >= MIN_SHOWN_S:
        staged += f", about {format_duration(seconds)} from storage"
    size = needs.bytes_are if needs.bytes is None else f"{format_size(needs.bytes)}, {needs.bytes_are}"
    return needs.name, needs.samples, size, *needs.checked, staged


def _cell_row(plan: StudyPlan, cell: Cell, differences: Mapping[str, str]) -> Sequence[object]:
    """Return the row of a cell. `differences`: by cell id the keys that its hash stands for; empty where ids name all."""
    name = (cell.cell_id, differences[cell.cell_id]) if differences else (cell.cell_id,)
    states = ", ".join(f"{count} {state}" for state, count in plan.of_cells[cell.cell_id].items() if count)
    memory, estimate = plan.memory_bytes(cell), plan.estimates[cell.cell_id]
    need = None if memory is None else format_size(memory)
    takes = None if estimate is None else f"~{format_duration(estimate.seconds)}"
    return *name, cell.batch_size, cell.global_batch_size, cell.nodes, cell.gpus_per_node, need, takes, states


# One cell in full, for `--cell`; it is built by the functions that the run itself uses.


MAX_COPIES: Final = 40
UNKNOWN_PORT: Final = 0
TOKEN: Final = "<token>"


def plan_cell(study: Study, cell: Cell, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the plan of a cell's first repeat as JSON-able values.

    A value that is known only at the start stands in angle brackets, or as port 0. Raises UnsupportedRequest for a scheduler that is not
    here, AllocationError without the GPUs.
    """
    site = study.site
    scheduler = schedulers.get_scheduler(site.scheduler)
    run_id = f"{cell.cell_id}-r1"
    attempt = max(attempt_numbers(paths.run_dir(study.results_dir, run_id)), default=0) + 1
    request = run_plan.allocation_request(cell, study.cells, site)
    allocation = schedulers.plan_allocation(site.scheduler, request, environ)
    framework = run_plan.describe_framework(cell, device_of(cell.device, site))
    run_plan.check_framework(framework, cell.nodes)
    needs = cell_needs.requirements_of(study, cell.dataset) if cell.has_dataset else None
    supervisor = run_plan.supervisor_argv(sys.executable, str(study.results_dir), run_id, images=cell_needs.images_file(study))
    argv = run_plan.node_argv(sys.executable, (allocation.head.address, UNKNOWN_PORT), site.setup)
    document = run_plan.cell_document(Run(cell=cell, repeat=1), attempt, allocation, cell_needs.model_of(cell, needs))
    workload = run_plan.Workload(
        owner=Owner(run_id=run_id, attempt=attempt, tag=run_plan.attempt_tag(run_id, attempt, TOKEN), uid=os.geteuid()),
        framework=run_plan.at_site(framework, site),
        cell=document,
    )
    return {
        "run_id": run_id,
        "attempt": attempt,
        **{name: _submitted(study, cell, run_id) if site.scheduler == name else None for name in schedulers.with_jobs()},
        "supervisor": list(supervisor),
        "allocation": plain(allocation),
        "launches": [{"nodes": list(launch.nodes), "argv": list(launch.argv)} for launch in scheduler.launches(allocation, argv)],
        "nodes": [_node(study, allocation, index, workload, needs) for index in range(len(allocation.nodes))],
        "cell_json": document.to_json(),
        "program": _program(framework),
        "dataset": None
        if needs is None
        else {
            "name": needs.name,
            "root": str(needs.root) if needs.root else None,
            "bytes": needs.bytes,
            "bytes_are": needs.bytes_are,
        },
        "copies": [{"path": file.path, "bytes": file.bytes, "chunks": len(file.chunks)} for file in needs.files]
        if needs is not None and needs.files is not None
        else None,
        "results": str(paths.attempts_dir(study.results_dir, run_id) / str(attempt)),
    }


def _program(framework: run_plan.Framework) -> dict[str, object] | None:
    if not framework.own:
        return None
    taken = program_folder.look_at(Path(framework.folder))._asdict() if framework.folder else {}
    return {"name": framework.name, "folder": framework.folder or None, **taken}


def _submitted(study: Study, cell: Cell, run_id: str) -> dict[str, str]:
    jobs = execution.jobs_at(study.site)
    return {jobs.SERVER.submit[0]: job_plans.run_words(jobs, job_plans.job_of_run(study, cell, run_id))}


def _node(
    study: Study, allocation: Allocation, index: int, workload: run_plan.Workload, needs: cell_needs.DatasetRequirements | None
) -> dict[str, object]:
    """Return what the node program of one node will start: the stager, then the engine's processes."""
    site, node = study.site, allocation.nodes[index]
    cache = schedulers.node_cache(site.scheduler, site.cache.path, node)
    name = None if needs is None else needs.root.name if needs.root else f"{needs.name}-<digest>"
    stage: tuple[str, ...] = ()
    if name is not None:
        source = str(study.datasets_dir / name)
        plan = commands.staging_plan(site, allocation, workload.owner.tag, "", source)
        stage = stage_argv(sys.executable, structs.replace(plan, cache=str(cache)), index, source)
    directory = WorkDirectory(cache, workload.owner.tag)
    framework = workload.framework
    ports = [[UNKNOWN_PORT for _ in run_plan.port_names(framework, workload.cell, host)] for host in range(len(allocation.nodes))]
    folder = str(directory.program) if engines.in_container(site.engine) or framework.own else framework.folder
    spec = run_plan.container_spec(
        workload, allocation, index, directory.paths(name and str(cache / "datasets" / name / workload.cell.data_folder), folder), ports
    )
    return {
        "name": node.name,
        "cores": list(node.cores),
        "gpus": list(node.gpus),
        "cache": str(cache),
        "work_directory": str(directory.path),
        "stage": list(stage),
        "container": _container(
            engines.get_engine(site.engine).plan(for_this_node(site.engine, spec, allocation.memory_per_node_bytes), os.environ)
        ),
    }


def _container(plan: EnginePlan) -> dict[str, Any]:
    processes = [
        {"name": one.name, "ranks": list(one.ranks), "argv": list(one.argv), "env": dict(one.env), "cwd": one.cwd} for one in plan.processes
    ]
    found = {"engine": plan.engine, "name": plan.spec.name, "image": plan.spec.image, "device": plan.spec.device, "processes": processes}
    if plan.container is None:
        return found
    engine = {"run": list(plan.container.run), "remove": list(plan.container.remove), "files": dict(plan.container.files)}
    return {**found, **engine}


def _print_cell(plan: Mapping[str, Any]) -> None:
    output.line(f"run {plan['run_id']}, attempt {plan['attempt']}; what is decided at the start stands in <>, or as port 0\n")
    copies, document = plan["copies"], plan["cell_json"]
    more = [] if copies is None else [and_more(len(copies), MAX_COPIES, "files; --json lists all")]
    layers = document["model_layers"] and f"{len(document['model_layers'])} layers; --json lists them"
    shown = {**plan, "copies": copies and [*copies[:MAX_COPIES], *filter(None, more)], "cell_json": {**document, "model_layers": layers}}
    for name, value in shown.items():
        _print_value(name, value, "")


def _print_value(name: str, value: object, indent: str) -> None:
    """Print a value of the plan, each in a line: words of a command as for a shell, and values of values below their name."""
    if name == "env" and isinstance(value, Mapping):
        value = [f"{variable}={text}" for variable, text in sorted(value.items())]
    if isinstance(value, Mapping):
        output.line(f"{indent}{name}:")
        for key, inner in value.items():
            _print_value(key, inner, f"{indent}  ")
    elif isinstance(value, Sequence) and any(isinstance(inner, Mapping) for inner in value):
        for number, inner in enumerate(value):
            _print_value(f"{name}[{number}]", inner, indent)
    else:
        text = value if isinstance(value, str) or not isinstance(value, Sequence) else shlex.join(map(str, value))
        output.line(f"{indent}{name}: {'-' if text is None else text}")
