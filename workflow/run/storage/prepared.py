"""Hold what the beginning of a run found on storage: the value that all its later steps share."""

from __future__ import annotations

from msgspec import Struct

from cluster.types import Allocation
from workflow.run.record.continuation import EarlierAttempt
from workflow.study.cell import Cell, RunLimits
from workflow.study.site import Site


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
