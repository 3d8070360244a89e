"""Define what runs on one node: frozen values, the same for every engine.

Paths are those of the host. An engine decides how the programs see them: a container gets mounts and the fixed names under /slipway, the
bare engine hands out the real paths; a program reads the SLIPWAY_ variables and cannot tell the difference.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

from cluster.types import Allocation, Holder
from containers.limits import CONTAINER_START_S, NODE_PROGRAM_SILENCE_S

STOP: Final = "stop"
CHECKPOINT: Final = "checkpoint.safetensors"
PARAMETERS: Final = "parameters.safetensors"
PIDS: Final = 32768
SHM_BYTES: Final = 16 << 30


@dataclass(frozen=True, kw_only=True)
class Paths:
    """The paths of one attempt on one node. All exist before the start; programs write to `out` only."""

    cell: str
    data: str | None
    """The staged dataset; None where the run has none."""
    lib: str
    beat: str
    out: str
    resume: str
    """A directory: `stop` appears in it when a checkpoint is wanted; `checkpoint.safetensors`, where the run resumes from one;
    `parameters.safetensors`, where the ranks start from given parameters."""
    program: str
    """The framework's folder."""
    control: str = ""
    """A directory of ours alone, where an engine and its container meet: plan, socket, passwd, group. Bare needs none."""


@dataclass(frozen=True, kw_only=True)
class User:
    """Who the programs are inside: the user of the job. `groups` holds (gid, name) of all groups, the first the user's own."""

    uid: int
    name: str
    groups: tuple[tuple[int, str], ...]
    home: str = "/tmp/home"  # noqa: S108 - inside the container, whose /tmp is its own
    """Made inside, empty."""

    @property
    def gid(self) -> int:
        return self.groups[0][0]

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError(f"groups of user {self.name!r} must hold at least the user's own")


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process in the container. `command` holds placeholders, such as {python} and {folder}, for the engine to fill in."""

    name: str
    """Names the log: `rank-3`."""
    ranks: tuple[int, ...]
    """The ranks that end with this process: one, all of the node under torchrun, none of a sidecar."""
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    sidecar: str | None = None
    """Its name, where it is a process around the ranks."""
    may_end: bool = False
    """True for a sidecar that ends by itself, with 0, when the ranks do."""
    launcher: str | None = None
    """Its name, where it is no rank, and starts its ranks itself: torchrun."""

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError(f"command of {self.name!r} must not be empty")
        for text in (*self.command, *(word for pair in self.env for word in pair)):
            if "\0" in text or "\n" in text:
                raise ValueError(f"{self.name!r}: {text!r} holds a newline or a zero byte, which no argv or environment may carry")


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """One container: all that runs for one attempt on one node."""

    name: str
    """Unique among all attempts of all runs, valid as a container's name."""
    image: str | None
    python: str
    """The interpreter inside the image."""
    bare_python: str | None = None
    """The interpreter without an image; None: our own."""
    processes: tuple[ProcessSpec, ...]
    paths: Paths
    device: str
    gpus: tuple[str, ...]
    """UUIDs: exactly these, or none."""
    cores: tuple[int, ...]
    """CPU numbers; empty: as inherited."""
    env: tuple[tuple[str, str], ...] = ()
    """The environment of every process, beside its own."""
    words: tuple[tuple[str, str], ...] = ()
    """What placeholders of the commands stand for, beside those that the engine knows."""
    mounts: tuple[tuple[str, str, bool], ...] = ()
    """(source, target, whether it may be written) beside `paths`; bare has no use for them."""
    labels: tuple[tuple[str, str], ...] = ()
    resumed: bool = False
    """True if the run resumes from the checkpoint in `paths.resume`."""
    has_parameters: bool = False
    """True if the ranks start from the file of parameters in `paths.resume`."""
    deadline: float | None = None
    """The moment at which the container ends itself, by the monotonic clock of its node: no step of the wall clock ends a run."""
    image_id: str | None = None
    """What `image` was pinned to; where images are files, the path of one. None: `image` as it stands, which must be on the node."""
    user: User | None = None
    """The user in the container. None: the user of the engine; only engines that run as whoever starts them can do with that."""
    rootless: bool = False
    """True if the engine is the user's own process, in a user namespace, without root: podman of a user."""
    memory_bytes: int | None = None
    """What the job was granted on this node; None: all of it."""
    pids: int = PIDS
    """Processes and threads together."""
    limits: tuple[tuple[str, int], ...] = ()
    """Resource limits by the engine's names, hard and soft; -1: none. At most the job's own, which nobody without root may raise."""
    devices: tuple[str, ...] = ()
    """Device files or directories of them, beside the GPUs."""
    shm_bytes: int = SHM_BYTES
    """Size of /dev/shm: a limit, not a reservation. Ranks of one node talk through it, and data loaders."""
    network: str = "host"
    cdi: bool = False
    """True if docker takes GPUs by CDI, as podman does, instead of `--gpus`."""
    umask: int = 0o077
    beat_s: float = NODE_PROGRAM_SILENCE_S
    """How old the beat may get."""

    def __post_init__(self) -> None:
        for name, text in self.words:
            if "\0" in text or "\n" in text:
                raise ValueError(f"{self.name!r}: {{{name}}} is {text!r}, with a newline or a zero byte, which no argv may carry")
        ranks = [rank for process in self.processes for rank in process.ranks]
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"processes of {self.name!r} name a rank twice: {ranks}")
        if self.device == "cuda" and not self.gpus:
            raise ValueError(f"{self.name!r} is for cuda and has no gpus")


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """What the engine will execute for one process, complete: printed by a dry run, compared by tests, executed as it stands."""

    name: str
    ranks: tuple[int, ...]
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    sidecar: str | None = None
    may_end: bool = False
    launcher: str | None = None


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """The one container that holds all processes of a node: every command that will be given to the engine's client."""

    run: tuple[str, ...]
    """Stays in the foreground until the container has ended, and is removed."""
    find: tuple[str, ...] = ()
    """Prints something as long as the container exists in whatever state; empty: only its processes could be left."""
    remove: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """Name -> text: what is written into `Paths.control` before."""
    hidden: tuple[str, ...] = ()
    """Beginnings of variables that the client must not see, because it would add to the container what nobody planned."""
    sees_all_gpus: bool = False
    """True if GPUs that were not granted can be seen inside, though not used by the ranks."""
    start_s: float = CONTAINER_START_S
    """How long the client may take until the watchdog has come up."""


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """What an engine will do on one node, in order."""

    engine: str
    spec: ContainerSpec
    processes: tuple[ProcessPlan, ...]
    container: ContainerPlan | None = None
    """The plan of the container. None: the processes run without one."""


# The labels of our containers: what `slipway reap` and people find them by. No secret is in them: everybody on the node may read them.


RUN: Final = "slipway.run"
ATTEMPT: Final = "slipway.attempt"
TAG: Final = "slipway.tag"
JOB: Final = "slipway.job"
USER: Final = "slipway.user"
NODE: Final = "slipway.node"
DEADLINE: Final = "slipway.deadline"
HOLDER: Final = "slipway.holder"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of a container: an attempt of a run, and the node program that starts it."""

    run_id: str
    attempt: int
    tag: str
    deadline: float | None = None
    """Unix time."""
    uid: int | None = None
    holder: Holder | None = None


def labels_of(allocation: Allocation, node: str, owner: Owner) -> tuple[tuple[str, str], ...]:
    """Return the labels of a container."""
    labels = {
        RUN: owner.run_id,
        ATTEMPT: owner.attempt,
        TAG: owner.tag,
        JOB: f"{allocation.scheduler}:{allocation.job_id}:{allocation.restart_count}",
        USER: owner.uid,
        NODE: node,
        DEADLINE: None if owner.deadline is None else int(owner.deadline),
        HOLDER: None if owner.holder is None else json.dumps(asdict(owner.holder), sort_keys=True),
    }
    return tuple((name, str(value)) for name, value in labels.items() if value is not None)
