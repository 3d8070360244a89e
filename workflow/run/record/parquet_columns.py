"""Define the columns of records.parquet, which follow from the record's types (`Column` in model.py). Names carry units; null means not
measured.

Series of losses stay in the records: they are read where a curve is drawn, and would be most of the bytes here.
"""

import math
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

import msgspec
import polars as pl
from msgspec import UnsetType

from workflow.run.record import model, outcome, step_clock

# The nodes of a run in the words in which machines are bought: processors, cores, memory, GPUs, network. What is not known is left out.


GIB: Final = 2**30


class Machines(model.Part, frozen=True, kw_only=True):
    """All nodes of a run together."""

    hosts: Annotated[model.Long | None, model.Column()]
    hardware: Annotated[model.Long | None, model.Column()]
    machine: Annotated[model.Long | None, model.Column()]
    gpu_models: Annotated[model.Long | None, model.Column()]
    mixed_hardware: Annotated[bool, model.Column()]
    num_gpus: Annotated[model.Whole, model.Column()]
    memory_per_node_bytes: Annotated[model.Whole | None, model.Column()]
    staged_bytes: Annotated[model.Whole | None, model.Column()]
    copied_bytes: Annotated[model.Whole | None, model.Column()]
    others_unseen: Annotated[bool | None, model.Column()]
    """True if on a node nobody knows what others used while it measured; None of a version that did not watch."""
    energy_gpu_j: Annotated[model.Real | None, model.Column()]
    """Joules of all GPUs of the run in the measured window; None unless each is known."""
    energy_node_j: Annotated[model.Real | None, model.Column()]
    """Joules of the processors and memory of all machines of the run, whoever used them, each machine once; likewise."""
    energy_note: Annotated[model.Long | None, model.Column()]
    """Why one of them is not known."""
    io_wait_ratio: Annotated[model.Share | None, model.Column()]
    """Part of the window in which some task waited for a disk; pages read from one in a second: each of the node with most."""
    faults_per_s: Annotated[model.Real | None, model.Column()]
    gpu_busy_ratio: Annotated[model.Share | None, model.Column()]
    """Mean of the GPUs that were looked at."""


def machines_of(nodes: Sequence[model.Node]) -> Machines:
    """Sum up the nodes of a record: hosts, hardware, GPUs, staged bytes, and the loads."""
    kinds = {
        (node.cpu_model, node.machine_cores, node.memory_bytes, tuple([gpu.model for gpu in node.gpus]), node.network or ())
        for node in nodes
    }
    gpus = [frozenset(filter(None, one)) for _, _, _, one, _ in kinds]
    models = frozenset().union(*gpus)
    names = {", ".join(filter(None, (" and ".join(sorted(own)), cpu))) for own, (cpu, *_) in zip(gpus, kinds, strict=True)} - {""}
    loads = [node.load for node in nodes if isinstance(node.load, model.Load)]
    stages = [node.stage for node in nodes]
    during = [load.during for load in loads if load.during is not None]
    gpus_busy = [gpu.busy_ratio_mean for part in during for gpu in part.gpus or () if gpu.busy_ratio_mean is not None]
    gpu_j, node_j, why = energy_of_nodes(nodes)
    return Machines(
        hosts=",".join([node.hostname for node in nodes]) or None,
        hardware=" + ".join(sorted(names)) or None,
        machine=" + ".join(sorted({machine_words(*kind) for kind in kinds} - {""})) or None,
        gpu_models=" + ".join(sorted(models)) or None,
        mixed_hardware=len(names) > 1 or any(len(own) > 1 for own in gpus),
        num_gpus=sum(len(node.gpus) for node in nodes),
        memory_per_node_bytes=min((node.memory_bytes for node in nodes if node.memory_bytes is not None), default=None),
        staged_bytes=_total([None if stage is None else stage.bytes for stage in stages]),
        copied_bytes=_total([None if stage is None else stage.copied_bytes for stage in stages]),
        others_unseen=_unseen(nodes),
        io_wait_ratio=max((part.io_wait_ratio for part in during if part.io_wait_ratio is not None), default=None),
        faults_per_s=max(
            (part.major_faults / part.seconds for part in during if part.major_faults is not None and part.seconds), default=None
        ),
        gpu_busy_ratio=sum(gpus_busy) / len(gpus_busy) if gpus_busy else None,
        energy_gpu_j=gpu_j,
        energy_node_j=node_j,
        energy_note=why,
    )


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if 0 < len(known) == len(values) else None


def _unseen(nodes: Sequence[model.Node]) -> bool | None:
    watched = [node.load for node in nodes if not isinstance(node.load, UnsetType)]
    return any(load is None or load.during is None or load.during.others_cores is None for load in watched) if watched else None


def machine_words(
    cpu: str | None,
    cores: model.MachineCores | None,
    memory_bytes: int | None,
    gpus: Sequence[str | None],
    network: Sequence[model.Interface],
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


INSTANCE: Final = "MIG-"
NO_COUNTER: Final = "GPUs: no counter, or too few looks at it"
OF_INSTANCES: Final = "GPUs: a MIG instance has no counter of its own"
NO_RAPL: Final = {
    "not permitted": "processors: only root may read RAPL there",
    "none": "processors: no RAPL, as in most virtual machines",
    "read": "processors: too few looks at RAPL in the window",
    None: "processors: nobody looked at RAPL in the window",
}
"""What a node knows of RAPL -> why there is no energy of the processors."""


def energy_of_nodes(nodes: Sequence[model.Node]) -> tuple[float | None, float | None, str | None]:
    """Return the joules of the window of all GPUs, those of the processors and memory of all machines, each None unless all are known, and
    why one of them is not. Nodes that are shares of one machine, by its name, tell of its processors once."""
    loads = [node.load if isinstance(node.load, model.Load) else None for node in nodes]
    parts = [None if load is None else load.during for load in loads]
    gpu_j, why = _of_gpus(nodes, parts)
    machines: dict[str, float | None] = {}
    for node, part in zip(nodes, parts, strict=True):
        joules = None if part is None else part.package_j
        machines[node.hostname] = max((one for one in (machines.get(node.hostname), joules) if one is not None), default=None)
    known = [joules for joules in machines.values() if joules is not None]
    if len(known) == len(machines):
        return gpu_j, math.fsum(known), why
    without = [load for load, node in zip(loads, nodes, strict=True) if machines[node.hostname] is None]
    reasons = dict.fromkeys(NO_RAPL[None if load is None or load.during is None else load.rapl] for load in without)
    return gpu_j, None, "; ".join(filter(None, (why, *reasons)))


def _of_gpus(nodes: Sequence[model.Node], parts: Sequence[model.LoadOf | None]) -> tuple[float | None, str | None]:
    """Return the joules of all GPUs, or why they are not known; neither where there are none."""
    granted = [gpu for node in nodes for gpu in node.gpus]
    known = [gpu.energy_j for part in parts if part is not None for gpu in part.gpus or () if gpu.energy_j is not None]
    if len(known) < len(granted):
        return None, OF_INSTANCES if any((gpu.uuid or "").startswith(INSTANCE) for gpu in granted) else NO_COUNTER
    return (math.fsum(known) if granted else None), None


RESULTS: Final = tuple(status for status, error in outcome.TABLE.items() if error is None)
PREVENTED: Final = tuple(status for status in outcome.TABLE if status not in RESULTS)
UNREADABLE: Final = "unreadable"
MISSING: Final = "missing"
UNMEASURED: Final = "not measured"  # ended ok, but there is no rate
TIMES_ONLY: Final = "wall times only"  # ended ok, and its program tells of no steps

SHOWN_STEPS: Final = step_clock.STEPS[1:]  # login is of the command, the same for all runs of a start: it says nothing of a cell
BESIDE: Final = "assign"  # told by the scheduler: it stands beside the sum of the others, which is run_s

SOFTWARE: Final = ("framework_version", "torch_version", "cuda_version", "cudnn_version", "nccl_version", "driver_version")
SETTINGS: Final = ("tf32", "cudnn_benchmark", "cudnn_deterministic", "deterministic_algorithms")
PROVENANCE: Final = tuple(name for name in model.Provenance.__struct_fields__ if name not in ("framework", "gpu_memory_bytes"))
"""What the report shows of a run's origin, and what must not differ inside a series."""


class Stored(NamedTuple):
    """A column: the attributes and the keys in the file that lead to the value of the record, the type of the column, and the function that
    converts the value."""

    attributes: tuple[str, ...]
    path: str
    dtype: pl.DataType
    convert: Callable[[Any], Any] | None = None


_TYPES: Final = {float: pl.Float64(), int: pl.Int64(), bool: pl.Boolean(), str: pl.String()}


def _stored(attributes: tuple[str, ...], path: str, kind: Any) -> Stored:
    inner = model.plain(kind)
    if get_origin(inner) is tuple:
        entry = model.plain(get_args(inner)[0])
        if entry is model.EvaluationAt:
            return Stored(attributes, path, pl.List(pl.Float64()), _curve)
        if get_origin(entry) is tuple:
            return Stored(attributes, path, pl.List(pl.Float64()), _flat)
        return Stored(attributes, path, pl.List(_TYPES.get(entry, pl.String())))
    if get_origin(inner) in (types.UnionType, Union):
        return Stored(attributes, path, pl.String(), _text)
    return Stored(attributes, path, _TYPES.get(inner, pl.String()))


def _flat(pairs: tuple[tuple[float, float], ...]) -> list[float]:
    """Return one number after the other, since a column of parquet is one list."""
    return [number for pair in pairs for number in pair]


class Point(NamedTuple):
    """The numbers of an evaluation in the column of evaluations, where they stand one after the other."""

    step: int
    epoch: float | None
    accuracy: float
    training_s: float | None


def _curve(evaluations: tuple[model.EvaluationAt, ...]) -> list[float | None]:
    """Return the points of the evaluations that have an accuracy, on the split that was evaluated most often."""
    told = [one for one in evaluations if one.accuracy is not None]
    splits = Counter(one.split for one in told)
    return [getattr(one, name) for one in told if one.split == max(splits, key=splits.__getitem__) for name in Point._fields]


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _columns(part: Any, attributes: tuple[str, ...] = (), path: str = "") -> Iterator[tuple[str, Stored]]:
    for entry in msgspec.structs.fields(part):
        own, place, inner = (*attributes, entry.name), f"{path}{entry.encode_name}", model.plain(entry.type)
        for column in getattr(entry.type, "__metadata__", ()):
            if isinstance(column, model.Column):
                yield column.name or entry.name, _stored(own, place, entry.type)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from _columns(inner, own, f"{place}.")


FIELDS: Final[dict[str, Stored]] = dict(_columns(model.RunRecord))
"""Column -> where its value is in a record."""
MACHINES: Final[dict[str, Stored]] = dict(_columns(Machines))
"""Column -> where its value is in `Machines`, the sums over the nodes of a record."""


COLUMNS: Final = (*FIELDS, *MACHINES)


def _value(part: Any, attributes: tuple[str, ...]) -> Any:
    """Return what the attributes lead to, None where a part on the way is None."""
    for name in attributes:
        if part is None:
            return None
        part = getattr(part, name)
    return part


def row_of(record: model.RunRecord) -> tuple[Any, ...]:
    """Return the values of COLUMNS as the record has them."""
    machines = machines_of(record.nodes)
    return (
        *[_value(record, stored.attributes) for stored in FIELDS.values()],
        *[_value(machines, stored.attributes) for stored in MACHINES.values()],
    )


def values_of(rows: Sequence[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    """Return the values of each column, as it is stored."""
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(COLUMNS, ())
    stored = {**FIELDS, **MACHINES}
    return {
        name: values if (convert := stored[name].convert) is None else [None if value is None else convert(value) for value in values]
        for name, values in columns.items()
    }
