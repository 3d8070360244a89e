"""What is done on a node before its ranks start: old containers are removed, the engine is asked what it can do, and
other users of the GPUs are looked for."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from base.errors import TrainingFailed
from cluster.types import Allocation
from containers.engines import STORES, in_container
from containers.spec import ContainerSpec
from workflow.run.link.orders import Plan
from workflow.run.node.leftovers import is_older
from workflow.run.node.startable import is_looked_at, why_not_startable
from workflow.run.node.workdir import WorkDirectory
from workflow.run.plan import Framework

LOCAL: Final = "local"


def gpus_to_look_at(allocation: Allocation, index: int) -> tuple[str, ...]:
    """Pure: on this machine as a cluster those of the node; elsewhere the node program has looked at them when it read its grant."""
    return allocation.nodes[index].gpus if allocation.scheduler == LOCAL else ()


def prepare_node(
    engine: str, directory: tuple[str, str], framework: Framework, job: tuple[str, str], granted: Sequence[str], gpus: Sequence[str]
) -> dict[str, Any]:
    """In a child: the program and what a container needs here, then who else uses the GPUs. `directory`: cache and tag; `job`: scheduler
    and id; `granted`: the node's GPUs; `gpus`: those to look at for others. {"program_files": of bring_program, "removed": lines,
    "parent": (cgroup or None, why), "cdi": (whether, why), "foreign": [(uuid, text)], "faults": likewise}. Raises ContainerError where the
    engine does not answer, before the ranks are waited for, TrainingFailed where the program of the study lacks something here, and what
    `bring_program` does."""
    removed: list[str] = []
    parent: tuple[str | None, str] = (None, "no container")
    cdi: tuple[bool, str] = (False, "no container")
    here = WorkDirectory(Path(directory[0]), directory[1])
    files: dict[str, str] = {}
    if framework.own or in_container(engine):
        files = here.bring_program(framework.folder, framework.digest, own=framework.own)
    if is_looked_at(framework):
        problem = why_not_startable(framework, here.program, here.out, os.environ, contained=in_container(engine))
        if problem is not None:
            raise TrainingFailed(problem)
    if in_container(engine):
        here.bring_library()
        removed = remove_leftovers(engine, Path(directory[0]), directory[1])
        from containers.engines.cdi import find_cdi
        from containers.engines.parent_cgroup import find_parent

        found = find_parent(engine, *job)
        parent = (found.path, found.reason)
        cdi = find_cdi(engine, granted)
    foreign: list[tuple[str, str]] = []
    if gpus:
        from cluster.gpus.foreign import look

        foreign = [(use.uuid, use.text) for use in look(gpus)]
    from cluster.gpus import health

    faults = [(fault.uuid, fault.text) for fault in health.look(granted)]
    return {"program_files": files, "removed": removed, "parent": parent, "cdi": cdi, "foreign": foreign, "faults": faults}


def remove_leftovers(engine: str, cache: Path, tag: str) -> list[str]:
    """Take away containers whose job is gone; what was done about them, in lines. Raises ContainerError."""
    from containers.reaping import engines_here, reap_here

    if engine not in STORES and engine not in engines_here():
        return []
    return [
        f"{'removed' if decision.remove else 'left'} the container {decision.container.name}: {decision.reason}"
        for decision in reap_here(engine, [cache], partial(is_older, tag))
        if decision.remove or decision.stuck
    ]


def image_argv(python: str, plan: Plan) -> tuple[str, ...] | None:
    """Pure: what brings the pinned image here; None where there is none, so that what the engine has under its name is started."""
    if plan.ranks is None or plan.ranks.image is None:
        return None
    image = plan.ranks.image
    from workflow.run.images.pin import load_argv

    return load_argv(python, image.archive, plan.ranks.engine, image.cache, may_pull=image.may_pull, credentials=image.credentials)


def for_this_node(
    engine: str, spec: ContainerSpec, granted: int | None, cgroup_parent: str | None = None, cdi: bool = False
) -> ContainerSpec:
    """Add the user, the limits, the devices and the network namespace of this node, which a container has to be told. `granted`: memory, as
    the scheduler says."""
    if not in_container(engine):
        return spec
    from containers.node_facts import facts_here, with_facts

    env = (*spec.env, *([("SLIPWAY_NODE_NETWORK", str(Path("/proc/self/ns/net").readlink()))] if spec.network == "none" else []))
    return dataclasses.replace(with_facts(spec, facts_here(granted)), env=env, cgroup_parent=cgroup_parent, cdi=cdi)
