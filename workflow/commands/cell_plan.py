"""`slipway plan --cell ID`: everything that a run of one cell will start and copy, built by the functions that the run itself uses.

What is known only at the start stands in angle brackets, or as port 0.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from base.units import and_more, counted, format_size
from cluster.schedulers import get_scheduler, with_jobs
from cluster.types import Allocation
from containers.engines import get_engine, in_container
from containers.labels import Owner
from containers.models import MODELS
from containers.program_folder import look_at
from containers.spec import EnginePlan
from workflow.commands.watching import show
from workflow.dag.execution import jobs_at
from workflow.dag.image_file import images_file
from workflow.dag.requirements import DatasetRequirements, dataset_needs, model_of
from workflow.run.container import container_spec
from workflow.run.framework import describe_framework
from workflow.run.node.node_setup import for_this_node
from workflow.run.node.stage_child import PeerGroup, check_argv, group_argv, peer_group_argv, stage_argv
from workflow.run.node.workdir import WorkDirectory
from workflow.run.plan import (
    Framework,
    Workload,
    allocation_request,
    at_site,
    attempt_tag,
    cell_document,
    check_framework,
    node_argv,
    supervisor_argv,
)
from workflow.run.ports import port_names
from workflow.run.storage.results import attempt_numbers
from workflow.study import paths
from workflow.study.cell import Cell, Run
from workflow.study.site import device_of, storage_limit
from workflow.study.study import Study

MAX_COPIES: Final = 40
UNKNOWN_PORT: Final = 0
TOKEN: Final = "<token>"


def main(study: Study, cell: Cell, as_json: bool) -> None:
    """Print the plan of the cell's first repeat."""
    plan = plan_cell(study, cell, os.environ)
    if as_json:
        show.json_value(plan)
    else:
        _print(plan)


def plan_cell(study: Study, cell: Cell, environ: Mapping[str, str]) -> dict[str, Any]:
    """The plan as JSON-able values. Raises UnsupportedRequest for a scheduler that is not here, AllocationError without the GPUs."""
    site = study.site
    scheduler = get_scheduler(site.scheduler)
    run_id = f"{cell.cell_id}-r1"
    attempt = max(attempt_numbers(paths.run_dir(study.results_dir, run_id)), default=0) + 1
    request = allocation_request(cell, study.cells, site)
    allocation = scheduler.planned(request, environ)
    framework = describe_framework(cell, device_of(cell.device, site))
    check_framework(framework, cell.nodes)
    needs = dataset_needs(study, cell.dataset) if cell.has_dataset else None
    argv = node_argv(sys.executable, (allocation.head.address, UNKNOWN_PORT), site.setup)
    document = cell_document(Run(cell=cell, repeat=1), attempt, allocation, model_of(cell, needs))
    workload = Workload(
        owner=Owner(run_id=run_id, attempt=attempt, tag=attempt_tag(run_id, attempt, TOKEN), uid=os.geteuid()),
        framework=at_site(framework, site),
        cell=document,
    )
    return {
        "run_id": run_id,
        "attempt": attempt,
        **{name: _submitted(study, cell, run_id) if site.scheduler == name else None for name in with_jobs()},
        "supervisor": list(supervisor_argv(sys.executable, str(study.results_dir), run_id, images=images_file(study))),
        "allocation": allocation.to_json(),
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


def _program(framework: Framework) -> dict[str, Any] | None:
    """Of a program of the study: what is taken along of its folder, as it is now."""
    if not framework.own:
        return None
    taken = look_at(Path(framework.folder))._asdict() if framework.folder else {}
    return {"name": framework.name, "folder": framework.folder or None, **taken}


def _submitted(study: Study, cell: Cell, run_id: str) -> dict[str, str]:
    """The command that submits the run as a job of its own."""
    from workflow.commands.job_plan import job_of_run, run_words

    jobs = jobs_at(study.site)
    return {jobs.SUBMIT: run_words(jobs, job_of_run(study, cell, run_id))}


def _node(study: Study, allocation: Allocation, index: int, workload: Workload, needs: DatasetRequirements | None) -> dict[str, Any]:
    """What the node program of one node will start: the stager, then the engine's processes."""
    site, node = study.site, allocation.nodes[index]
    cache = get_scheduler(site.scheduler).node_cache(site.cache.path, node)
    name = None if needs is None else needs.root.name if needs.root else f"{needs.name}-<digest>"
    peer_group = PeerGroup(index=index, nodes=len(allocation.nodes), address=node.address, token=b"") if len(allocation.nodes) > 1 else None
    stage: tuple[str, ...] = ()
    if name is not None:
        rate = storage_limit(site).bytes_per_s
        stage = stage_argv(sys.executable, str(study.datasets_dir / name), str(cache), None, site.cache.max_bytes, rate)
        stage += group_argv(site.shared == "group") + check_argv(site.cache.check_s) + peer_group_argv(peer_group)
    directory = WorkDirectory(cache, workload.owner.tag)
    framework = workload.framework
    ports = [[UNKNOWN_PORT for _ in port_names(framework, workload.cell, host)] for host in range(len(allocation.nodes))]
    folder = str(directory.program) if in_container(site.engine) or framework.own else framework.folder
    spec = container_spec(
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
            get_engine(site.engine).plan(for_this_node(site.engine, spec, allocation.memory_per_node_bytes), os.environ)
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
    return {**found, **engine, "talks_to": plan.container.where}


def _print(plan: Mapping[str, Any]) -> None:
    show.line(f"run {plan['run_id']}, attempt {plan['attempt']}; what is decided at the start stands in <>, or as port 0\n")
    for asked in (plan[name] for name in with_jobs() if plan[name]):
        show.line(f"job, by `slipway run` (`slipway submit` takes one for all runs):\n  {' '.join(asked.values())}")
    show.line(f"supervisor:\n  {shlex.join(plan['supervisor'])}")
    for launch in plan["launches"]:
        show.line(f"node program of node {', '.join(map(str, launch['nodes']))}:\n  {shlex.join(launch['argv'])}")
    _print_program(plan["program"])
    _print_copies(plan)
    for node in plan["nodes"]:
        container = node["container"]
        devices = f", GPUs {', '.join(node['gpus'])}" if node["gpus"] else ""
        show.line(f"\nnode {node['name']}: cores {', '.join(map(str, node['cores']))}{devices}; work directory {node['work_directory']}")
        if node["stage"]:
            show.line(f"stage:\n  {shlex.join(node['stage'])}")
        if "run" in container:
            show.line(f"container {container['name']} (limits, user and devices as on this machine; {container['talks_to']}):")
            show.line(f"  {shlex.join(container['run'])}")
        for process in container["processes"]:
            image = "" if not in_container(container["engine"]) else f", image {container['image']}"
            show.line(f"{process['name']} ({container['engine']}{image}, in {process['cwd']}):")
            for name, value in sorted(process["env"].items()):
                show.line(f"  {name}={shlex.quote(value)} \\")
            show.line(f"  {shlex.join(process['argv'])}")
    _print_document(plan["cell_json"])
    show.line(f"\nresult: {plan['results']}")


def _print_program(program: Mapping[str, Any] | None) -> None:
    if program is None:
        return
    what = "no folder: a command of the image or of the nodes"
    if program["folder"] is not None:
        size = f"{counted(program['files'], 'file')}, {format_size(program['bytes'])}, of {program['folder']}"
        what = f"{size}, copied to every node\n  digest {program['digest']}"
    show.line(f"\nprogram {program['name']}: {what}")


def _print_copies(plan: Mapping[str, Any]) -> None:
    dataset = plan["dataset"]
    if dataset is None:
        show.line("\ncopies: none, since the cell has no dataset")
        return
    where = f"{dataset['root']} -> {', '.join(node['cache'] for node in plan['nodes'])}"
    if plan["copies"] is None:
        size = f"about {format_size(dataset['bytes'])}" if dataset["bytes"] is not None else "size unknown"
        show.line(f"\ncopies: dataset {dataset['name']} is not built yet ({size}); `slipway dataset build` or snakemake builds it")
        return
    show.line(f"\ncopies: {where}")
    for copy in plan["copies"][:MAX_COPIES]:
        show.line(f"  {copy['path']}  {format_size(copy['bytes'])} in {copy['chunks']} chunks")
    if more := and_more(len(plan["copies"]), MAX_COPIES, "files"):
        show.line(f"  ... {more}; --json lists all")


def _print_document(document: Mapping[str, Any]) -> None:
    show.line("\ncell.json:")
    layers = document["model_layers"]
    unknown = "known when the dataset is built" if document["model"] in MODELS else "known to the program alone"
    said = f"{len(layers)} layers (--json lists them)" if layers else unknown
    show.mapping({**document, "model_layers": said})
