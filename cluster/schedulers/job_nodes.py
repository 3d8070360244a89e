"""Nodes of a job, as schedulers that hand out nodes have them alike: which of them a run takes, how they are planned, who holds them, how a
program is started on each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster import addresses
from cluster.gpus.decision import accepted, claims_of, decide
from cluster.gpus.listing import query_foreign_use, query_gpus, read_place
from cluster.machine import usable_cores
from cluster.runtime import runtime_directory
from cluster.types import Allocation, AllocationRequest, Grant, Launch, Node


def names_for(request: AllocationRequest, names: Sequence[str]) -> tuple[str, ...]:
    """Pure: of the job's nodes those of the run's set, where the job is divided into such; those that failed the run before come last."""
    if request.node_set is not None:
        index, sets = request.node_set
        size = len(names) // sets
        names = names[index * size : (index + 1) * size]
    return tuple(sorted(names, key=lambda name: name in request.avoid))


def of_sets(request: AllocationRequest) -> str:
    """Pure: for a sentence about nodes."""
    return "" if request.node_set is None else f", in {request.node_set[1]} sets"


def device_of(request: AllocationRequest) -> str:
    """Pure: `cuda` or `cpu`."""
    return request.device or ("cuda" if request.gres else "cpu")


def planned_nodes(request: AllocationRequest) -> tuple[Node, ...]:
    """Pure: without names, of the size that the site states."""
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
    """Pure: nodes without names, of the size that the site states; the same in and outside of a job."""
    return Allocation(
        scheduler=scheduler,
        job_id="<job>",
        nodes=planned_nodes(request),
        device=device_of(request),
        exclusive=not request.share_nodes,
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
    """Pure: one launcher per node, also for the first, so that all are started alike. `launch_argv`: of a node's name and a program."""
    each = [(index, launch_argv(node.name, (*node_argv, "--node", str(index)))) for index, node in enumerate(allocation.nodes)]
    return tuple(Launch(argv=argv, nodes=(index,), silence=silence, refusal=refusal, may_be_mute=may_be_mute) for index, argv in each)


def off_node(environ: Mapping[str, str]) -> str | None:  # noqa: ARG001 - the same for all
    """Where all processes of a job run on its nodes, also those at a terminal, none is off them."""
    return None


def node_cache(cache: Path, node: Node) -> Path:  # noqa: ARG001 - the same for all
    """Pure: each node has a disk of its own under the same path."""
    return cache


def run_locks(allocation: Allocation, nodes: int) -> tuple[tuple[Path, ...], int]:
    """Where runs share the job: a file per node, on the host where all their supervisors run. Raises AllocationError."""
    if allocation.own_job:
        return (), 0
    directory = runtime_directory() / f"{allocation.scheduler}-{allocation.job_id}-{allocation.restart_count}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return tuple(directory / f"{node.name}.lock" for node in allocation.nodes), nodes


# What a node of a job was granted, read from within: the machine's own word. What its scheduler says beside, its own room adds.


def read_grant(
    environ: Mapping[str, str], device: str | None, peer: str, interface: str | None, node: str | None, gpu_count: int | None = None
) -> Grant:
    """For a program that a launcher started. `peer`: whom we must reach; `interface`: the site's, if it names one; `node`: the scheduler's
    name of this one. Where it hands out no GPUs, all that show: cluster/grants.py refuses that unless the node is the job's alone.

    Raises AllocationError."""
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
    """The node's GPUs as that scheduler calls them; none where it names none."""
    claims = claims_of(environ, scheduler, read_place(environ))
    return claims[0].names if claims else ()
