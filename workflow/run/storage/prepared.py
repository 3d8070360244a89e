"""What the beginning of a run found on storage: the value that all its later steps share."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from cluster.types import Allocation
from workflow.run.record.continuation import EarlierAttempt


class Done(Struct, frozen=True, kw_only=True):
    """A result that was asked for and is there already."""

    attempt: int
    status: str


class PreparedRun(Struct, frozen=True, kw_only=True):
    """A run whose lease is held, and its next attempt."""

    study: str
    run_id: str
    cell: dict[str, Any]
    repeat: int
    site: dict[str, Any]
    """As study.json has it, like `cell` and `limits`."""
    limits: dict[str, Any]
    allocation: Allocation
    """What the scheduler granted; of a job that runs share, all its nodes."""
    attempt: int
    token: str
    """Of the lease."""
    tag: str
    """Names the attempt on this cluster."""
    result_number: int
    """Of the result that the attempt may become."""
    run_dir: str
    resumable: tuple[EarlierAttempt, ...]
    """The earlier attempts from which this one could resume, the best first."""
    done: Done | None
    """Then nothing is to be trained, and the lease is not held any more."""

    def names(self) -> dict[str, Any]:
        """Which attempt of what it is."""
        return {"run_id": self.run_id, "repeat": self.repeat, "attempt": self.attempt}

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON can carry."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_json(cls, value: Any) -> PreparedRun:
        """The inverse of `to_json`."""
        return msgspec.convert(value, cls)
