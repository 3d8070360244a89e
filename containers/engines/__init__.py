"""List the container engines, how those that keep images in a store of their own differ, and load the module of each by its name.

A new one is a module here, a word in ENGINES, and a line in the dict by which mypy compares it with the Protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from base import errors, humanize
from containers.spec import ContainerSpec, EnginePlan, ProcessPlan

BARE: Final = "bare"
"""The engine without containers."""


class Process(Protocol):
    """A started process of a container. The node program waits for `exit_fd` and reads `output_fd` in its event loop."""

    plan: ProcessPlan
    pid: int
    """The pid on the host; 0 if the engine does not tell."""
    exit_fd: int
    output_fd: int
    """Standard output and standard error, to their end; not blocking."""
    oom_kill: bool
    """True after the exit if the engine knows that the kernel killed a process beside it for want of memory."""

    @property
    def gpus_seen(self) -> tuple[str, ...] | None:
        """Return UUIDs that `nvidia-smi` lists where the process runs; None where there is no container, or before that has come up."""

    def exit_code(self) -> int | None:
        """Return None while it runs; negative for a signal, as in subprocess.

        To be asked whenever `exit_fd` is readable, and now and then: limits of an engine pass. Raises ContainerError when the container
        failed that was to hold it, AllocationError when it holds other GPUs.
        """

    def signal(self, number: int) -> None:
        """Send a signal to the process and to those it started in its group; nothing if it has ended."""

    def close(self) -> None:
        """Give the descriptors back."""


class Engine(Protocol):
    """What an engine's module offers."""

    NAME: str

    @property
    def VERSION(self) -> tuple[str, ...]:  # noqa: N802
        """Return the command that tells its version as the last word; empty where there is none."""

    def plan(self, spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
        """Return all that will be executed for `spec`. `host_env` is the environment of the node program, from which a list is allowed."""

    def start(self, plan: EnginePlan, index: int) -> Process:
        """Start one process of the plan; a container starts with the first of its processes. Raises ContainerError, at once or by
        `exit_code`."""

    def close(self, plan: EnginePlan) -> None:
        """Let go of what this process holds of the processes, in a few seconds. Called after all have ended, or were told to."""

    def remove(self, plan: EnginePlan) -> None:
        """Take away after `close` what the engine made for them, with all that still runs in it; may be called again. Waits for a daemon
        that is slow, so call it where nobody waits. Raises ContainerError naming what is left."""


ENGINES: Final = ("bare", "docker", "podman", "apptainer", "enroot", "pyxis")
PLUGGED_INTO: Final = {"pyxis": (("srun", "--help"), "--container-image")}
"""Engines without a command: whose help tells an option of theirs where they are here."""
ONLY_UNDER: Final = {"pyxis": "slurm"}
"""Engines that are part of a scheduler, by which alone they start."""

if TYPE_CHECKING:
    from containers.engines import apptainer, bare, docker, enroot, podman, pyxis

    # mypy compares each module with the Protocol.
    _engines: dict[str, Engine] = {
        "bare": bare,
        "docker": docker,
        "podman": podman,
        "apptainer": apptainer,
        "enroot": enroot,
        "pyxis": pyxis,
    }


def get_engine(name: str) -> Engine:
    """Return the module of an engine, which is imported now: a run needs one of them. Raises UnsupportedRequest."""
    _check_name(name)
    return cast("Engine", import_module(f"containers.engines.{name}"))


def in_container(name: str) -> bool:
    """Return True if programs run in containers of an image under that engine. Otherwise they are processes of the node, with the software
    that is there. Raises UnsupportedRequest.
    """
    _check_name(name)
    return name != BARE


def _check_name(name: str) -> None:
    if name not in ENGINES:
        raise errors.UnsupportedRequest(f"engine {name!r} is not here yet; {humanize.choices(name, ENGINES)}")


# The engines that keep images, and containers beyond a job's end, in a store of their own: how they differ.


@dataclass(frozen=True, kw_only=True)
class Store:
    """How one engine keeps and fetches images."""

    local_names: str
    """What it puts before the name of an image that came from no registry."""
    root: str
    """The field of `info --format` with the directory of its images."""
    unpacks_in_root: bool
    """True if a load needs room in the root a second time; otherwise in TMPDIR."""
    pull: Callable[[str, Path | None], tuple[str, ...]]
    """The words after the client's name that fetch a reference, with the user's file of credentials."""
    save_format: Callable[[str], tuple[str, ...]]
    """The options of `save` that give an archive of this form."""


STORES: Final = {
    "docker": Store(
        local_names="",
        root="{{.DockerRootDir}}",
        unpacks_in_root=True,
        pull=lambda reference, file: (*(("--config", str(file.parent)) if file else ()), "pull", "--quiet", reference),
        save_format=lambda _form: (),
    ),
    "podman": Store(
        local_names="localhost/",
        root="{{.Store.GraphRoot}}",
        unpacks_in_root=False,
        pull=lambda reference, file: ("pull", "--quiet", *(("--authfile", str(file)) if file else ()), reference),
        save_format=lambda form: ("--format", form),
    ),
}
