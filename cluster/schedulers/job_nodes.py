"""Select, plan and lock the nodes of a job, and start a program on each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from cluster import addresses
from cluster.gpus.decision import accepted, claims_of, decide
from cluster.gpus.listing import query_foreign_use, query_gpus, read_place
from cluster.machine import usable_cores
from cluster.types import Allocation, AllocationRequest, Grant, Launch, Node


def names_for(request: AllocationRequest, names: Sequence[str]) -> tuple[str, ...]:
    """Select the nodes of the run's set if the job is divided into sets. Nodes that failed the run before come last."""
    if request.node_set is not None:
        index, sets = request.node_set
        size = len(names) // sets
        names = names[index * size : (index + 1) * size]
    return tuple(sorted(names, key=lambda name: name in request.avoid))


def of_sets(request: AllocationRequest) -> str:
    """Format the set of the run for a sentence about nodes."""
    return "" if request.node_set is None else f", in {request.node_set[1]} sets"


def device_of(request: AllocationRequest) -> str:
    """Return `cuda` or `cpu`."""
    return request.device or ("cuda" if request.gres else "cpu")


def planned_nodes(request: AllocationRequest) -> tuple[Node, ...]:
    """Return nodes without names, of the size in the site file."""
    count = request.gpus_per_node if device_of(request) == "cuda" else 0
    return tuple(
        Node(
            name=f"node-{index}",
            hostname=f"node-{index}",
            address=f"<node-{index}>",
            cores=tuple(range(request.cpus_per_node or 0)),
            gpus=tuple(f"<gpu-{number}>" for number in range(count)),
        )
        for index in range(request.nodes)
    )


def planned_allocation(scheduler: str, request: AllocationRequest) -> Allocation:
    """Plan an allocation of nodes without names, of the size in the site file. The result is the same inside and outside of a job."""
    return Allocation(
        scheduler=scheduler,
        job_id="<job>",
        nodes=planned_nodes(request),
        device=device_of(request),
        exclusive=not request.share_nodes,
        gres=request.gres,
        cpus_per_node=request.cpus_per_node,
        memory_per_node_bytes=request.memory_per_node_bytes,
    )


def launch_each(
    allocation: Allocation,
    node_argv: Sequence[str],
    launch_argv: Callable[[str, Sequence[str]], tuple[str, ...]],
    silence: tuple[str, ...],
    refusal: str | None = None,
    *,
    may_be_mute: bool = False,
) -> tuple[Launch, ...]:
    """Build one launch per node, also for the first node, so that all nodes start in the same way.

    `launch_argv` makes the command of a node's name and a program.
    """
    each = [(index, launch_argv(node.name, (*node_argv, "--node", str(index)))) for index, node in enumerate(allocation.nodes)]
    return tuple(Launch(argv=argv, nodes=(index,), silence=silence, refusal=refusal, may_be_mute=may_be_mute) for index, argv in each)


# What a node was granted, read on the node itself.


def read_grant(
    environ: Mapping[str, str], device: str | None, peer: str, interface: str | None, node: str | None, gpu_count: int | None = None
) -> Grant:
    """Read the grant of a node in a program that a launcher started on it.

    `peer` is an address that this node must reach, `interface` the network interface of the site file, and `node` the scheduler's name of
    this node. If the scheduler grants no GPUs, all visible GPUs are taken, which cluster/grants.py refuses unless the job has the node
    alone. Raises AllocationError.
    """
    address, found_interface = addresses.here(peer, interface)
    found = None if device == "cpu" else accepted(decide(query_gpus(), environ, gpu_count, everything=True, place=read_place(environ)))
    gpus = () if found is None else found.gpus
    hostname = os.uname().nodename
    return Grant(
        node=node or hostname,
        hostname=hostname,
        address=address,
        interface=found_interface,
        cores=usable_cores(),
        gpus=tuple(gpu.uuid for gpu in gpus),
        gpu_models=tuple(gpu.model for gpu in gpus),
        gpu_rule=None if found is None else found.rule,
        foreign=query_foreign_use([gpu.uuid for gpu in gpus]),
    )


def claimed(environ: Mapping[str, str], scheduler: str) -> tuple[str, ...]:
    """Return the GPUs of this node by the scheduler's names; empty if it names none."""
    claims = claims_of(environ, scheduler, read_place(environ))
    return claims[0].names if claims else ()
