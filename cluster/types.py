"""Define requests to a scheduler, what it granted, and how node programs start: frozen values."""

import re
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from base.typed import Check, Count, Pid

DEVICES = ("cpu", "cuda")


def is_job_id(text: str) -> bool:
    """Return True for a possible job id of any scheduler, or nothing: no option of a command, no separator, nothing long."""
    return re.fullmatch(r"(?!-)[\w.+\[\]@:<>-]{0,128}", text, re.ASCII) is not None


JobId = Annotated[str, Check("the id of a job", is_job_id)]


@dataclass(frozen=True, kw_only=True)
class AllocationRequest:
    """The machines one run needs. On the CPU `gpus_per_node` means processes per node."""

    nodes: int
    gpus_per_node: int
    largest_nodes: int
    """Nodes of the study's largest cell: the local scheduler divides this machine into so many equal parts."""
    device: str | None = None
    """`cpu`, `cuda`, or None: cuda where a GPU is seen, else cpu."""
    gres: int = 0
    """GPUs per node that the scheduler is asked for; also on the CPU, where the site says that its nodes have GPUs. 0: none."""
    cpus_per_node: int | None = None
    memory_per_node_bytes: int | None = None
    """The limit of a run on a node that it shares; None: all."""
    share_nodes: bool = False
    node_set: tuple[int, int] | None = None
    """(index, number of sets): of the nodes of a job that runs share, only those of one of so many equal sets, in their order."""
    avoid: tuple[str, ...] = ()
    """Nodes that failed earlier attempts of the run: they are taken last, where runs share a job."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine of an allocation. `cores` are the CPU numbers that belong to the run there, `gpus` the UUIDs granted there."""

    name: str
    hostname: str
    address: str
    """The address by which the other nodes reach this one."""
    interface: str | None = None
    """The network interface that carries `address`, where it is known."""
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    gpu_models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ValueError(f"name must be the name of a node, found {self.name!r}")
        if len(self.gpu_models) not in (0, len(self.gpus)):
            raise ValueError(f"gpu_models must be as many as gpus ({len(self.gpus)}), found {self.gpu_models!r}")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What the scheduler granted, for one run alone. The first node is the head."""

    scheduler: str
    scheduler_version: str | None = None
    job_id: str
    restart_count: int = 0
    nodes: tuple[Node, ...]
    device: str
    deadline: float | None = None
    """Unix time at which the scheduler ends the job; None: the run's own walltime counts, from the moment it may start."""
    exclusive: bool | None
    """True if nobody else works on the nodes; None where nobody says that, as on a machine into which anybody may log in."""
    oversubscribed: bool = False
    """True if nodes of this run, or its processes, share cores."""
    own_job: bool = True
    """True if the job is this run's alone, so that it may be requeued; False where runs side by side share one job."""
    gres: int = 0
    """GPUs that each node's step asks of the scheduler."""
    cpus_per_node: int | None = None
    """CPUs that each node's step asks of the scheduler; None: it is not known how many there are."""
    memory_per_node_bytes: int | None = None
    """What the scheduler granted on each node; None: it gives out no memory, or all of the node's."""

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("nodes must hold at least one node")
        if len({node.name for node in self.nodes}) != len(self.nodes):
            raise ValueError(f"nodes must have different names, found {[node.name for node in self.nodes]!r}")
        if self.device not in DEVICES:
            raise ValueError(f"device must be one of {', '.join(DEVICES)}, found {self.device!r}")

    @property
    def head(self) -> Node:
        """Return the node of rank 0 and of the rendezvous."""
        return self.nodes[0]


class OtherUse(NamedTuple):
    """A process that is not ours on a GPU that is. `uuid` is empty where it cannot be known whether there are such."""

    uuid: str
    text: str


class GpuFault(NamedTuple):
    """What the driver or the kernel knows to be wrong with a GPU, in words that begin with its UUID."""

    uuid: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a node got, as its node program sees it from within: the scheduler's word and the machine's."""

    node: str
    """The scheduler's name of this node."""
    hostname: str
    address: str
    interface: str | None = None
    cores: tuple[int, ...]
    """CPU numbers that this process may use."""
    cpus: int | None = None
    """How many the scheduler says were granted: more than `cores` where it believes in cores that the machine has not."""
    gpus: tuple[str, ...] = ()
    """UUIDs; none where nobody asked for them, or nothing here can tell."""
    gpu_models: tuple[str, ...] = ()
    gpu_indices: tuple[str, ...] = ()
    """The GPUs by the scheduler's names."""
    gpu_rule: str | None = None
    """The rule by which `gpus` were found (cluster/gpus/decision.py): `all` means that nothing says that they are ours."""
    other_use: tuple[OtherUse, ...] = ()
    """Processes of others on `gpus`, before we start ours."""
    restart_count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One command of the supervisor that starts the node program on some nodes: one for all under srun, one per node on this machine."""

    argv: tuple[str, ...]
    nodes: tuple[int, ...]
    """Positions in `Allocation.nodes`."""
    refusal: str | None = None
    """Its message if the scheduler does not give what was asked."""
    silence: tuple[str, ...] = ()
    """Its messages while the scheduler does not answer: it may be started again."""
    outdated: tuple[str, ...] = ()
    """Its messages while the scheduler takes what has ended for living, as after its own restart: it may be started again."""
    may_be_mute: bool = False
    """True if it may end well without a message, whatever has become of its programs: it may be started again if none has connected."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lease: enough to know later whether it still lives."""

    scheduler: str
    job_id: JobId
    restart_count: Count
    host: str
    pid: Pid
    pid_start: Count
    """Start time of the process in clock ticks since boot (/proc/PID/stat, field 22): a pid alone is used again."""
    boot_id: str
    pid_namespace: str
    machine: str | None = None
    """Which machine, whatever it is called (processes.machine); None where that is not known, as in leases of earlier versions."""


CacheUser = dict[str, str | int | None]
"""What a lease, a lock and `slipway cache ls --json` show of a user of a node's cache. Everything in it concerns this node."""
