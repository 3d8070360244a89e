"""Schedulers: one module of plain functions each. A new one is a module here and a line in SCHEDULERS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from base.errors import UnsupportedRequest
from base.names import choices
from cluster.schedulers import local
from cluster.types import Allocation, AllocationRequest, Holder, Launch, Node


class Scheduler(Protocol):
    """What a scheduler's module offers. Nothing here polls; what may take long runs in a child process with a limit."""

    NAME: str

    def detect(self, environ: Mapping[str, str]) -> bool:
        """Whether `environ` is that of a job of this scheduler."""

    def allocate(self, request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:
        """What was granted to this job, read where the job runs; `supervisor` is the pid of the process it is for.

        Raises AllocationError when it is not what was asked.
        """

    def launches(self, allocation: Allocation, node_argv: tuple[str, ...]) -> tuple[Launch, ...]:
        """Pure: the commands that start `node_argv` once on every node; each reads its standard input to the first newline."""

    def node_index(self, environ: Mapping[str, str]) -> int | None:
        """Pure: the position of this node in the allocation, for a program started by a launch whose argv does not say it."""

    def node_cache(self, cache: Path, node: Node) -> Path:
        """Pure: the directory of the node-local cache on `node`, where the site says `cache`."""

    def turn_lock(self) -> Path | None:
        """The file whose lock a run holds while it measures, where runs would share cores; None where the scheduler keeps them apart."""

    def holder_alive(self, holder: Holder) -> bool | None:
        """Whether the holder of a lease still runs; None when that cannot be known."""

    def describe_holder(self, holder: Holder) -> str:
        """Pure: for the message that refuses a run: who holds it, and how to end that."""


SCHEDULERS: Final[dict[str, Scheduler]] = {"local": local}


def get_scheduler(name: str) -> Scheduler:
    """The module of that name. Raises UnsupportedRequest."""
    if name not in SCHEDULERS:
        raise UnsupportedRequest(f"scheduler {name!r} is not here yet; {choices(name, SCHEDULERS)}")
    return SCHEDULERS[name]
