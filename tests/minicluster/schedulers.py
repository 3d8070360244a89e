"""The schedulers that a cluster can have: one module each that starts its daemons on hosts that are on, and one of pure texts beside it."""

from typing import Final, Protocol

from tests.minicluster import lsf, pbs, sge, slurm
from tests.minicluster.spec import ClusterError, Spec


class Daemons(Protocol):
    """What is done for a scheduler on a cluster of ours."""

    CONTROLLER: tuple[str, ...]
    """The names of the processes that answer its commands, on the login node."""
    USABLE: tuple[str, ...]
    """Of `node_states`: those of nodes on which jobs can start."""

    def prepare(self, spec: Spec) -> None:
        """Its configuration, before a host is on."""

    def start_head(self, spec: Spec) -> None:
        """What runs on the login node; nothing where it runs already."""

    def start_node(self, spec: Spec, host: str) -> None:
        """What runs on a compute node."""

    def restart_node(self, spec: Spec, host: str) -> None:
        """The same where it may run still; the jobs of the node live on."""

    def resume(self, spec: Spec, host: str) -> None:
        """Take back what the scheduler holds against a node that was away."""

    def node_states(self, spec: Spec) -> dict[str, str]:
        """What it says of each node."""

    def await_usable(self, spec: Spec, hosts: tuple[str, ...], limit_s: float) -> None:
        """Until jobs can start on all of these nodes. Raises ClusterError with the last lines of logs."""

    def start_controller(self, spec: Spec) -> None:
        """What CONTROLLER names, after it was killed."""


SCHEDULERS: Final[dict[str, Daemons]] = {"slurm": slurm, "sge": sge, "pbs": pbs, "lsf": lsf}


def of(spec: Spec) -> Daemons:
    if spec.scheduler not in SCHEDULERS:
        raise ClusterError(f"scheduler: found {spec.scheduler!r}; valid: {', '.join(SCHEDULERS)}")
    return SCHEDULERS[spec.scheduler]
