"""Define the commands from a supervisor to its node programs: a frozen type for each message, the union `Command` of all of them, and what
stands in them.

The docstring of a message says when it is sent.
"""

from typing import Literal

from cluster.types import Allocation
from workflow.run.link.reports import Value, What, tag_of
from workflow.run.plan import CellDocument, Framework
from workflow.run.record.model import OwnKeys
from workflow.study.site import Site, storage_limit


class Message(Value, tag_field="do", tag=tag_of, frozen=True, kw_only=True):
    """A command: the base of all of them."""


# -- what stands in messages


class Others(Value, frozen=True, kw_only=True):
    """The other nodes that stage the same files: see data_prep.staging.exchange.Others."""

    peers: tuple[tuple[str, int, str] | None, ...]
    """The address, the port and the chunks of each node; null if it is not there."""
    readers: tuple[int, ...]
    """Nodes that read from storage."""
    most_readers: int | None
    late: bool
    """True if this node has come after the others were told of each other."""


class Image(Value, frozen=True, kw_only=True):
    """The pinned image of a framework."""

    archive: str
    """Its path on storage."""
    cache: str
    """The directory of the lock of its load, on the node, one for all that share an engine."""


class RanksPlan(Value, frozen=True, kw_only=True):
    """The part of the plan that a run has, and the staging of a dataset alone has not."""

    framework: Framework
    cell: CellDocument
    engine: str
    image: Image | None
    """Null where the engine needs none, or starts what it has under the image's name."""
    beat_s: float
    """How long a rank in training may be silent, at least."""
    init_s: float
    """How long it may be silent otherwise."""


class Pending(Value, frozen=True, kw_only=True):
    """The note on a result that storage did not take: the node keeps it, to be delivered later."""

    target: str
    """Its path on storage after the delivery."""
    reason: str
    record: OwnKeys | None
    """The record of the attempt, on the head; null elsewhere. The node writes it down as it is."""
    ended: OwnKeys | None
    """How the attempt ends once it is delivered from all nodes, on the head; null elsewhere. The node writes it down as it is."""


# -- before the ranks start


class Alive(Message, frozen=True, kw_only=True):
    """The sign of life of the supervisor, every 5 s, so that silence means that it is gone."""


class Listen(Message, frozen=True, kw_only=True):
    """The first command of the preflight, before anything is staged: the probes of a node listen for those of the others. The plan ends
    it."""

    index: int
    nodes: int
    address: str


class Reach(Message, frozen=True, kw_only=True):
    """The command to the probes of a node to connect to all nodes."""

    peers: tuple[tuple[str, int], ...]


class Measure(Message, frozen=True, kw_only=True):
    """The command to the probes of a node to exchange so many bytes with each of the others."""

    attempt: int
    bytes: int
    limit_s: float


class Plan(Message, frozen=True, kw_only=True):
    """All that a node has to know of this attempt; the commands that follow are executed according to it."""

    allocation: Allocation
    tag: str
    """The tag of the attempt, on this cluster."""
    run_id: str
    run_dir: str
    """The directory of the run, on storage."""
    group: bool
    """True if the user's group may read what is staged."""
    source: str | None
    """The dataset on storage; null: there is none."""
    cache: str
    """The directory of datasets on the node; variables of the job in it are set there."""
    cache_place: str | None = None
    """The place at which that path is written, as `file:line`, if there are variables in it; null: it is a path as it stands."""
    cache_max_bytes: int | None
    cache_check_s: float | None = None
    """How long a dataset that is in the cache may be hashed before it is used."""
    bytes_per_s: float | None
    """The rate of reading from storage, of all nodes together."""
    ranks: RanksPlan | None
    """Null where a dataset alone is staged."""


def staging_plan(site: Site, allocation: Allocation, tag: str, run_dir: str, source: str | None) -> Plan:
    """Return a plan without ranks, which stages only the dataset `source` under the name `tag`. A source of None means no dataset."""
    return Plan(
        allocation=allocation,
        tag=tag,
        run_id=tag,
        run_dir=run_dir,
        group=site.shared == "group",
        source=source,
        cache=str(site.cache.path),
        cache_place=site.cache.place,
        cache_max_bytes=site.cache.max_bytes,
        cache_check_s=site.cache.check_s,
        bytes_per_s=storage_limit(site).bytes_per_s,
        ranks=None,
    )


class Stage(Message, frozen=True, kw_only=True):
    """The command after the plan: bring the dataset here, where there is one, then what else the ranks need, and bind their ports."""


class LoadImage(Message, frozen=True, kw_only=True):
    """The answer to `dataset_is_here`: load the pinned image, whose archive is staged where the engine lacks it. Where the site limits how
    storage is read, this comes when no node lacks the dataset."""


class MeetPeers(Message, frozen=True, kw_only=True):
    """The nodes that stage the same files, and those that read them from storage, for a node whose stager listens."""

    what: What
    others: Others


class AllStaged(Message, frozen=True, kw_only=True):
    """The message that every node has all that the ranks need: chunks are no longer passed on, and what only brought it there is
    removed."""


class Fetch(Message, frozen=True, kw_only=True):
    """Bring a file here that the ranks start from: the checkpoint of an earlier attempt, or the parameters that the cell names."""

    what: Literal["checkpoint", "parameters"]
    source: str
    bytes: int
    blake3: str
    limit_s: float
    bytes_per_s: float | None
    """The most that this node may read from storage."""


class Forget(Message, frozen=True, kw_only=True):
    """The checkpoint is not whole on some node: none of them uses it."""


# -- the ranks


class Start(Message, frozen=True, kw_only=True):
    """The command to start the ranks of this node, since everything is there."""

    ports: tuple[tuple[int, ...], ...]
    """The ports of each node, as it has reported them."""
    left_s: float
    """The time until the deadline of the attempt."""


class Checkpoint(Message, frozen=True, kw_only=True):
    """The command to the head, shortly before the deadline, to have rank 0 write a checkpoint and end."""


class ReportRanks(Message, frozen=True, kw_only=True):
    """The command after a first failure, or where a rank is overdue, to report how the ranks are."""


# -- the end of the attempt


class Stop(Message, frozen=True, kw_only=True):
    """The attempt is over: end all that runs here."""


class Collect(Message, frozen=True, kw_only=True):
    """The command after the stop to complete the directory that is to be pushed."""


class Push(Message, frozen=True, kw_only=True):
    """Copy this node's files to storage."""

    part: str
    """The hidden directory of the attempt there."""
    limit_s: float


class Release(Message, frozen=True, kw_only=True):
    """Drop the lease of the dataset."""


class End(Message, frozen=True, kw_only=True):
    """The last command: remove the work directory, or keep it with a note, and end."""

    pending: Pending | None
    """The note; null: there is nothing to keep."""


PreparationCommand = Stage | LoadImage | MeetPeers | AllStaged | Fetch | Forget
"""The commands that node/preparation.py executes, once the node has the plan."""
PreflightCommand = Listen | Reach | Measure
"""The commands that go to the probes of a node as they are."""
Command = Alive | PreflightCommand | Plan | PreparationCommand | Start | Checkpoint | ReportRanks | Stop | Collect | Push | Release | End
