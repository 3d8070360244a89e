"""Whether the partition that the site's jobs go to, and its nodes, can give what the site file asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from base.finding import Finding
from base.names import choices
from base.units import counted, format_duration, format_size
from cluster.doctor.asked import Asked
from cluster.schedulers.slurm.partitions import Nodes, Partition, default_partition, longest_s, whole_number

SUBJECT: Final = "partitions"


def judge_partitions(partitions: Mapping[str, Partition], nodes: Sequence[Nodes], asked: Asked) -> tuple[Finding, ...]:
    """The partition that the site's jobs go to, and which others there are."""
    default = default_partition(partitions)
    name = asked.queue or default
    if name is None:
        advice = f"queue: NAME in the site file; {choices('', partitions)}"
        return (Finding(SUBJECT, "error", "the site names no queue, and this cluster has no default partition", advice),)
    if name not in partitions:
        text = f"queue {name!r} of the site file is not a partition of this cluster"
        return (Finding(SUBJECT, "error", text, choices(name, partitions)),)
    others = [other for other in partitions if other != name]
    own = [group for group in nodes if group.partition == name]
    findings = [Finding(SUBJECT, "ok", _summary(name, partitions[name], own, name == default))]
    if others:
        said = "; ".join(
            _summary(other, partitions[other], [group for group in nodes if group.partition == other], other == default)
            for other in others[:8]
        )
        findings.append(Finding(SUBJECT, "ok", f"besides: {said}{'; ...' if len(others) > 8 else ''}"))
    findings += _state(name, partitions[name], own)
    findings += _rules(name, partitions[name], asked)
    findings += _sizes(name, [group for group in own if group.usable] or own, asked)
    return tuple(findings)


def _summary(name: str, partition: Partition, nodes: Sequence[Nodes], default: bool) -> str:
    groups: dict[str, int] = {}
    for group in nodes:
        gpus = f", {counted(group.gpus, 'GPU')}{f' {group.gpu_model}' if group.gpu_model else ''}" if group.gpus else ""
        size = f"{counted(group.cpus, 'core')}, {format_size(group.memory_bytes)}{gpus}"
        groups[size] = groups.get(size, 0) + group.count
    said = " and ".join(f"{counted(count, 'node')} of {size}" for size, count in groups.items()) or "no nodes"
    limit = partition.get("MaxTime", "UNLIMITED")
    return f"{name}{' (default)' if default else ''}: {said}; at most {'for ever' if limit == 'UNLIMITED' else limit}"


def _state(name: str, partition: Partition, nodes: Sequence[Nodes]) -> Iterator[Finding]:
    if partition.get("State", "UP") != "UP":
        yield Finding(SUBJECT, "error", f"partition {name} is {partition['State']}: jobs wait there", "another queue, or wait")
    away = sum(group.count for group in nodes if not group.usable)
    total = sum(group.count for group in nodes)
    if total and away == total:
        states = ", ".join(sorted({group.state for group in nodes}))
        yield Finding(SUBJECT, "error", f"no node of {name} can be used: {states}", "`sinfo -R` says why; another queue, or wait")
    elif away:
        states = ", ".join(sorted({group.state for group in nodes if not group.usable}))
        yield Finding(SUBJECT, "note", f"{away} of {counted(total, 'node')} of {name} cannot be used now: {states}", "`sinfo -R` says why")


def _rules(name: str, partition: Partition, asked: Asked) -> Iterator[Finding]:
    longest = longest_s(partition)
    if longest is not None and asked.walltime_s is not None and asked.walltime_s > longest:
        text = f"walltime {format_duration(asked.walltime_s)} of the site file is longer than MaxTime {partition['MaxTime']} of {name}"
        yield Finding(SUBJECT, "error", text, f"walltime: {int(longest)}s, or shorter: such jobs are refused or wait for ever")
    if asked.walltime_s is None:
        text = f"the site file states no walltime; {name} allows {partition.get('MaxTime', 'UNLIMITED')}"
        yield Finding(SUBJECT, "note", text, "walltime in the site file, so that a study that wants more is refused before it is submitted")
    for key, said in (("AllowAccounts", asked.account), ("AllowQos", asked.qos)):
        allowed = partition.get(key, "ALL")
        if allowed != "ALL" and said not in allowed.split(","):
            text = f"{name} is open to {key.removeprefix('Allow').lower()} {allowed} only; the site file says {said or 'none'}"
            yield Finding(
                SUBJECT, "error" if said else "warning", text, f"{'account' if key == 'AllowAccounts' else 'qos'} in the site file"
            )
    if partition.get("AllowGroups", "ALL") != "ALL":
        yield Finding(SUBJECT, "note", f"{name} is open to the groups {partition['AllowGroups']} only", "`id` says yours")
    if partition.get("OverSubscribe", "NO").startswith(("FORCE", "YES")) and not asked.share_nodes:
        text = f"OverSubscribe {partition['OverSubscribe']} of {name}: jobs may share cores"
        yield Finding(SUBJECT, "note", text, "nothing: runs ask for whole nodes (--exclusive); `FORCE` would override that")
    if partition.get("PreemptMode") == "OFF":
        yield Finding(SUBJECT, "ok", f"jobs of {name} are not preempted, whatever the cluster's PreemptMode")
    most = whole_number(partition.get("MaxNodes", ""))
    if most is not None:
        text = f"a job of {name} may have at most {counted(most, 'node')}"
        yield Finding(SUBJECT, "note", text, "no more than that on the axis `nodes` of a study")


def _sizes(name: str, nodes: Sequence[Nodes], asked: Asked) -> Iterator[Finding]:
    for key, said, found, show in (
        ("gpus_per_node", asked.gpus_per_node, [group.gpus for group in nodes], _plain),
        ("cpus_per_node", asked.cpus_per_node, [group.cpus for group in nodes], _plain),
        ("memory_per_node", asked.memory_per_node_bytes, [group.memory_bytes for group in nodes], format_size),
    ):
        if said is None or not found or said <= min(found):
            continue
        if said > max(found):
            text = f"{key} {show(said)} of the site file: the nodes of {name} have {show(max(found))} at most"
            yield Finding(SUBJECT, "error", text, f"{key}: {show(max(found))} or less; such jobs are refused, or wait for ever")
        else:
            few = sum(group.count for group, value in zip(nodes, found, strict=True) if said <= value)
            yield Finding(SUBJECT, "note", f"{key} {show(said)} of the site file: only {counted(few, 'node')} of {name} have so much")
    models = {group.gpu_model for group in nodes if group.gpus}
    if len(models) > 1:
        text = f"{name} has GPUs of several models: {', '.join(sorted(models))}; cells that get different ones cannot be compared"
        yield Finding(SUBJECT, "warning", text, "constraint: FEATURE in the site file picks one")
    if any(group.gpus for group in nodes) and asked.device == "cuda" and asked.gpus_per_node is None:
        text = f"the nodes of {name} have GPUs; the site file does not say how many: none are asked for"
        yield Finding(SUBJECT, "warning", text, f"gpus_per_node: {min(group.gpus for group in nodes if group.gpus)} in the site file")


def _plain(number: float) -> str:
    return f"{number:g}"
