"""What the environment says about a job's GPUs, scheduler by scheduler, and by what its numbers count. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from base.foreign import digits
from cluster.gpus.listing import Place

CUDA: Final = "CUDA_VISIBLE_DEVICES"
ALIAS: Final = "NV_GPU"
"""Of nvidia-docker 1 and 2: how users of those say it. Heard where nobody else says anything."""
NOTHING: Final = frozenset({"-1", "NoDevFiles", "none", "void"})
"""How a variable says that there are none, beside being empty: CUDA, Slurm, the container runtime."""
KNOWN: Final = (
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
    "SLURM_GPUS_ON_NODE",
    CUDA,
    "PBS_GPUFILE",
    "SGE_HGR_<complex>",
    ALIAS,
)
_GPU_COMPLEX = re.compile(r"SGE_HGR_\w*(gpu|cuda|nvidia)\w*", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:gpu|cuda)?_?(\d+)", re.IGNORECASE)
_UUID = re.compile(r"(GPU|MIG)-\S+")

Scope = Literal["node", "seen"]


@dataclass(frozen=True)
class Claim:
    """One variable that names GPUs. `scope`: whether its numbers count all GPUs of the node, or those that show here."""

    variable: str
    value: str
    scope: Scope
    names: tuple[str, ...]

    @property
    def kind(self) -> Literal["nothing", "uuids", "numbers", "other"]:
        """What its names are."""
        if not self.names:
            return "nothing"
        if all(_UUID.fullmatch(name) for name in self.names):
            return "uuids"
        return "numbers" if all(digits(name) is not None for name in self.names) else "other"

    def describe(self) -> str:
        """For people: the value and how it is read."""
        kind = {
            "nothing": "no GPUs",
            "uuids": "UUIDs, which mean the same to everybody",
            "numbers": f"numbers that count {'all GPUs of the node' if self.scope == 'node' else 'the GPUs seen here'} in PCI order",
            "other": "neither UUIDs nor numbers: not understood",
        }[self.kind]
        return f"{self.variable}={self.value!r}: {kind}"


def names_in(value: str) -> tuple[str, ...]:
    """The names in a list with commas or spaces, each once. OpenPBS may leave its commas behind backslashes."""
    names = tuple(dict.fromkeys(name for name in re.split(r"[\\,\s]+", value) if name))
    return () if names and names[0] in NOTHING else names


def claims_of(environ: Mapping[str, str], scheduler: str | None, place: Place) -> tuple[Claim, ...]:
    """What is said, the most trusted first. A list of the whole node comes before one that is relative to what shows here."""
    readers = {"slurm": _slurm, "lsf": _lsf, "pbs": _pbs, "sge": _sge}
    found = readers[scheduler](environ, place) if scheduler in readers else _cuda(environ)
    if not found and environ.get(ALIAS):
        return (Claim(ALIAS, environ[ALIAS], "seen", names_in(environ[ALIAS])),)
    return found


def said_count(environ: Mapping[str, str], scheduler: str | None) -> int | None:
    """How many GPUs the scheduler says it granted on this node, where it has a word for that. A step's own list comes before the count,
    which may be the job's."""
    if scheduler != "slurm":
        return None
    value = environ.get("SLURM_GPUS_ON_NODE", "")
    return len(names_in(environ.get("SLURM_STEP_GPUS", ""))) or digits(value)


def _cuda(environ: Mapping[str, str]) -> tuple[Claim, ...]:
    return (Claim(CUDA, environ[CUDA], "seen", names_in(environ[CUDA])),) if CUDA in environ else ()


def _slurm(environ: Mapping[str, str], place: Place) -> tuple[Claim, ...]:  # noqa: ARG001 - the same for all
    """SLURM_JOB_GPUS is of the job's first node only, and stands in for a step that has no list of its own; not for one without GPUs."""
    cuda = _cuda(environ)
    variables = ["SLURM_STEP_GPUS"]
    if environ.get("SLURM_NODEID") == "0" and not any(claim.kind == "nothing" for claim in cuda):
        variables.append("SLURM_JOB_GPUS")
    return (*(Claim(name, environ[name], "node", names_in(environ[name])) for name in variables if environ.get(name)), *cuda)


def _lsf(environ: Mapping[str, str], place: Place) -> tuple[Claim, ...]:  # noqa: ARG001 - the same for all
    """CUDA_VISIBLE_DEVICES of this process, and CUDA_VISIBLE_DEVICES<n> of the job's other tasks here: together they are the node's."""
    tasks = sorted((name for name in environ if re.fullmatch(rf"{CUDA}\d+", name)), key=lambda name: int(name.removeprefix(CUDA)))
    variables = [name for name in (CUDA, *tasks) if name in environ]
    if not variables:
        return ()
    value = ",".join(environ[name] for name in variables if environ[name])
    return (Claim("+".join(variables), value, "seen", names_in(value)),)


def _pbs(environ: Mapping[str, str], place: Place) -> tuple[Claim, ...]:
    """The cgroup hook of OpenPBS says UUIDs; Torque has a file."""
    lines = [line.strip().rpartition("-gpu") for line in place.gpu_file.splitlines() if line.strip()]
    here = place.hostname.partition(".")[0]
    ours = tuple(dict.fromkeys(number for host, _, number in lines if host.partition(".")[0] == here))
    file = (Claim("PBS_GPUFILE", environ.get("PBS_GPUFILE", ""), "node", ours),) if lines else ()
    return (*file, *_cuda(environ))


def _sge(environ: Mapping[str, str], place: Place) -> tuple[Claim, ...]:  # noqa: ARG001 - the same for all
    """The site chooses the complex's name, and may number from `gpu0`. Son of Grid Engine says nothing."""
    variables = sorted(name for name in environ if _GPU_COMPLEX.fullmatch(name) and environ[name])
    claims = [Claim(name, environ[name], "node", tuple(map(_plain, names_in(environ[name])))) for name in variables]
    return (*claims, *_cuda(environ))


def _plain(name: str) -> str:
    found = _NUMBERED.fullmatch(name)
    return found[1] if found else name
