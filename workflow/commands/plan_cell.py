"""Print the plan of one cell, for `slipway plan --cell`; it is built by the functions that the run itself uses."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from base.humanize import and_more
from base.jsonfile import plain
from cluster import schedulers
from cluster.types import Allocation
from containers import engines, program_folder
from containers.spec import EnginePlan, Owner
from workflow.commands.watching import output
from workflow.dag import cell_needs, execution, job_plans
from workflow.run import plan as run_plan
from workflow.run.link import commands
from workflow.run.node.preparation import for_this_node, stage_argv
from workflow.run.node.workdir import WorkDirectory
from workflow.run.storage.results import attempt_numbers
from workflow.study import paths
from workflow.study.cell import Cell, Run
from workflow.study.site import device_of
from workflow.study.study import Study

MAX_COPIES: Final = 40
UNKNOWN_PORT: Final = 0
TOKEN: Final = "<token>"


def print_cell_plan(study: Study, cell: Cell, as_json: bool) -> None:
    """Print the plan of the cell's first repeat."""
    plan = plan_cell(study, cell, os.environ)
    if as_json:
        output.json_value(plan)
    else:
        _print_cell(plan)


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
