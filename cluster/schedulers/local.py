"""Divide this machine into the nodes of a run, with equal and disjoint core sets.

There are as many nodes as the study's largest cell needs, and every cell gets nodes of the same size, so that two nodes are twice one node:
with the whole machine for each cell, a speed-up would be 1 by construction. With fewer cores than nodes the sets overlap; a run of which
two nodes share a core is recorded as `oversubscribed`. One run measures at a time, so that the nodes which a smaller run leaves idle take
nothing from it.
"""

import os
from collections.abc import Mapping, Sequence

from base.errors import AllocationError, UnsupportedRequest
from cluster import machine, processes
from cluster.gpus import decision, listing
from cluster.holder import holder_lives
from cluster.types import Allocation, AllocationRequest, Holder, Launch, Node

NAME = "local"
LIMIT_SIGNAL: int | None = None
ADDRESS = "127.0.0.1"
INTERFACE = "lo"


def allocate(request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:
    """Divide this machine's cores and GPUs. Raises AllocationError if GPUs are requested and missing."""
    cores = machine.usable_cores()
    gpus = () if request.device == "cpu" else decision.granted_gpus(listing.query_gpus(), environ, everything=True)
    return plan_allocation(request, cores, machine.read_topology(cores), gpus, (os.uname().nodename, supervisor))


def plan_allocation(
    request: AllocationRequest, cores: Sequence[int], topology: machine.Topology, gpus: Sequence[listing.Gpu], identity: tuple[str, int]
) -> Allocation:
    """Plan the nodes `local-0`, `local-1` ... of the machine `identity` (hostname, pid of the supervisor)."""
    hostname, pid = identity
    device = request.device or ("cuda" if gpus else "cpu")
    if device == "cuda" and not gpus:
        raise AllocationError(
            "device: cuda was asked, and nvidia-smi shows no GPU on this machine; use `device: cpu` in the study or the site file"
        )
    shares = listing.split_gpus(gpus, request.nodes, request.gpus_per_node) if device == "cuda" else ((),) * request.nodes
    sets = core_sets(cores, topology, request.largest_nodes)[: request.nodes]
    nodes = tuple(
        Node(
            name=f"local-{index}",
            hostname=hostname,
            address=ADDRESS,
            interface=INTERFACE,
            cores=sets[index],
            gpus=tuple(gpu.uuid for gpu in shares[index]),
            gpu_models=tuple(gpu.model for gpu in shares[index]),
        )
        for index in range(request.nodes)
    )
    overlap = sum(map(len, sets)) > len(set().union(*sets))
    crowded = device == "cpu" and request.gpus_per_node > len(sets[0])
    return Allocation(scheduler=NAME, job_id=str(pid), nodes=nodes, device=device, exclusive=None, oversubscribed=overlap or crowded)


def core_sets(cores: Sequence[int], topology: machine.Topology, nodes: int) -> tuple[tuple[int, ...], ...]:
    """Divide cores into `nodes` equal sets of CPU numbers, disjoint if there are enough. Hardware threads of a core stay together."""
    if len(cores) < nodes:
        return tuple((cores[index % len(cores)],) for index in range(nodes))
    ordered = sorted(cores, key=lambda number: (*topology.get(number, (0, number)), number))
    size = len(cores) // nodes
    return tuple(tuple(sorted(ordered[index * size : (index + 1) * size])) for index in range(nodes))


def launches(allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
    return tuple(Launch(argv=(*node_argv, "--node", str(index)), nodes=(index,)) for index in range(len(allocation.nodes)))


def launch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Copy the environment, from which nothing has to go."""
    return dict(environ)


def job_start(environ: Mapping[str, str]) -> str | None:  # noqa: ARG001 - there are no jobs
    return None


def holder_alive(holder: Holder) -> bool | None:
    """Check the holder's process if this host shows it. A holder on another machine, even one of the same name, is unknown."""
    same_machine = holder.host == os.uname().nodename and holder.machine in (None, processes.machine())
    return holder_lives(holder, same_machine=same_machine)


def holders_alive(holders: Sequence[Holder], limit_s: float) -> tuple[bool | None, ...]:  # noqa: ARG001 - nobody is asked
    return tuple(holder_alive(holder) for holder in holders)


def job_facts(allocation: Allocation) -> dict[str, float | None]:  # noqa: ARG001 - there is nobody to ask
    """Return no times: only the run's own walltime ends it, and it has not waited."""
    return {"deadline": None, "submitted": None, "started": None}


def ended_by(allocation: Allocation) -> str | None:  # noqa: ARG001 - there is nobody to ask
    """Return None: no scheduler can end the run."""
    return None


def requeue(allocation: Allocation) -> None:  # noqa: ARG001 - the same for all
    """Raise UnsupportedRequest: there is no queue."""
    raise UnsupportedRequest("this machine has no queue that a run could go back to: start it again")
