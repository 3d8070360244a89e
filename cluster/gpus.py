"""GPUs are UUIDs: which ones this process may use, by nvidia-smi and by what the environment restricts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from base.command import describe, run
from base.errors import AllocationError

QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader")
QUERY_TIMEOUT_S = 30
RESTRICTIONS = ("CUDA_VISIBLE_DEVICES", "NV_GPU")
INDICES = ("SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "NV_GPU")
"""Where the numbers of granted GPUs stand, best first: Slurm's own list, which counts all GPUs of the node, before the relative one."""
NAMED = ("GPU-", "MIG-")


class Gpu(NamedTuple):
    """One GPU of a machine; `number` is NVML's index."""

    number: int
    uuid: str
    model: str


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The output of `QUERY`. Raises AllocationError on a line that is none of it."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",", 2)]
        if len(words) != 3 or not words[0].isdigit() or not words[1].startswith("GPU-"):
            raise AllocationError(f"nvidia-smi answered {line!r}, expected `index, GPU-uuid, name`: check `{' '.join(QUERY)}` by hand")
        found.append(Gpu(int(words[0]), words[1], words[2]))
    return tuple(found)


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that the environment leaves, by UUID or index, in its order. Raises AllocationError on a name that is not there."""
    for variable in RESTRICTIONS:
        if variable in environ:
            names = [name for name in (word.strip() for word in environ[variable].split(",")) if name]
            return tuple(_find(name, gpus, variable) for name in names)
    return tuple(gpus)


def granted_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str], granted: int | None) -> tuple[Gpu, ...]:
    """Of the GPUs that a step of a job sees, those it was granted: `granted` many, or not known how many.

    Names (UUIDs) count as they stand. Where as many are seen as were granted, the scheduler hides the others, and indices count from 0 in
    what is seen: all are ours. Where more are seen nothing is hidden, and the scheduler's numbers count in the order of the PCI bus, which
    is that of nvidia-smi. Raises AllocationError.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible.startswith(NAMED):
        return visible_gpus(gpus, {"CUDA_VISIBLE_DEVICES": visible})
    if granted is None or granted == len(gpus):
        return tuple(gpus)
    for variable in INDICES:
        names = [word.strip() for word in environ.get(variable, "").split(",") if word.strip()]
        if len(names) == granted:
            return tuple(_find(name, gpus, variable) for name in names)
    raise AllocationError(
        f"{granted} GPUs were granted, nvidia-smi shows {len(gpus)}, and none of {', '.join(INDICES)} says which: "
        f"{', '.join(f'{gpu.number}={gpu.uuid}' for gpu in gpus) or 'no GPUs'}"
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


def query_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine; none where there is no nvidia-smi. Raises AllocationError when it fails."""
    if shutil.which(QUERY[0]) is None:
        return ()
    result = run(QUERY, timeout_s=QUERY_TIMEOUT_S)
    if result.returncode:
        raise AllocationError(f"the GPUs cannot be listed: {describe(result)}")
    return parse_gpus(result.stdout)


def _find(name: str, gpus: Sequence[Gpu], variable: str) -> Gpu:
    for gpu in gpus:
        if name == str(gpu.number) or (name.startswith("GPU-") and gpu.uuid.startswith(name)):
            return gpu
    raise AllocationError(
        f"{variable} names {name!r}, which is not among {', '.join(f'{gpu.number}={gpu.uuid}' for gpu in gpus) or 'no GPUs'}"
    )
