"""What a site file could say of this cluster, by its partitions: queue, sizes, walltime. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster.schedulers.doctor import Value, mib
from cluster.schedulers.slurm.partitions import Nodes, Partition, default_partition, longest_s


def choose_partition(partitions: Mapping[str, Partition], nodes: Sequence[Nodes]) -> str | None:
    """Pure: the default partition; where only others have GPUs, the one of these with the most usable nodes."""
    default = default_partition(partitions)
    usable = [group for group in nodes if group.usable and partitions.get(group.partition, {}).get("State") == "UP"]
    with_gpus: dict[str, int] = {}
    for group in usable:
        if group.gpus:
            with_gpus[group.partition] = with_gpus.get(group.partition, 0) + group.count
    if with_gpus and default not in with_gpus:
        return max(with_gpus, key=lambda name: with_gpus[name])
    return default or next((group.partition for group in usable), next(iter(partitions), None))


def from_partitions(partitions: Mapping[str, Partition], nodes: Sequence[Nodes]) -> dict[str, Value]:
    """Pure: queue, sizes and walltime."""
    name = choose_partition(partitions, nodes)
    if name is None:
        return {}
    own = [group for group in nodes if group.partition == name]
    own = [group for group in own if group.usable] or own
    others = ", ".join(other for other in partitions if other != name)
    why = "the default partition" if name == default_partition(partitions) else "the largest with GPUs"
    found = {"queue": Value(value=name, why=why + (f"; others: {others}" if others else ""))}
    if own:
        smallest = "" if len({(group.cpus, group.memory_bytes, group.gpus) for group in own}) == 1 else ", the smallest of its nodes"
        found["cpus_per_node"] = Value(value=min(group.cpus for group in own), why=f"as sinfo says of {name}{smallest}")
        found["memory_per_node"] = Value(value=mib(min(group.memory_bytes for group in own)), why=f"as sinfo says of {name}{smallest}")
        gpus = [group for group in own if group.gpus]
        if gpus:
            models = ", ".join(sorted({group.gpu_model for group in gpus if group.gpu_model})) or "gres"
            found["gpus_per_node"] = Value(value=min(group.gpus for group in gpus), why=f"as sinfo says of {name}: {models}")
    longest = longest_s(partitions[name])
    if longest is not None:
        found["walltime"] = Value(value=duration(longest), why=f"MaxTime of {name}")
    return found


def duration(seconds: float) -> str:
    """Pure: as a site file writes it."""
    whole = int(seconds)
    parts = ((whole // 86400, "d"), (whole % 86400 // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "1s"
