"""How a run ended, as values: the one table from endings to rows and exit codes, how a process of ranks ended, how a rank is.

A *result* is a row of the tables and exit code 0; a *prevented* attempt exits with the code of its class, and may be tried again.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from base.errors import Cancelled, Killed, NodeLost, Preempted, SlipwayError, StorageError
from workflow.run.record.window_seen import WindowSeen

RESULT: Final = "result"
PREVENTED: Final = "prevented"

Status = Literal["ok", "oom", "nan", "timeout", "hang", "error", "killed", "node_lost", "storage", "preempted", "cancelled"]
TABLE: Final[dict[Status, type[SlipwayError] | None]] = {
    "ok": None,
    "oom": None,
    "nan": None,
    "timeout": None,
    "hang": None,
    "error": None,
    "killed": Killed,
    "node_lost": NodeLost,
    "storage": StorageError,
    "preempted": Preempted,
    "cancelled": Cancelled,
}
"""Status -> the error class whose exit code ends the command; None: a result."""

FROZEN: Final = ("T", "t")


class RankEnd(NamedTuple):
    """How a process of ranks ended, or that it hangs, as its node saw it. `exit_code` is negative for a signal, None for one that hangs;
    `time` is unix time."""

    ranks: tuple[int, ...]
    host: str
    exit_code: int | None
    time: float
    error_kind: str | None = None
    error_message: str | None = None
    oom_kill: bool = False
    run_stop: bool = True
    """Whether every rank of the process wrote run_stop."""
    last_lines: str = ""
    failed_rank: int | None = None
    """Where a process holds several ranks: the one whose events tell of an error, or of times that cannot be."""
    checkpoint: int | None = None
    """The step of the checkpoint that it told of."""
    wrong_clock: str | None = None
    """What its events tell of time that cannot be."""
    unwatched: str | None = None
    """Which rank's clock could not be compared, since its lines came all at once, and why."""
    windows: tuple[WindowSeen, ...] = ()
    """What was seen of the windows of its ranks, where it ended well."""
    sidecar: str | None = None
    """Its name, where it is a process around the ranks: then there are no ranks."""
    may_end: bool = False
    """Of a sidecar: whether it ends by itself, with 0, when the ranks do."""
    launcher: str | None = None
    """Its name, where it is what started the ranks and failed itself: of none of them is known that it did before."""

    @property
    def rank(self) -> int | None:
        """The rank to be named; None of a sidecar or a launcher."""
        if self.launcher is not None:
            return None
        return next(iter(self.ranks), None) if self.failed_rank is None else self.failed_rank

    @property
    def who(self) -> str:
        """In sentences."""
        name = f"sidecar {self.sidecar}" if self.sidecar is not None else self.launcher or f"rank {self.rank}"
        return f"{name} on {self.host}"

    @property
    def printed_by(self) -> str:
        """Whose the last lines are: the ranks of one launcher print into one."""
        return self.who if len(self.ranks) <= 1 else f"ranks {', '.join(map(str, self.ranks))} on {self.host}"


@dataclass(frozen=True, kw_only=True)
class RankState:
    """How one rank is, as its node sees it. `state`: of its process, as in /proc; `?` where that is not known."""

    rank: int
    host: str
    phase: str | None
    step: int | None
    silent_s: float
    limit_s: float
    """How long it may be silent in this phase."""
    state: str
    last_lines: str

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"rank must not be negative, found {self.rank!r}")

    @property
    def is_overdue(self) -> bool:
        """Whether it has been silent for too long."""
        return self.silent_s > self.limit_s

    @property
    def is_frozen(self) -> bool:
        """Whether its process is stopped."""
        return self.state in FROZEN


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why a run ended. `error` overrides the exit code of the table's class, with one below it or beside it (DigestMismatch, PushError)."""

    status: Status
    reason: str | None = None
    rank_end: RankEnd | None = None
    error: type[SlipwayError] | None = None
    planned: bool = False
    """By our own clock: there is time left for the push."""
    nodes: tuple[str, ...] = ()
    """Those at fault, by the scheduler's names, where that is known."""
    requeue: bool = False
    """Whether the job is to be put back into the queue when all is done: the run resumes from a checkpoint."""

    def __post_init__(self) -> None:
        if self.status not in TABLE:
            raise ValueError(f"status must be one of {', '.join(TABLE)}, found {self.status!r}")

    @property
    def kind(self) -> str:
        """`result` or `prevented`."""
        return RESULT if TABLE[self.status] is None else PREVENTED

    @property
    def failed_nodes(self) -> tuple[str, ...]:
        """What the run's next attempt keeps off: of an attempt that a node prevented, by itself or by its cache's disk."""
        if self.nodes or self.rank_end is None or self.status not in ("node_lost", "storage"):
            return self.nodes if self.kind == PREVENTED else ()
        return (self.rank_end.host,)

    @property
    def exit_code(self) -> int:
        """Of the supervisor."""
        table = TABLE[self.status]
        return 0 if table is None else (self.error or table).exit_code

    def failed_rank(self) -> dict[str, object] | None:
        """As the record has it."""
        end = self.rank_end
        if end is None:
            return None
        code = end.exit_code
        return {
            "rank": end.rank,
            "host": end.host,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": signal_name(-code) if code is not None and code < 0 else None,
            "last_lines": end.last_lines,
            **({"sidecar": name} if (name := end.sidecar or end.launcher) else {}),
        }


def signal_name(number: int) -> str:
    """Such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
