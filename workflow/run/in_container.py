"""What a node program does before its ranks start in a container, and not where the engine is bare."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from cluster.types import Allocation
from containers.engines.bare import NAME as BARE
from containers.spec import ContainerSpec
from workflow.run.leftovers import is_older
from workflow.run.workdir import WorkDirectory

PREPARE_S: Final = 90.0


def prepare_container(engine: str, cache: str, tag: str, folder: str) -> list[str]:
    """In a child: copy the programs here, and take away containers whose job is gone; what was done about those, in lines. Raises
    ContainerError where the engine does not answer: before the ranks are waited for."""
    from containers.engines import WITH_STORE
    from containers.reaping import reap_here

    WorkDirectory(Path(cache), tag).bring_programs(Path(folder))
    if engine not in WITH_STORE:
        return []
    return [
        f"removed the container {decision.container.name}: {decision.reason}"
        for decision in reap_here(engine, partial(is_older, tag))
        if decision.remove
    ]


def who_we_are(allocation: Allocation) -> dict[str, Any]:
    """For the labels of a container: it belongs to this node program, in this start of the job."""
    from workflow.run.lease import holder_of

    holder = holder_of(os.getpid(), allocation.scheduler, allocation.job_id, allocation.restart_count)
    return {"uid": os.geteuid(), "holder": holder.to_json()}


def for_this_node(engine: str, spec: ContainerSpec) -> ContainerSpec:
    """With the user, the limits and the devices that are here; bare has them anyway, and does not pay for the question."""
    if engine == BARE:
        return spec
    from containers.node_facts import facts_here, with_facts

    return with_facts(spec, facts_here())
