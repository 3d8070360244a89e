"""The nodes of a run in the words in which machines are bought: processors, cores, memory, GPUs, network. What is not known is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

from msgspec import UnsetType

from workflow.run.record.machine_load import beyond
from workflow.run.record.model import Column, Interface, Load, Long, MachineCores, Node, Part, Real, Whole

GIB: Final = 2**30


class Machines(Part, frozen=True, kw_only=True):
    """All nodes of a run together."""

    hosts: Annotated[Long | None, Column()]
    hardware: Annotated[Long | None, Column()]
    machine: Annotated[Long | None, Column()]
    gpu_models: Annotated[Long | None, Column()]
    mixed_hardware: Annotated[bool, Column()]
    num_gpus: Annotated[Whole, Column()]
    memory_per_node_bytes: Annotated[Whole | None, Column()]
    staged_bytes: Annotated[Whole | None, Column()]
    copied_bytes: Annotated[Whole | None, Column()]
    busy_cores: Annotated[Real | None, Column()]
    """What others used of the node where that was most, where it was more than the limit."""
    busy_of_cores: Annotated[Whole | None, Column()]
    others_unseen: Annotated[bool | None, Column()]
    """Whether on a node nobody knows what others used while it measured; None of a version that did not watch."""


class _Machine(NamedTuple):
    gpus: frozenset[str]
    name: str
    words: str


def machines_of(nodes: Sequence[Node]) -> Machines:
    """Return what the nodes of a record are together."""
    gpus = [tuple([gpu.model for gpu in node.gpus]) for node in nodes]
    machines = {
        _machine(own, node.cpu_model, node.machine_cores, node.memory_bytes, node.network) for own, node in zip(gpus, nodes, strict=True)
    }
    models = frozenset().union(*(machine.gpus for machine in machines))
    names = {machine.name for machine in machines if machine.name}
    loads = [node.load for node in nodes if isinstance(node.load, Load)]
    busiest = max(map(_others, loads), key=lambda found: found[0] or 0.0, default=(None, None))
    stages = [node.stage for node in nodes]
    return Machines(
        hosts=",".join([node.hostname for node in nodes]) or None,
        hardware=" + ".join(sorted(names)) or None,
        machine=" + ".join(sorted({machine.words for machine in machines if machine.words})) or None,
        gpu_models=" + ".join(sorted(models)) or None,
        mixed_hardware=len(names) > 1 or any(len(machine.gpus) > 1 for machine in machines),
        num_gpus=sum(map(len, gpus)),
        memory_per_node_bytes=min((node.memory_bytes for node in nodes if node.memory_bytes is not None), default=None),
        staged_bytes=_total([None if stage is None else stage.bytes for stage in stages]),
        copied_bytes=_total([None if stage is None else stage.copied_bytes for stage in stages]),
        busy_cores=busiest[0],
        busy_of_cores=busiest[1],
        others_unseen=_unseen(nodes),
    )


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if 0 < len(known) == len(values) else None


def _others(load: Load) -> tuple[float | None, int | None]:
    """Return the cores that others used while it measured, and of how many; None where that was less than the limit."""
    during = load.during
    seen = during is not None and beyond(load.cores, during.others_cores, during.seconds)
    return (during.others_cores, load.cores) if during is not None and seen else (None, None)


def _unseen(nodes: Sequence[Node]) -> bool | None:
    watched = [node.load for node in nodes if not isinstance(node.load, UnsetType)]
    return any(load is None or load.during is None or load.during.others_cores is None for load in watched) if watched else None


@lru_cache(maxsize=1024)
def _machine(
    gpus: tuple[str | None, ...],
    cpu: str | None,
    cores: MachineCores | None,
    memory_bytes: int | None,
    network: tuple[Interface, ...] | None,
) -> _Machine:
    """Return the machine in words; most nodes of a study are alike, so each kind is looked at once."""
    models = frozenset(gpu for gpu in gpus if gpu)
    name = ", ".join(part for part in (" and ".join(sorted(models)), cpu) if part)
    return _Machine(models, name, machine_words(cpu, cores, memory_bytes, gpus, network or ()))


def machine_words(
    cpu: str | None, cores: MachineCores | None, memory_bytes: int | None, gpus: Sequence[str | None], network: Sequence[Interface]
) -> str:
    """Return `2 x Intel Xeon Gold 6230, 40 cores (80 threads), 188 GiB memory, 8 x NVIDIA H100, 2 x InfiniBand 400 Gbit/s`."""
    sockets = f"{cores.sockets} \N{MULTIPLICATION SIGN} " if cores and cores.sockets > 1 else ""
    parts = [sockets + cpu] if cpu else []
    if cores:
        threads = f" ({cores.cpus} threads)" if cores.cpus != cores.cores else ""
        parts.append(f"{cores.cores} {'core' if cores.cores == 1 else 'cores'}{threads}")
    if memory_bytes:
        gib = memory_bytes / GIB
        parts.append(f"{round(gib) if gib >= 1 else f'{gib:.2g}'} GiB memory")
    parts += _counted(Counter(gpu for gpu in gpus if gpu))
    parts += _counted(Counter(f"{link.kind} {_rate(link.mbit_per_s)}".rstrip() for link in network))
    return ", ".join(parts)


def _counted(counts: Counter[str]) -> list[str]:
    return [f"{count} \N{MULTIPLICATION SIGN} {name}" if count > 1 else name for name, count in sorted(counts.items())]


def _rate(mbit: int | None) -> str:
    if mbit is None:
        return ""
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"
