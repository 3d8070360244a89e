"""What a node program does before its ranks start: in a container, and where nobody has looked yet who uses the GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from cluster.types import Allocation
from containers.engines.bare import NAME as BARE
from containers.spec import ContainerSpec
from workflow.run.link.orders import Plan
from workflow.run.node.leftovers import is_older
from workflow.run.node.workdir import WorkDirectory

LOCAL: Final = "local"
PREPARE_S: Final = 90.0


def gpus_to_look_at(allocation: Allocation, index: int) -> tuple[str, ...]:
    """Pure: on this machine as a cluster those of the node; elsewhere the node program has looked at them when it read its grant."""
    return allocation.nodes[index].gpus if allocation.scheduler == LOCAL else ()


def prepare_node(
    engine: str, directory: tuple[str, str], folder: str, job: tuple[str, str], granted: Sequence[str], gpus: Sequence[str]
) -> dict[str, Any]:
    """In a child: what a container needs here, then who else uses the GPUs. `directory`: cache and tag; `job`: scheduler and id;
    `granted`: GPUs for the container; `gpus`: those to look at. {"removed": lines, "parent": (cgroup or None, why), "cdi": (whether, why),
    "foreign": [(uuid, text)]}. Raises ContainerError where the engine does not answer: before the ranks are waited for."""
    removed = [] if engine == BARE else prepare_container(engine, *directory, folder)
    parent: tuple[str | None, str] = (None, "bare")
    cdi: tuple[bool, str] = (False, "bare")
    if engine != BARE:
        from containers.engines.cdi import find_cdi
        from containers.engines.parent_cgroup import find_parent

        found = find_parent(engine, *job)
        parent = (found.path, found.reason)
        cdi = find_cdi(engine, granted)
    foreign: list[tuple[str, str]] = []
    if gpus:
        from cluster.gpus import look

        foreign = [(use.uuid, use.text) for use in look(gpus)]
    return {"removed": removed, "parent": parent, "cdi": cdi, "foreign": foreign}


def prepare_container(engine: str, cache: str, tag: str, folder: str) -> list[str]:
    """Copy the programs here, and take away containers whose job is gone; what was done about those, in lines. Raises ContainerError."""
    from containers.engines import WITH_STORE
    from containers.reaping import reap_here

    WorkDirectory(Path(cache), tag).bring_programs(Path(folder))
    if engine not in WITH_STORE:
        return []
    return [
        f"{'removed' if decision.remove else 'left'} the container {decision.container.name}: {decision.reason}"
        for decision in reap_here(engine, partial(is_older, tag))
        if decision.remove or decision.stuck
    ]


def image_argv(python: str, plan: Plan) -> tuple[str, ...] | None:
    """Pure: what brings the pinned image here; None where there is none, so that what the engine has under its name is started."""
    image = None if plan.ranks is None else plan.ranks.image
    if image is None:
        return None
    from workflow.run.images.pin import load_argv

    return load_argv(python, image.archive, plan.engine, image.cache, may_pull=image.may_pull, credentials=image.credentials)


def for_this_node(
    engine: str, spec: ContainerSpec, granted: int | None, cgroup_parent: str | None = None, cdi: bool = False
) -> ContainerSpec:
    """With the user, the limits and the devices that are here; bare has them anyway, and does not pay for the question. `granted`: memory,
    as the scheduler says."""
    if engine == BARE:
        return spec
    from containers.node_facts import facts_here, with_facts

    return dataclasses.replace(with_facts(spec, facts_here(granted)), cgroup_parent=cgroup_parent, cdi=cdi)
