"""Check the partition that the jobs of a site go to, and propose one for a site file. What no node of it has, sbatch refuses."""

from collections.abc import Iterator, Mapping, Sequence

from base.humanize import choices, counted, format_size
from cluster.schedulers.slurm import answers
from cluster.schedulers.slurm.answers import SLURM, Nodes, Partition
from extras.doctor.types import Finding, Value, mib, query
from workflow.study.site import Site


def judge(site: Site) -> Iterator[Finding]:
    """Ask the controller for the partitions, and check them."""
    yield from judge_partitions(*_partitions(), site)


def _partitions() -> tuple[dict[str, Partition], tuple[Nodes, ...]]:
    return answers.parse_partitions(query(SLURM, *answers.SHOW)), answers.parse_nodes(query(SLURM, *answers.SINFO))


def judge_partitions(partitions: Mapping[str, Partition], nodes: Sequence[Nodes], site: Site) -> Iterator[Finding]:
    """Check the partition that the site's jobs go to."""
    default = answers.default_partition(partitions)
    name = site.queue or default
    if name is None:
        advice = f"queue: NAME in the site file; {choices('', partitions)}"
        yield Finding("partitions", "error", "the site names no queue, and this cluster has no default partition", advice)
        return
    if name not in partitions:
        yield Finding("partitions", "error", f"queue {name!r} is no partition of this cluster", choices(name, partitions))
        return
    own = [group for group in nodes if group.partition == name]
    yield Finding("partitions", "ok", _summary(name, partitions[name], own, name == default))
    if partitions[name].get("State", "UP") != "UP":
        yield Finding("partitions", "error", f"partition {name} is {partitions[name]['State']}: jobs wait there", "another queue, or wait")
    if site.device == "cuda" and site.gpus_per_node is None and (most := max((group.gpus for group in own), default=0)):
        text = f"the nodes of {name} have GPUs; the site file does not say how many: none are asked for"
        yield Finding("partitions", "warning", text, f"gpus_per_node: {most} or less in the site file")


def _summary(name: str, partition: Partition, nodes: Sequence[Nodes], default: bool) -> str:
    groups: dict[str, int] = {}
    for group in nodes:
        gpus = f", {counted(group.gpus, 'GPU')}{f' {group.gpu_model}' if group.gpu_model else ''}" if group.gpus else ""
        size = f"{counted(group.cpus, 'core')}, {format_size(group.memory_bytes)}{gpus}"
        groups[size] = groups.get(size, 0) + group.count
    said = " and ".join(f"{counted(count, 'node')} of {size}" for size, count in groups.items()) or "no nodes"
    limit = partition.get("MaxTime", "UNLIMITED")
    return f"{name}{' (default)' if default else ''}: {said}; at most {'for ever' if limit == 'UNLIMITED' else limit}"


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
