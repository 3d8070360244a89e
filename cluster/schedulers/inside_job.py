"""Choose the nodes of a run within its job, read on a node what it was granted, and decide whether the holder of a run lives.

All schedulers share this.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from base import humanize, sanitize
from base.errors import AllocationError, NoScheduler, SchedulerOutputError, UnsupportedRequest
from cluster import addresses, detection, machine
from cluster.gpus import decision, listing
from cluster.holder import holder_lives
from cluster.schedulers.jobs import SUBMISSION, QueuedJob
from cluster.schedulers.queries import PATIENCE_S, Server, query, refusal_words
from cluster.types import Allocation, AllocationRequest, Grant, Holder, Launch, Node

STARTED: Final = "SLIPWAY_JOB_STARTED"
"""The unix time when the batch script of this start of the job began; exported by scripts of schedulers without such a variable."""
SECONDS: Final = "SLIPWAY_JOB_SECONDS"
"""The time limit of the job; exported by the same scripts."""
IGNORE_USR2: Final = "trap '' USR2; exec \"$@\""
"""A script of sh for launchers that USR2, which a scheduler sends to all processes of a job, would end."""
Start = tuple[str | None, int]
"""A job's id and the number of its start. The id is None outside of a job."""


# The nodes of a job.


def job_allocation(
    job: tuple[str, str],
    request: AllocationRequest,
    environ: Mapping[str, str],
    node_addresses: Mapping[str, str],
    *,
    is_batch: bool,
    advice: str,
) -> Allocation:
    """Select the run's nodes from those of the job (scheduler, id), whose addresses are given by name.

    Where runs share the job, these are all nodes of the job, or of the run's set if the job is divided into sets, and the run takes some.
    Nodes that failed the run before come last. `is_batch`: whether the job has a batch script, so that it may be requeued. Raises
    AllocationError, with `advice`, if there are fewer nodes than requested.
    """
    scheduler, job_id = job
    names = names_for(request, tuple(node_addresses))
    if len(names) < request.nodes:
        sets = "" if request.node_set is None else f", in {request.node_set[1]} sets"
        raise AllocationError(
            f"job {job_id}: {request.nodes} nodes were asked, {len(names)} granted ({humanize.some([*node_addresses], 8)}{sets}){advice}"
        )
    return Allocation(
        scheduler=scheduler,
        job_id=job_id,
        nodes=tuple(Node(name=name, hostname=name, address=node_addresses[name]) for name in names),
        device=device_of(request),
        exclusive=not request.share_nodes,
        own_job=is_batch and SUBMISSION not in environ and len(names) == request.nodes,
        memory_per_node_bytes=request.memory_per_node_bytes if request.share_nodes else None,
    )


def nodes_of_all_sets(request: AllocationRequest) -> int:
    """Return the nodes that a job needs for the run and for those beside it, for advice."""
    return request.nodes * (1 if request.node_set is None else request.node_set[1])


def names_for(request: AllocationRequest, names: Sequence[str]) -> tuple[str, ...]:
    """Select the nodes of the run's set, those that failed the run before last."""
    if request.node_set is not None:
        index, sets = request.node_set
        size = len(names) // sets
        names = names[index * size : (index + 1) * size]
    return tuple(sorted(names, key=lambda name: name in request.avoid))


def resolved(names: Sequence[str]) -> dict[str, str]:
    """Return the address of each node, or its name if this host does not know it."""
    return {name: addresses.resolve(name) or name for name in names}


def device_of(request: AllocationRequest) -> str:
    """Return `cuda` or `cpu`."""
    return request.device or ("cuda" if request.gres else "cpu")


def planned_allocation(scheduler: str, request: AllocationRequest) -> Allocation:
    """Plan an allocation of nodes without names, of the size in the site file. The result is the same inside and outside of a job."""
    device = device_of(request)
    count = request.gpus_per_node if device == "cuda" else 0
    nodes = [
        Node(
            name=f"node-{index}",
            hostname=f"node-{index}",
            address=f"<node-{index}>",
            cores=tuple(range(request.cpus_per_node or 0)),
            gpus=tuple(f"<gpu-{number}>" for number in range(count)),
        )
        for index in range(request.nodes)
    ]
    return Allocation(
        scheduler=scheduler,
        job_id="<job>",
        nodes=tuple(nodes),
        device=device,
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
    """Build one launch per node, also for the first, so that all start in the same way. `launch_argv` gets a node's name and a program."""
    each = [(index, launch_argv(node.name, (*node_argv, "--node", str(index)))) for index, node in enumerate(allocation.nodes)]
    return tuple(Launch(argv=argv, nodes=(index,), silence=silence, refusal=refusal, may_be_mute=may_be_mute) for index, argv in each)


# What a node was granted, read on the node itself.


def read_grant(environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant | None:
    """Read the grant of this node in a program that a launcher started on it. Returns None outside of a job: `allocate` has all of it.

    `peer` is an address that this node must reach, and `interface` the network interface of the site file. If the scheduler grants no GPUs,
    all visible GPUs are taken, which cluster/grants.py refuses unless the job has the node alone. Raises AllocationError.
    """
    scheduler = detection.scheduler_of(environ)
    if scheduler is None:
        return None
    signs, buses = detection.SIGNS[scheduler], listing.node_buses()
    address, found_interface = addresses.here(peer, interface)
    found = (
        None if device == "cpu" else decision.or_raise(decision.decide(listing.query_gpus(), environ, everything=True, node_buses=buses))
    )
    granted = () if found is None else found.gpus
    claims = decision.claims_of(environ, scheduler)
    hostname = os.uname().nodename
    return Grant(
        node=environ.get(signs.node) or hostname,
        hostname=hostname,
        address=address,
        interface=found_interface,
        cores=machine.usable_cores(),
        cpus=sanitize.ascii_int(environ.get(signs.cpus, "")),
        gpus=tuple(gpu.uuid for gpu in granted),
        gpu_models=tuple(gpu.model for gpu in granted),
        gpu_indices=claims[0].names if claims else (),
        gpu_rule=None if found is None else found.rule,
        other_use=listing.query_other_use([gpu.uuid for gpu in granted]),
        restart_count=sanitize.ascii_int(environ.get(signs.restarts, "")),
    )


# Our job, as the scheduler tells of it where it numbers the starts of jobs.


def facts_of(job: QueuedJob | None, restart_count: int) -> dict[str, float | None]:
    """Return what `Scheduler.job_facts` does. All is unknown if the job is, or if it has another start now."""
    if job is None or job.restarts != restart_count:
        return {"deadline": None, "submitted": None, "started": None}
    return {"deadline": job.end, "submitted": job.submitted, "started": job.expected}


def reason_of(job: QueuedJob | None, restart_count: int) -> str | None:
    """Return the reason why this start of the job ends, or None if no end of it is known.

    It is asked while the job is being ended: then a preemption is the reason, whatever the state of the job is called.
    """
    if job is None:
        return None
    if job.restarts > restart_count:
        return "requeued"
    return "preempted" if job.preempted else job.ended_by or ("requeued" if job.waits else None)


def has_processes(job: QueuedJob, holder: Holder) -> bool:
    """Return True if the job has processes of the holder's start. A job that is being ended has some until the last is gone."""
    return job.restarts == holder.restart_count and job.stage in ("runs", "ends")


# The holders of runs, and requeueing.


def holders_alive(
    holders: Sequence[Holder],
    ours: Start,
    jobs_of: Callable[[Sequence[str]], Iterable[QueuedJob]],
    is_running: Callable[[QueuedJob, Holder], bool] = has_processes,
) -> tuple[bool | None, ...]:
    """Return for each holder True if it lives, False if it has ended, and None if that is unknown.

    An earlier start of our own job is over. A holder whose process this host would show is judged by its process. All others are judged by
    the jobs of their ids, which `jobs_of` queries, and which have processes of the holder's start if `is_running`.
    """
    judged = [_by_process(holder, ours) for holder in holders]
    others = list(dict.fromkeys(holder.job_id for holder, (is_known, _) in zip(holders, judged, strict=True) if not is_known))
    try:
        jobs = {job.job_id: job for job in jobs_of(others)} if others else {}
    except SchedulerOutputError:
        return tuple(alive if is_known else None for is_known, alive in judged)
    found = [jobs.get(holder.job_id) for holder in holders]
    return tuple(
        alive if is_known else job is not None and is_running(job, holder)
        for holder, job, (is_known, alive) in zip(holders, found, judged, strict=True)
    )


def _by_process(holder: Holder, ours: Start) -> tuple[bool, bool | None]:
    """Return whether this host can judge the holder, and the judgement."""
    if holder.job_id == ours[0] and holder.restart_count < ours[1]:
        return True, False
    alive = holder_lives(holder, same_machine=False) if holder.host == os.uname().nodename else None
    return alive is False or (holder.job_id, holder.restart_count) == ours, alive


def exported_end(environ: Mapping[str, str]) -> float | None:
    """Return the unix time when the job must have ended, by STARTED and SECONDS."""
    started, seconds = sanitize.ascii_int(environ.get(STARTED, "")), sanitize.ascii_int(environ.get(SECONDS, ""))
    return None if started is None or seconds is None else float(started + seconds)


def earliest(*moments: float | None) -> float | None:
    """Return the earliest of some times, as far as they are known."""
    return min((moment for moment in moments if moment is not None), default=None)


def requeue(
    server: Server, allocation: Allocation, argv: Sequence[str], done: str = "", hint: str = "", patience_s: float = PATIENCE_S
) -> None:
    """Requeue a job by `argv`, which prints `done` if it was successful. Raises UnsupportedRequest, with a hint, and SchedulerSilent."""
    if not allocation.own_job:
        raise UnsupportedRequest(f"job {allocation.job_id} is not this run's alone: it cannot be requeued for it")
    try:
        result = query(server, argv, patience_s)
    except NoScheduler as error:
        raise UnsupportedRequest(f"job {allocation.job_id} cannot be requeued{hint}: {error}") from error
    if result.returncode:
        raise UnsupportedRequest(f"job {allocation.job_id} cannot be requeued{hint}: {refusal_words(server, result)}")
    if done not in result.stdout:
        reason = result.stdout.strip() or f"{server.title} does not know it"
        raise UnsupportedRequest(f"job {allocation.job_id} cannot be requeued: {reason}")
