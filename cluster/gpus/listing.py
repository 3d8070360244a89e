"""What nvidia-smi and the driver show of this node's GPUs: parsers, and the few calls that ask."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from base.command import CommandResult, describe, run
from base.errors import AllocationError, SlipwayError
from base.foreign import digits, text
from base.jsonfile import read_content
from cluster.detection import scheduler_of
from cluster.limits import GPU_LIST_S

QUERY: Final = ("nvidia-smi", "--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader")
LIST: Final = ("nvidia-smi", "-L")
"""The only listing that names MIG instances; older drivers have no query for them."""
MAX_FILE: Final = 1 << 20
NO_DEVICES: Final = "No devices"
"""How nvidia-smi begins where the driver is there and every GPU is hidden from this process, or none is built in."""
DRIVER: Final = Path("/proc/driver/nvidia/gpus")
"""A directory per GPU of the node, by bus id: device cgroups do not hide them here."""

_BUS = re.compile(r"(?:([0-9A-Fa-f]+):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")
_UUID = re.compile(r"GPU-[!-~]{1,100}")
_GPU_LINE = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)\s]+)\)\s*")
_MIG_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)\s*")


class Gpu(NamedTuple):
    """One GPU of a machine, or one MIG instance of it. `number` is NVML's index of the GPU, good for showing only."""

    number: int
    uuid: str
    model: str
    bus_id: str = ""

    @property
    def is_instance(self) -> bool:
        """Whether this is a part of a GPU: it has a UUID of its own, and no number."""
        return self.uuid.startswith("MIG-")


@dataclass(frozen=True, kw_only=True)
class Place:
    """What is known of the node beside the GPUs that show and the environment."""

    hostname: str = ""
    node_buses: tuple[str, ...] = ()
    """Bus ids of all GPUs of the node, also of hidden ones; empty where that is not known."""
    gpu_file: str = ""
    """What stands in Torque's PBS_GPUFILE: `host-gpuN` lines of all nodes of the job."""


# -- pure


def bus_key(bus_id: str) -> tuple[int, int, int, int]:
    """Domain, bus, device, function: old drivers write the domain with four digits, new ones with eight. Raises ValueError."""
    found = _BUS.fullmatch(bus_id.strip())
    if found is None:
        raise ValueError(f"{bus_id!r} is no PCI bus id")
    domain, *rest = (int(part or "0", 16) for part in found.groups())
    return domain, rest[0], rest[1], rest[2]


def short_bus(bus_id: str) -> str:
    """`07:00.0`, as people say it; with the domain where that is not 0."""
    domain, bus, device, function = bus_key(bus_id)
    return f"{f'{domain:04X}:' if domain else ''}{bus:02X}:{device:02X}.{function}"


def in_pci_order(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Sorted by bus id, which is what schedulers count by; NVML's order may be another. MIG instances of a GPU keep their order."""
    return tuple(sorted(gpus, key=lambda gpu: (bus_key(gpu.bus_id) if gpu.bus_id else (0, 0, 0, 0), gpu.number)))


def parse_gpus(answer: str) -> tuple[Gpu, ...]:
    """The output of `QUERY`, as it stands. Raises AllocationError on a line that is none of it."""
    found = []
    for line in answer.splitlines():
        words = [word.strip() for word in line.split(",", 3)]
        number = digits(words[0])
        if len(words) != 4 or number is None or not _UUID.fullmatch(words[1]) or not _BUS.fullmatch(words[2]):
            raise AllocationError(
                f"nvidia-smi answered {line[:200]!r}, expected `index, GPU-uuid, bus id, name`: a GPU of this node may be lost; "
                f"check `{' '.join(QUERY)}` by hand, and dmesg for Xid"
            )
        found.append(Gpu(number, words[1], text(words[3], 200), words[2]))
    return tuple(found)


def parse_instances(text: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """The output of `LIST`: UUID of each GPU -> (profile, UUID) of its MIG instances."""
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    gpu = ""
    for line in text.splitlines():
        if match := _GPU_LINE.fullmatch(line):
            gpu = match[1]
            found[gpu] = ()
        elif gpu and (match := _MIG_LINE.fullmatch(line)):
            found[gpu] = (*found[gpu], (match[1], match[2]))
    return found


def with_instances(gpus: Iterable[Gpu], listed: Mapping[str, Sequence[tuple[str, str]]]) -> tuple[Gpu, ...]:
    """What programs can be given, in PCI order: a GPU that is divided cannot be used, its MIG instances stand in its place."""
    return tuple(
        unit
        for gpu in in_pci_order(gpus)
        for unit in (
            [Gpu(gpu.number, uuid, f"{gpu.model} MIG {profile}", gpu.bus_id) for profile, uuid in listed.get(gpu.uuid, ())] or [gpu]
        )
    )


def split_gpus(gpus: Sequence[Gpu], nodes: int, per_node: int) -> tuple[tuple[Gpu, ...], ...]:
    """As many groups of `per_node` as there are nodes, none twice. Raises AllocationError when there are fewer."""
    if len(gpus) < nodes * per_node:
        seen = ", ".join(gpu.uuid for gpu in gpus) or "none"
        raise AllocationError(
            f"{nodes} nodes x {per_node} GPUs were asked of this machine, which shows {len(gpus)}: {seen}; "
            f"use fewer, or `device: cpu` in the site file"
        )
    return tuple(tuple(gpus[node * per_node : (node + 1) * per_node]) for node in range(nodes))


# -- asking


def query_gpus() -> tuple[Gpu, ...]:
    """The GPUs and MIG instances that show here, in PCI order; none where there is no nvidia-smi. Raises AllocationError when it fails."""
    if shutil.which(QUERY[0]) is None:
        return ()
    answer = _ask(QUERY)
    return with_instances(parse_gpus(answer), parse_instances(_ask(LIST))) if answer else ()


def read_place(environ: Mapping[str, str], driver: Path = DRIVER) -> Place:
    """What Place holds. Raises AllocationError where PBS_GPUFILE names a file that cannot be read."""
    path = environ.get("PBS_GPUFILE", "") if scheduler_of(environ) == "pbs" else ""
    try:
        gpu_file = read_content(Path(path), AllocationError, MAX_FILE).decode(errors="replace") if path else ""
    except AllocationError as error:
        raise AllocationError(f"PBS_GPUFILE: {error}; it says which GPUs this job was granted") from error
    names = tuple(entry.name for entry in driver.iterdir() if _BUS.fullmatch(entry.name)) if driver.is_dir() else ()
    return Place(hostname=os.uname().nodename, node_buses=tuple(sorted(names, key=bus_key)), gpu_file=gpu_file)


def _ask(argv: Sequence[str]) -> str:
    """Its standard output, empty where it says that there are no devices."""
    try:
        result: CommandResult = run(argv, timeout_s=GPU_LIST_S)
    except SlipwayError as error:
        raise AllocationError(f"the GPUs of {os.uname().nodename} cannot be listed, one of them or the driver hangs: {error}") from error
    if (result.stdout + result.stderr).strip().startswith(NO_DEVICES):
        return ""
    if result.returncode:
        said = f"\n{result.stdout.strip()}" if result.stdout.strip() else ""  # nvidia-smi explains failures on standard output
        raise AllocationError(f"the GPUs of {os.uname().nodename} cannot be listed: {describe(result)}{said}")
    return result.stdout
