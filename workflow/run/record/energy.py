"""Compute the energy of a measured window from looks at counters, and sum it up over the nodes of a run. Pure."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from workflow.run.record.model import Load, LoadOf, Node

MIN_COVERED: Final = 0.5
"""The part of the window that looks at a counter must cover."""
INSTANCE: Final = "MIG-"
NO_COUNTER: Final = "GPUs: no counter, or too few looks at it"
OF_INSTANCES: Final = "GPUs: a MIG instance has no counter of its own"
NO_RAPL: Final = {
    "not permitted": "processors: only root may read RAPL there",
    "none": "processors: no RAPL, as in most virtual machines",
    "read": "processors: too few looks at RAPL in the window",
    None: "processors: nobody looked at RAPL in the window",
}
"""True if RAPL could be read -> why there is no energy of the processors."""


def energy_of(counted: Sequence[tuple[float, float]], begin: float, end: float) -> float | None:
    """Return the joules from `begin` to `end`: the mean power from the first look between them to the last one, times their distance.

    `counted`: moments in seconds and the counter in joules then. Looks beside the window are not used: what a machine does there is
    something else. None where the looks cover too little of it, and where the counter began again.
    """
    inside = [(t, joules) for t, joules in counted if begin <= t <= end]
    if len(inside) < 2 or inside[-1][0] - inside[0][0] < MIN_COVERED * (end - begin):
        return None
    if any(after < before for (_, before), (_, after) in pairwise(inside)):
        return None
    (first, before), (last, after) = inside[0], inside[-1]
    return round((after - before) / (last - first) * (end - begin), 3) if last > first else None


class Energy(NamedTuple):
    """The joules of a run's window: of all its GPUs, and of the processors and memory of all its machines, None unless all are known."""

    gpu_j: float | None = None
    node_j: float | None = None
    note: str | None = None
    """Why one of them is not known."""


def energy_of_nodes(nodes: Sequence[Node]) -> Energy:
    """Sum up the energy of the nodes. Those that are shares of one machine, by its name, tell of its processors once."""
    loads = [node.load if isinstance(node.load, Load) else None for node in nodes]
    parts = [None if load is None else load.during for load in loads]
    gpu_j, why = _of_gpus(nodes, parts)
    machines: dict[str, float | None] = {}
    for node, part in zip(nodes, parts, strict=True):
        joules = None if part is None else part.package_j
        machines[node.hostname] = max((one for one in (machines.get(node.hostname), joules) if one is not None), default=None)
    known = [joules for joules in machines.values() if joules is not None]
    if len(known) == len(machines):
        return Energy(gpu_j, math.fsum(known), why)
    without = [load for load, node in zip(loads, nodes, strict=True) if machines[node.hostname] is None]
    reasons = dict.fromkeys(NO_RAPL[None if load is None or load.during is None else load.rapl] for load in without)
    return Energy(gpu_j, None, "; ".join(filter(None, (why, *reasons))))


def _of_gpus(nodes: Sequence[Node], parts: Sequence[LoadOf | None]) -> tuple[float | None, str | None]:
    """Return the joules of all GPUs, or why they are not known; neither where there are none."""
    granted = [gpu for node in nodes for gpu in node.gpus]
    known = [gpu.energy_j for part in parts if part is not None for gpu in part.gpus or () if gpu.energy_j is not None]
    if len(known) < len(granted):
        return None, OF_INSTANCES if any((gpu.uuid or "").startswith(INSTANCE) for gpu in granted) else NO_COUNTER
    return (math.fsum(known) if granted else None), None
