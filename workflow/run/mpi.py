"""What the launcher mpirun starts beside the ranks: mpirun on the head, and on each node who starts its orted. Pure.

The programs, and why there is no ssh: containers/lib/slipway_mpi.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from containers.renderings import host_port
from workflow.run.plan import Framework, Sidecar

LAUNCHER: Final = "mpirun"
MPI_PORT: Final = "mpi"
"""On each node: where its orted is asked for."""
_SCRIPT: Final = ("{python}", "{lib}/slipway_mpi.py")
_RANK: Final = ("sh", "-c", 'exec "$0" "$SLIPWAY_LIB/slipway_mpi.py" rank', "{python}")
"""These words of mpirun are those of the head, and a node may have its cache elsewhere: SLIPWAY_LIB is that of its orted."""
HOLD: Final = (*_SCRIPT, "hold")
"""Before the command of a rank."""


def mpi_sidecars(nodes: int, each: int) -> tuple[Sidecar, ...]:
    """In the words of framework.yaml; both end with the ranks."""
    hosts = ",".join(f"slipway-node-{index}:{each}" for index in range(nodes))
    started = (LAUNCHER, "--bind-to", "none", "--map-by", "slot", "-H", hosts, *_RANK)
    return (
        Sidecar(name="orted", where="each", command=(*_SCRIPT, "node"), ends="with-ranks"),
        Sidecar(name=LAUNCHER, where="head", command=(*_SCRIPT, "mpirun", *started), ends="with-ranks"),
    )


def mpi_variables(
    framework: Framework, places: Sequence[tuple[str, int]], interface: str | None, secret: str, *, crowded: bool
) -> dict[str, str]:
    """Of these sidecars. What Open MPI reads may be set by the program (`env`) in another way. `places`: address and port of each node;
    `crowded`: whether a node has fewer cores than ranks, which must not wait by spinning then."""
    wanted = {
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_leave_session_attached": "1",
        "OMPI_MCA_if_base_do_not_resolve": "1",
        "OMPI_MCA_btl": "tcp,self",
        **({"OMPI_MCA_mpi_yield_when_idle": "1"} if crowded else {}),
        **_network(places[0][0], interface),
    }
    taken = dict(framework.variables)
    free = {name: value for name, value in wanted.items() if name not in taken}
    return {**free, "SLIPWAY_MPI_NODES": " ".join(map(host_port, places)), "SLIPWAY_MPI_KEY": secret}


def _network(head: str, interface: str | None) -> dict[str, str]:
    """Where orteds and ranks talk. By itself Open MPI leaves the loopback out, which is all that nodes of one machine may have."""
    name = "lo" if interface is None and ipaddress.ip_address(head).is_loopback else interface
    return {} if name is None else {"OMPI_MCA_oob_tcp_if_include": name, "OMPI_MCA_btl_tcp_if_include": name}
