"""Check what was granted against the request, and complete the nodes of an allocation by what their node programs found. Pure."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from base.errors import AllocationError
from cluster.types import Allocation, GpuFault, Grant, Node, OtherUse


def complete(
    allocation: Allocation, grants: Sequence[Grant | None], processes: int, foreign_gpu: str = "record"
) -> tuple[Allocation, tuple[str, ...]]:
    """Complete the nodes of an allocation by their grants, and return it with warnings for the record.

    `grants` has one grant per node, in order, or None if the allocation is complete already. `processes` are the run's GPUs (on the CPU:
    processes) per node. `foreign_gpu`: `record` processes of others on these GPUs, or `refuse`. Raises AllocationError, which names the
    node, the request and the grant.
    """
    if all(grant is None for grant in grants):
        return allocation, ()
    answered = [grant for grant in grants if grant is not None]
    if len(answered) != len(allocation.nodes):
        silent = ", ".join(node.name for node, grant in zip(allocation.nodes, grants, strict=True) if grant is None)
        raise AllocationError(f"job {allocation.job_id}: no node program reported its grant on {silent}; see their logs")
    nodes = tuple(_node(allocation, node, grant, processes) for node, grant in zip(allocation.nodes, answered, strict=True))
    crowded = _crowded(nodes, answered, processes)
    done = dataclasses.replace(allocation, nodes=nodes, oversubscribed=allocation.oversubscribed or bool(crowded))
    own = zip(nodes, answered, strict=True)
    used = [(node.name, use) for node, grant in own for use in grant.other_use if use.uuid in ("", *node.gpus)]
    warnings = other_use_warnings(f"job {allocation.job_id}", used, foreign_gpu)
    return done, (*crowded, *_unbound(allocation, answered), *_different_models(nodes), *warnings)


def _node(allocation: Allocation, node: Node, grant: Grant, processes: int) -> Node:
    where = f"job {allocation.job_id}, node {node.name}"
    if grant.node != node.name:
        raise AllocationError(f"{where}: the program that should run there runs on {grant.node}; the scheduler has mixed up the nodes")
    if grant.restart_count is not None and grant.restart_count != allocation.restart_count:
        raise AllocationError(
            f"{where}: start {allocation.restart_count} of the job was expected, and found is start {grant.restart_count}: it was requeued"
        )
    if allocation.cpus_per_node is not None and grant.cpus is not None and grant.cpus < allocation.cpus_per_node:
        raise AllocationError(
            f"{where}: {allocation.cpus_per_node} CPUs were asked, {grant.cpus} granted; see what the scheduler says of the node"
        )
    found = len(grant.gpu_indices)
    if allocation.gres and found != allocation.gres:
        raise AllocationError(
            f"{where}: {allocation.gres} GPUs were asked of the scheduler, {found} granted ({', '.join(grant.gpu_indices) or 'none'}); "
            f"check its configuration of generic resources on that node"
        )
    gpus, models = _gpus(allocation, grant, processes, where)
    return dataclasses.replace(
        node,
        hostname=grant.hostname,
        address=grant.address,
        interface=grant.interface,
        cores=_cores(allocation, grant),
        gpus=gpus,
        gpu_models=models,
    )


def _gpus(allocation: Allocation, grant: Grant, processes: int, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the UUIDs and models of the GPUs that the run uses. A grant of more of them is accepted only if the scheduler manages no GPUs
    and the node is ours alone."""
    if allocation.device == "cpu":
        return (), ()
    found = len(grant.gpus)
    spare = allocation.gres == 0 and allocation.exclusive
    if not found:
        hint = "" if allocation.gres else "the job asked for none (gpus_per_node in the site file), "
        raise AllocationError(
            f"{where}: {processes} GPUs were asked, and nvidia-smi shows no GPU at all on this node: {hint}its driver is not loaded, or it "
            f"has none (`slipway gpus --explain` in a job there says more); choose other nodes (queue, constraint in the site file), or "
            f"`device: cpu`"
        )
    if found < processes or (found > processes and not spare):
        shown = ", ".join(grant.gpus) or "none"
        raise AllocationError(f"{where}: {processes} GPUs were asked, nvidia-smi shows {found} of this step: {shown}")
    if grant.gpu_rule == "all" and found > 1 and not allocation.exclusive:
        raise AllocationError(
            f"{where}: {processes} GPUs were asked on a node that others may use, and nothing says which of its {found} are this job's: "
            f"have the scheduler hand them out (gpus_per_node in the site file, its generic resources), or share_nodes: false"
        )
    return grant.gpus[:processes], grant.gpu_models[:processes]


def _cores(allocation: Allocation, grant: Grant) -> tuple[int, ...]:
    """Return all usable cores; on a shared node without binding as many as were granted, from an offset that depends on the job."""
    if allocation.exclusive or grant.cpus is None or grant.cpus >= len(grant.cores):
        return grant.cores
    digits = "".join(letter for letter in allocation.job_id if letter.isdigit())
    start = int(digits or 0) * grant.cpus % len(grant.cores)
    return tuple(sorted((grant.cores * 2)[start : start + grant.cpus]))


def _crowded(nodes: Sequence[Node], grants: Sequence[Grant], processes: int) -> list[str]:
    found = []
    for node, grant in zip(nodes, grants, strict=True):
        if grant.cpus is not None and grant.cpus > len(grant.cores):
            found.append((node.name, f"the scheduler granted {grant.cpus} CPUs, and {len(grant.cores)} may be used: oversubscribed"))
        elif len(node.cores) < processes:
            found.append((node.name, f"{processes} processes share {len(node.cores)} cores: oversubscribed"))
    return _by_text(found)


def _unbound(allocation: Allocation, grants: Sequence[Grant]) -> list[str]:
    if allocation.exclusive:
        return []
    return _by_text(
        (grant.node, f"the scheduler granted {grant.cpus} CPUs and binds to none: jobs on this node may share cores")
        for grant in grants
        if grant.cpus is not None and grant.cpus < len(grant.cores)
    )


def other_use_warnings(job: str, found: Sequence[tuple[str, OtherUse]], foreign_gpu: str) -> list[str]:
    """Warn of processes of others on the GPUs of (node, ...). Raises AllocationError if the site refuses them."""
    if foreign_gpu == "refuse":
        _refuse(job, [(name, use.text) for name, use in found if use.uuid], "foreign_gpu: refuse; end that process, or exclude the node")
    return _by_text((name, use.text) for name, use in found)


def health_warnings(job: str, found: Sequence[tuple[str, GpuFault]], gpu_health: str) -> list[str]:
    """Warn of the faulty GPUs of (node, ...). Raises AllocationError if the site refuses them."""
    faulty = [(name, f"GPU {fault.text}") for name, fault in found]
    if gpu_health == "refuse":
        _refuse(job, faulty, "gpu_health: refuse; have the node looked at, or exclude it")
    return _by_text(faulty)


def _refuse(job: str, found: Sequence[tuple[str, str]], why: str) -> None:
    if found:
        more = f", and {len(found) - 1} more such" if len(found) > 1 else ""
        raise AllocationError(f"{job}, node {found[0][0]}: {found[0][1]}{more}; the site file says {why}")


def _by_text(found: Iterable[tuple[str, str]]) -> list[str]:
    nodes: dict[str, list[str]] = {}
    for node, text in found:
        nodes.setdefault(text, []).append(node)
    return [f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}: {text}" for text, names in nodes.items()]


def _different_models(nodes: Sequence[Node]) -> list[str]:
    models = Counter(model for node in nodes for model in node.gpu_models)
    if len(models) < 2:
        return []
    where = {model: sorted({node.name for node in nodes if model in node.gpu_models}) for model in models}
    said = "; ".join(f"{count} x {model} on {', '.join(where[model])}" for model, count in models.most_common())
    return [f"the GPUs of this run are of {len(models)} models: {said}"]
