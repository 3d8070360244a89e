"""What is to run on one node, whichever engine starts it: frozen values, the same for docker, podman, apptainer and bare.

Paths are those of the host. An engine decides how the programs see them: a container gets mounts and the fixed names under /slipway, the
bare engine hands out the real paths; a program reads the SLIPWAY_ variables and cannot tell the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STOP: Final = "stop"
CHECKPOINT: Final = "checkpoint.safetensors"


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Of one attempt on one node. All exist before the start; programs write to `out` only."""

    cell: str
    data: str
    lib: str
    beat: str
    out: str
    resume: str
    """A directory: `stop` appears in it when a checkpoint is wanted; `checkpoint.safetensors`, where the run goes on from one."""
    program: str
    """The framework's folder."""


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process in the container. `command` holds {python} and {folder} for the engine to fill in."""

    name: str
    """Names the log: `rank-3`."""
    ranks: tuple[int, ...]
    """The ranks that end with this process: one, or all of the node under torchrun."""
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError(f"command of {self.name!r} must not be empty")
        for text in (*self.command, *(word for pair in self.env for word in pair)):
            if "\0" in text or "\n" in text:
                raise ValueError(f"{self.name!r}: {text!r} holds a newline or a zero byte, which no argv or environment may carry")


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """One container: all that runs for one attempt on one node."""

    name: str
    """Unique among all attempts of all runs, valid as a container's name."""
    image: str | None
    python: str
    """The interpreter inside the image."""
    processes: tuple[ProcessSpec, ...]
    paths: Paths
    device: str
    gpus: tuple[str, ...]
    """UUIDs: exactly these, or none."""
    cores: tuple[int, ...]
    """CPU numbers; empty: as inherited."""
    env: tuple[tuple[str, str], ...] = ()
    """For every process, beside its own."""
    labels: tuple[tuple[str, str], ...] = ()
    resumed: bool = False
    """Whether the run goes on from the checkpoint in `paths.resume`."""
    deadline: float | None = None
    """Unix time after which the container ends itself."""

    def __post_init__(self) -> None:
        ranks = [rank for process in self.processes for rank in process.ranks]
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"processes of {self.name!r} name a rank twice: {ranks}")
        if self.device == "cuda" and not self.gpus:
            raise ValueError(f"{self.name!r} is for cuda and has no gpus")


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """What the engine will execute for one process, complete: printed by a dry run, compared by tests, executed as it stands."""

    name: str
    ranks: tuple[int, ...]
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """What an engine will do on one node, in order."""

    engine: str
    spec: ContainerSpec
    processes: tuple[ProcessPlan, ...]
