"""Container engines: one module each, pure planning and a small acting part. A new one is a module here and a line in ENGINES."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from base.errors import UnsupportedRequest
from base.names import choices
from containers.engines import bare
from containers.spec import ContainerSpec, EnginePlan, ProcessPlan


class Process(Protocol):
    """A started process of a container. The node program waits for `exit_fd` and reads `output_fd` in its event loop."""

    plan: ProcessPlan
    pid: int
    """On the host; 0 where the engine does not tell."""
    exit_fd: int
    output_fd: int
    """Standard output and standard error, to their end; not blocking."""

    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal, as in subprocess."""

    def signal(self, number: int) -> None:
        """Send a signal to the process and to those it started in its group; nothing if it has ended."""

    def close(self) -> None:
        """Give the descriptors back."""


class Engine(Protocol):
    """What an engine's module offers."""

    NAME: str

    def plan(self, spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
        """Pure: all that will be executed for `spec`. `host_env` is the environment of the node program, from which a list is allowed."""

    def start(self, plan: EnginePlan, index: int) -> Process:
        """Start one process of the plan. Raises ContainerError."""

    def remove(self, plan: EnginePlan) -> None:
        """After all processes have ended: take away what the engine made for them."""


ENGINES: Final[dict[str, Engine]] = {"bare": bare}


def get_engine(name: str) -> Engine:
    """The module of that name. Raises UnsupportedRequest."""
    if name not in ENGINES:
        raise UnsupportedRequest(f"engine {name!r} is not here yet; {choices(name, ENGINES)}")
    return ENGINES[name]
