"""Define the reports of node programs to their supervisor: a frozen type for each message, the union `Report` of all of them, and what
stands in them.

The docstring of a message says when it is sent.
"""

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from cluster.types import GpuFault, Grant, OtherUse
from workflow.run.record.model import File, Interface, MachineCores
from workflow.run.record.outcome import RankEnd, RankState

What = Literal["dataset", "image"]
"""Which files are staged."""


def tag_of(name: str) -> str:
    """Return the name of a message on the wire and in sentences: `meet_peers` for `MeetPeers`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Value(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value in a message. Both sides are of one version, so that a field which one of them does not know is an error."""


class Message(Value, tag_field="say", tag=tag_of, frozen=True, kw_only=True):
    """A report: the base of all of them."""


# -- what stands in messages


class Facts(Value, frozen=True, kw_only=True):
    """The facts of a machine, for the record."""

    hostname: str
    cpu_model: str | None
    machine_cores: MachineCores | None = None
    memory_bytes: int | None
    network: tuple[Interface, ...] | None = None
    kernel: str
    os: str | None
    driver_version: str | None = None
    """The version of NVIDIA's kernel module, where it is loaded."""


class StagedCopy(Value, frozen=True, kw_only=True):
    """The StagedFiles of data_prep.staging, as its process tells of them: a dataset, or the archive of an image, whole and checked."""

    root: str
    """Its path there."""
    digest: str
    bytes: int
    copied_bytes: int
    storage_bytes: int
    """Bytes that were read from storage."""
    peer_bytes: int
    """Bytes that were sent by other nodes."""
    lost_peers: Mapping[str, str]
    """Nodes that were given up or too slow, and why."""
    resumed_bytes: int
    checked_bytes: int
    """Read from the node's disk and hashed."""
    hit: bool
    """True if it was there already."""
    seconds: float
    lease: str | None


class LoadedImage(Value, frozen=True, kw_only=True):
    """The pinned image, as it is on this node."""

    image_id: str
    seconds: float
    storage_bytes: int
    """Bytes of its archive that were read from storage."""
    peer_bytes: int
    """Bytes of its archive that were sent by other nodes."""


# -- from the start of a node program to that of the ranks


class Ready(Message, frozen=True, kw_only=True):
    """The node program is up: its first message, unless it cannot find out what this node was granted."""

    facts: Facts
    grant: Grant | None
    """What the scheduler granted here, where only the node can see that."""
    pid: int


class Alive(Message, frozen=True, kw_only=True):
    """The sign of life of a node, every 2 s, so that silence means that it is lost."""

    step: int | None
    """The step that all ranks of the node have reached."""
    tokens: int | None = None
    """The tokens of the last step, all ranks of the node together; null where one of them tells none."""


class Signalled(Message, frozen=True, kw_only=True):
    """The node program was told to end by a signal, mostly the scheduler's; it ends all that runs here."""

    number: int


class Failed(Message, frozen=True, kw_only=True):
    """Something that was asked for cannot be done."""

    during: str
    """The name of the command that failed, or of a part of it."""
    error: str
    """Name of a class of base/errors.py."""
    message: str


class ProbesListen(Message, frozen=True, kw_only=True):
    """The answer of the probes of this node to the command `listen`: the address."""

    address: str
    port: int


class Reached(Message, frozen=True, kw_only=True):
    """The answer of the probes to the command `reach`."""

    reached: tuple[tuple[float | None, str | None] | None, ...]
    """The seconds to each node, or what happened instead; null for itself."""


class Measured(Message, frozen=True, kw_only=True):
    """The answer of the probes to the command `measure`."""

    attempt: int
    rates: tuple[tuple[int, float, float] | None, ...]
    """The bytes, seconds and busy seconds with each node; null if nothing was exchanged with it."""


class Progress(Message, frozen=True, kw_only=True):
    """The progress of staging, now and then, also where nothing moves."""

    what: What
    done: int
    """Bytes."""
    total: int


class Listening(Message, frozen=True, kw_only=True):
    """The stager of this node can be reached by those of the other nodes."""

    what: What
    address: str
    port: int
    have: str
    """Which chunks are here: see data_prep/staging/exchange.py."""


class Waiting(Message, frozen=True, kw_only=True):
    """Somebody else on this machine stages the same, and this node waits for that: the others need not wait for this node."""

    what: What


class LookedAt(Message, frozen=True, kw_only=True):
    """The report after the plan of a run that what can be checked before anything is staged is there."""

    delivered: bool
    """True if files of an earlier attempt, which waited on this node, are on storage now."""


class DatasetIsHere(Message, frozen=True, kw_only=True):
    """The dataset is on this node, and the image, which `load_image` orders, is next."""


class Staged(Message, frozen=True, kw_only=True):
    """All that the ranks need and that does not depend on other nodes is here."""

    dataset: StagedCopy | None
    """Null where the plan names none."""
    image: LoadedImage | None
    other_use: tuple[OtherUse, ...]
    """Processes of others on the run's GPUs, where the grant did not tell of them."""
    faults: tuple[GpuFault, ...] = ()
    """What driver and kernel know to be wrong with the run's GPUs."""
    ports: tuple[int, ...] = ()
    """The ports of its processes, which the node has bound, in the order of workflow/run/plan.py; MASTER_PORT is the first of the head."""


class Fetched(Message, frozen=True, kw_only=True):
    """The file that was ordered is here, or is not what its record, or the study, says."""

    problem: str | None


class StagingEnded(Message, frozen=True, kw_only=True):
    """The answer to the command `all_staged`: nothing of the staging goes on here that could disturb the ranks."""


# -- while the ranks run


class GpusSeen(Message, frozen=True, kw_only=True):
    """The GPUs that the container holds, once, as soon as it has listed them."""

    seen: tuple[str, ...]


class Overdue(Message, frozen=True, kw_only=True):
    """A rank of this node has been silent for longer than it may be."""

    ranks: tuple[RankState, ...]


class RankReport(Message, frozen=True, kw_only=True):
    """The states of the ranks of this node, in answer to `report_ranks`."""

    ranks: tuple[RankState, ...]


class Saving(Message, frozen=True, kw_only=True):
    """The answer to the command for a checkpoint."""

    step: int | None
    """The step of the ranks; null if they have not done a step, and nothing will be written."""


class Exited(Message, frozen=True, kw_only=True):
    """A process of some ranks has ended, or a sidecar."""

    end: RankEnd
    now: float
    """Unix time of this node."""


# -- the end of the attempt


class Stopped(Message, frozen=True, kw_only=True):
    """All that ran here for this attempt has ended."""

    clean: bool
    """False where something could not be ended, or a container not be removed."""


class Collected(Message, frozen=True, kw_only=True):
    """The directory that is to be pushed is complete."""


class Pushed(Message, frozen=True, kw_only=True):
    """The files of this node are on storage."""

    files: tuple[File, ...]


class Released(Message, frozen=True, kw_only=True):
    """The lease of the dataset is dropped."""


TrainingReport = Alive | Exited | Overdue | Saving | GpusSeen
"""What the supervisor acts on while the ranks run."""
StagingReport = Progress | Listening | Waiting | DatasetIsHere
"""What it acts on while the nodes are prepared."""
PreflightReport = ProbesListen | Reached | Measured
"""What the probes of a node say, which goes to the supervisor as it is; and Failed."""
AwaitedReport = Ready | PreflightReport | LookedAt | Staged | Fetched | StagingEnded | RankReport | Stopped | Collected | Pushed | Released
"""What is only noted: where it is needed, it is waited for."""
Report = TrainingReport | StagingReport | AwaitedReport | Signalled | Failed
