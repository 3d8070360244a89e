"""Check Slurm: the controller, its configuration, and the partition of the site's jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from base.humanize import choices, counted, format_size
from cluster.schedulers.slurm import answers
from cluster.schedulers.slurm.answers import SLURM, Nodes, Partition
from extras.doctor.types import Finding, Level, Value, mib, query
from workflow.study.site import Site

OLDEST: Final = (20, 11)
"""The first version whose srun has --overlap, so that a step can start beside the batch script."""
UNSET: Final = ("", "(null)", "none", "n/a")
CONFIG: Final = ("scontrol", "show", "config")

Config = Mapping[str, str]


def judge(site: Site) -> Iterator[Finding]:
    """Check the controller, the configuration and the partitions."""
    yield from judge_config(parse_config(query(SLURM, *CONFIG)), site)
    yield from judge_partitions(*_partitions(), site)


def _partitions() -> tuple[dict[str, Partition], tuple[Nodes, ...]]:
    return answers.parse_partitions(query(SLURM, *answers.SHOW)), answers.parse_nodes(query(SLURM, *answers.SINFO))


def parse_config(text: str) -> dict[str, str]:
    """Parse `Name = value` lines, including the cgroup section. A repeated name keeps its first value."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and re.fullmatch(r"\w+(\[\d+\])?", name.strip()):
            found.setdefault(name.strip(), value.strip())
    return found


def is_set(value: str | None) -> bool:
    """Return True if a value is not empty."""
    return (value or "").strip().lower() not in UNSET


def has_accounting(config: Config) -> bool:
    """Return True if there is a slurmdbd, so that sacct answers."""
    return config.get("AccountingStorageType", "").endswith("/slurmdbd")


def judge_config(config: Config, site: Site) -> Iterator[Finding]:
    """Report what matters to a run in the configuration."""
    version = re.search(r"(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    name = f"Slurm {config.get('SLURM_VERSION', 'of unknown version')}"
    if version is not None and (int(version[1]), int(version[2])) < OLDEST:
        text = f"{name}: srun has no --overlap before 20.11, so no step can start beside the batch script"
        yield Finding("scheduler", "error", text, "update")
    elif has_accounting(config):
        yield Finding("scheduler", "ok", f"{name}, accounting by slurmdbd at {config.get('AccountingStorageHost')}")
    else:
        account = f"; account {site.account!r} of the site file means nothing here" if is_set(site.account) else ""
        text = f"{name}, no slurmdbd: sacct answers 'accounting storage is disabled'{account}"
        yield Finding("scheduler", "note", text, "nothing: Slipway asks squeue and scontrol")
    if (site.gpus_per_node or site.device == "cuda") and "gpu" not in config.get("GresTypes", "").split(","):
        text = f"the site has GPUs, but GresTypes is {config.get('GresTypes')}: Slurm does not know them, a job with --gres=gpu is refused"
        level: Level = "error" if site.gpus_per_node else "warning"
        yield Finding("scheduler", level, text, "leave gpus_per_node out of the site file, or ask for GresTypes=gpu")


# The partition of the site's jobs, and what its nodes can give.


def judge_partitions(partitions: Mapping[str, Partition], nodes: Sequence[Nodes], site: Site) -> Iterator[Finding]:
    """Check the partition that the site's jobs go to, and list the others. Its name and time limit are checked for every scheduler."""
    default = answers.default_partition(partitions)
    name = site.queue or default
    if name is None:
        advice = f"queue: NAME in the site file; {choices('', partitions)}"
        yield Finding("partitions", "error", "the site names no queue, and this cluster has no default partition", advice)
    if name is None or name not in partitions:
        return
    groups = {other: [group for group in nodes if group.partition == other] for other in partitions}
    yield Finding("partitions", "ok", _summary(name, partitions[name], groups[name], name == default))
    others = [_summary(other, partitions[other], groups[other], other == default) for other in partitions if other != name]
    if others:
        yield Finding("partitions", "ok", f"besides: {'; '.join(others[:8])}{'; ...' if len(others) > 8 else ''}")
    usable = [group for group in groups[name] if group.usable]
    yield from _state(name, partitions[name], groups[name])
    yield from _rules(name, partitions[name], site)
    yield from _sizes(name, usable or groups[name], site)


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
        yield Finding("partitions", "error", f"partition {name} is {partition['State']}: jobs wait there", "another queue, or wait")
    away = [group for group in nodes if not group.usable]
    if away:
        lost, total = sum(group.count for group in away), sum(group.count for group in nodes)
        text = f"{lost} of {counted(total, 'node')} of {name} cannot be used now: {', '.join(sorted({group.state for group in away}))}"
        yield Finding("partitions", "error" if lost == total else "note", text, "`sinfo -R` says why")


def _rules(name: str, partition: Partition, site: Site) -> Iterator[Finding]:
    if site.walltime_s is None:
        text = f"the site file states no walltime; {name} allows {partition.get('MaxTime', 'UNLIMITED')}"
        advice = "walltime in the site file, so that a study that wants more is refused before it is submitted"
        yield Finding("partitions", "note", text, advice)
    for key, what, value in (("AllowAccounts", "account", site.account), ("AllowQos", "qos", site.qos)):
        allowed = partition.get(key, "ALL")
        if allowed != "ALL" and value not in allowed.split(","):
            text = f"{name} is open to {key.removeprefix('Allow').lower()} {allowed} only; the site file says {value or 'none'}"
            yield Finding("partitions", "error" if value else "warning", text, f"{what} in the site file")


def _sizes(name: str, nodes: Sequence[Nodes], site: Site) -> Iterator[Finding]:
    for key, value, found in (
        ("gpus_per_node", site.gpus_per_node, [group.gpus for group in nodes]),
        ("cpus_per_node", site.cpus_per_node, [group.cpus for group in nodes]),
        ("memory_per_node", site.memory_per_node_bytes, [group.memory_bytes for group in nodes]),
    ):
        if value is None or not found or value <= min(found):
            continue
        show = format_size if key == "memory_per_node" else str
        if value > max(found):
            text = f"{key} {show(value)} of the site file: the nodes of {name} have {show(max(found))} at most"
            yield Finding("partitions", "error", text, f"{key}: {show(max(found))} or less; such jobs are refused, or wait for ever")
        else:
            few = sum(group.count for group, number in zip(nodes, found, strict=True) if value <= number)
            text = f"{key} {show(value)} of the site file: only {counted(few, 'node')} of {name} have so much"
            yield Finding("partitions", "note", text)
    with_gpus = [group for group in nodes if group.gpus]
    models = {group.gpu_model for group in with_gpus}
    if len(models) > 1:
        text = f"{name} has GPUs of several models: {', '.join(sorted(models))}; cells that get different ones cannot be compared"
        yield Finding("partitions", "warning", text, "constraint: FEATURE in the site file picks one")
    if with_gpus and site.device == "cuda" and site.gpus_per_node is None:
        text = f"the nodes of {name} have GPUs; the site file does not say how many: none are asked for"
        yield Finding("partitions", "warning", text, f"gpus_per_node: {min(group.gpus for group in with_gpus)} in the site file")


# What a draft of a site file and the checks of nodes need.


def propose() -> dict[str, Value]:
    """Propose keys of a site file from the partitions. Raises SchedulerOutputError."""
    return from_partitions(*_partitions())


def choose_partition(partitions: Mapping[str, Partition], nodes: Sequence[Nodes]) -> str | None:
    """Choose the default partition, or if only others have GPUs, the one of these with the most usable nodes."""
    default = answers.default_partition(partitions)
    usable = [group for group in nodes if group.usable and partitions.get(group.partition, {}).get("State") == "UP"]
    with_gpus: dict[str, int] = {}
    for group in usable:
        if group.gpus:
            with_gpus[group.partition] = with_gpus.get(group.partition, 0) + group.count
    if with_gpus and default not in with_gpus:
        return max(with_gpus, key=lambda name: with_gpus[name])
    return default or next((group.partition for group in usable), next(iter(partitions), None))


def from_partitions(partitions: Mapping[str, Partition], nodes: Sequence[Nodes]) -> dict[str, Value]:
    """Propose queue, sizes and walltime."""
    name = choose_partition(partitions, nodes)
    if name is None:
        return {}
    own = [group for group in nodes if group.partition == name]
    own = [group for group in own if group.usable] or own
    others = ", ".join(other for other in partitions if other != name)
    why = "the default partition" if name == answers.default_partition(partitions) else "the largest with GPUs"
    found = {"queue": Value(value=name, why=why + (f"; others: {others}" if others else ""))}
    if own:
        smallest = "" if len({(group.cpus, group.memory_bytes, group.gpus) for group in own}) == 1 else ", the smallest of its nodes"
        found["cpus_per_node"] = Value(value=min(group.cpus for group in own), why=f"as sinfo says of {name}{smallest}")
        found["memory_per_node"] = Value(value=mib(min(group.memory_bytes for group in own)), why=f"as sinfo says of {name}{smallest}")
    gpus = [group for group in own if group.gpus]
    if gpus:
        models = ", ".join(sorted({group.gpu_model for group in gpus if group.gpu_model})) or "gres"
        found["gpus_per_node"] = Value(value=min(group.gpus for group in gpus), why=f"as sinfo says of {name}: {models}")
    longest = answers.parse_duration(partitions[name].get("MaxTime", ""))
    if longest is not None:
        found["walltime"] = Value(value=duration(longest), why=f"MaxTime of {name}")
    return found


def duration(seconds: float) -> str:
    """Format seconds for a site file."""
    whole = int(seconds)
    parts = ((whole // 86400, "d"), (whole % 86400 // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "1s"


def allocation(site: Site) -> tuple[str, ...]:
    """Return the salloc with the requests of the site's jobs."""
    keys = (("partition", site.queue), ("account", site.account), ("qos", site.qos), ("constraint", site.constraint))
    gres = [f"--gres=gpu:{site.gpus_per_node}"] if site.gpus_per_node else []
    return ("salloc", "--nodes=2", "--exclusive", "--time=10", *(f"--{name}={value}" for name, value in keys if value), *gres)
