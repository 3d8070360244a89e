"""What node programs say and what supervisors order: every message between the two is one of these, with these fields.

The proof at the start of a connection says that the other side knows the token, not that it is sane: it may have other code or bad
memory. So a message is checked when it comes, here alone, and one that is none of ours ends the connection with a sentence.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

from base.foreign import text
from base.typed import Check, Count, Digest, FromOne, Mismatch, PathText, Pid, Seconds, Word, reader_of
from cluster.interconnect import MOST, Interface
from cluster.types import Allocation, ForeignUse, Grant
from workflow.run.link.protocol import ProtocolError
from workflow.run.record.outcome import RankEnd

Port = Annotated[int, Check("a port", lambda value: 0 < value < 65536)]
SignalNumber = Annotated[int, Check("the number of a signal", lambda value: value in set(signal.Signals))]
Rate = Annotated[float, Check("a number above 0", lambda value: value > 0)]
Ended = Annotated[RankEnd, Check("the end of a process of some ranks", lambda end: bool(end.ranks))]
Table = Mapping[str, Mapping[str, Any]]
"""Name of a message -> its fields."""


class MachineCores(TypedDict):
    """Of the whole machine."""

    sockets: Count
    cores: Count
    cpus: Count


class Facts(TypedDict):
    """Of a machine."""

    hostname: str
    cpu_model: str | None
    machine_cores: NotRequired[MachineCores]
    memory_bytes: Count | None
    network: NotRequired[Annotated[list[Interface], Check("at most 64 interfaces", lambda value: len(value) <= MOST)]]
    kernel: str
    os: str | None


class Look(TypedDict):
    """How one rank is."""

    rank: Count
    host: str
    phase: str | None
    step: Count | None
    silent_s: float
    limit_s: float
    state: str
    last_lines: str


class Listens(TypedDict):
    """Of the preflight: where."""

    say: Literal["listening"]
    address: str
    port: Port


class Reached(TypedDict):
    """Of the preflight: per node, seconds or what happened instead; null for itself."""

    say: Literal["reached"]
    reached: list[tuple[Seconds | None, str | None] | None]


class Ring(TypedDict):
    """Of the preflight: how the all-reduce went."""

    seconds: Seconds | None
    problem: str | None
    damaged: bool


class Measured(TypedDict):
    """Of the preflight: per node bytes, seconds, busy seconds; null where nobody was met."""

    say: Literal["measured"]
    rates: list[tuple[Count, Seconds, Seconds] | None]
    all_reduce: Ring | None


class File(TypedDict):
    """One that is on storage now."""

    path: PathText
    bytes: Count
    blake3: Word


class Listen(TypedDict):
    """For the preflight: as this node of so many, there."""

    do: Literal["listen"]
    index: Count
    nodes: FromOne
    address: str


class Reach(TypedDict):
    """For the preflight: connect to all of these."""

    do: Literal["reach"]
    peers: list[tuple[str, Port]]


class Measure(TypedDict):
    """For the preflight: exchange so much in so many seconds."""

    do: Literal["measure"]
    attempt: Count
    ring: bool
    bytes: FromOne
    limit_s: Rate


class Others(TypedDict):
    """For the staging: see data_prep.staging.peer_group.Others."""

    peers: list[tuple[str, Port, str] | None]
    readers: list[Count]
    most_readers: FromOne | None
    late: bool


class Pending(TypedDict):
    """For a result that storage did not take."""

    target: PathText
    reason: str
    record: dict[str, Any] | None
    ended: dict[str, Any] | None


class Image(TypedDict):
    """Where the pinned image lies, and the place of a node's own where its load is locked."""

    archive: PathText
    cache: PathText
    may_pull: bool
    credentials: PathText | None


_STAGED: Final = {
    **{"digest": str, "bytes": Count, "copied_bytes": Count, "storage_bytes": Count, "peer_bytes": Count, "resumed_bytes": Count},
    **{"lost_peers": Mapping[str, str], "hit": bool, "seconds": Seconds, "foreign": list[ForeignUse]},
    **{"image_id": str, "image_s": Seconds},
}
SAID: Final[Table] = {
    "ready": {"facts": Facts, "grant": Grant | None, "pid": Pid},
    "alive": {"step": Count | None},
    "signal": {"number": SignalNumber},
    "failed": {"during": str, "error": str, "message": str},
    "preflight": {"answer": Listens | Reached | Measured},
    "progress": {"done": Count, "total": Count},
    "listening": {"address": str, "port": Port, "have": str},
    "waiting": {},
    "dataset": {},
    "loading": {"seconds": Seconds},
    "image_wanted": {"bytes": Count},
    "image_read": {"bytes": Count},
    "staged": _STAGED,
    "reserved": {"address": str, "port": Port},
    "fetched": {"problem": str | None},
    "started": {},
    "gpus": {"seen": list[str]},
    "overdue": {"looks": Annotated[list[Look], Check("at least one rank", bool)]},
    "looks": {"looks": list[Look]},
    "saving": {"step": Count | None},
    "exit": {"end": Ended, "now": float},
    "stopped": {"clean": bool},
    "collected": {"strangers": list[str]},
    "pushed": {"files": list[File]},
    "released": {},
}
"""By the word under `say`."""

_PLAN: Final = {
    **{"allocation": Allocation, "tag": Word, "run_id": Word, "cell_document": dict[str, Any], "engine": Word, "group": bool},
    **{"source": PathText, "cache": PathText, "run_dir": PathText, "cache_max_bytes": Count | None, "bytes_per_s": Rate | None},
    **{"framework": dict[str, Any], "image": Image | None, "beat_s": Rate, "init_s": Rate},
}
ORDERED: Final[Table] = {
    "alive": {},
    "preflight": {"order": Listen | Reach | Measure | None},
    "plan": _PLAN,
    "stage": {},
    "peers": {"peers": Others},
    "staged_all": {},
    "read_image": {"bytes_per_s": Rate | None},
    "reserve": {},
    "fetch": {"source": PathText, "bytes": Count, "blake3": Digest, "limit_s": Rate},
    "forget": {},
    "start": {"master": tuple[str, Port], "left_s": float},
    "checkpoint": {},
    "look": {},
    "stop": {},
    "collect": {},
    "push": {"part": PathText, "limit_s": Rate},
    "release": {},
    "end": {"pending": Pending | None},
}
"""By the word under `do`."""

MAY_LACK: Final = frozenset({"image_id", "image_s", "framework", "image", "beat_s", "init_s"})
"""What has to do with images, and with ranks: where there are none, as where a dataset alone is staged."""


def check(table: Table, key: str, message: Mapping[str, Any]) -> None:
    """Raise ProtocolError unless `message` is one of `table` by its `key`, with all its fields."""
    name = message.get(key)
    if not isinstance(name, str) or name not in table:
        raise ProtocolError(f"it says {key}: {text(name, 40)}, which is no message of ours")
    for field, kind in table[name].items():
        if field not in message:
            if field in MAY_LACK:
                continue
            raise ProtocolError(f"its message {name!r} lacks {field!r}")
        try:
            reader_of(kind)(message[field])
        except Mismatch as mismatch:
            place = ".".join(filter(None, (field, mismatch.place)))
            raise ProtocolError(f"its message {name!r} is none of ours: {place}: {mismatch}") from mismatch
