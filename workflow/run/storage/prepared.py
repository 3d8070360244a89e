"""Hold what the beginning of a run found on storage: the value that all its later steps share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from cluster.types import Allocation
from workflow.run.record.continuation import EarlierAttempt
from workflow.run.record.model import OwnKeys
from workflow.study.cell import Cell, RunLimits
from workflow.study.site import Site

S = TypeVar("S", bound=Struct)


class Done(Struct, frozen=True, kw_only=True):
    """A result that was asked for and is there already."""

    attempt: int
    status: str


class PreparedRun(Struct, frozen=True, kw_only=True):
    """A run whose lease is held, and its next attempt."""

    study: str
    run_id: str
    cell: Cell
    dataset_build: str
    """The name of the directory in which its dataset is built."""
    repeat: int
    site: Site
    limits: RunLimits
    allocation: Allocation
    """What the scheduler granted; of a job that runs share, all its nodes."""
    attempt: int
    token: str
    """The token of the lease."""
    tag: str
    """Names the attempt on this cluster."""
    result_number: int
    """The number of the result that the attempt may become."""
    run_dir: str
    resumable: tuple[EarlierAttempt, ...]
    """The earlier attempts from which this one could resume, the best first."""
    done: Done | None
    """Then nothing is to be trained, and the lease is not held any more."""


def plain(value: Struct) -> OwnKeys:
    """Convert to what JSON can carry, to leave the child that found it."""
    found: OwnKeys = msgspec.to_builtins(value, enc_hook=os.fspath)
    return found


def from_plain(found: OwnKeys, kind: type[S]) -> S:
    """Convert back what `plain` has made."""
    return msgspec.convert(found, kind, dec_hook=lambda _, path: Path(path))
