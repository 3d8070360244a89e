"""Which ports a run needs on each of its nodes, by name: each node reserves its own before any process is told of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from containers.placeholders import PORT, ports_in
from containers.renderings import PORT_PER_RANK
from workflow.run.mpi import LAUNCHER, MPI_PORT
from workflow.run.plan import Framework, node_ranks
from workflow.study.cell import Cell

MASTER: Final = "master"
"""On the head: MASTER_PORT."""

Reserved = Sequence[Sequence[int]]
"""For each node its ports, in the order of `port_names`."""


def port_names(framework: Framework, cell: Cell, index: int) -> tuple[str, ...]:
    """Of node `index`; the master's is the first of the head."""
    master = (MASTER,) if index == 0 else ()
    mpi = (MPI_PORT,) if framework.launcher == LAUNCHER else ()
    of_ranks = tuple(map(rank_port, node_ranks(cell, index))) if set(framework.env) & set(PORT_PER_RANK) else ()
    return master + mpi + of_ranks + (_of_head(framework) if index == 0 else ())


def _of_head(framework: Framework) -> tuple[str, ...]:
    """Those that words of commands ask for."""
    commands = (framework.command, *(sidecar.command for sidecar in framework.sidecars))
    return tuple(f"{PORT}{name}" for name in ports_in(word for command in commands for word in command))


def rank_port(rank: int) -> str:
    """The name of the port that a rank listens on."""
    return f"rank-{rank}"


def ports_by_name(framework: Framework, cell: Cell, reserved: Reserved) -> list[dict[str, int]]:
    """Of each node."""
    return [dict(zip(port_names(framework, cell, index), ports, strict=True)) for index, ports in enumerate(reserved)]
