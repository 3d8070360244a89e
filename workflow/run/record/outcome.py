"""How a run ended: the one table from endings to rows and exit codes, and the one place that decides which failure was first.

A *result* is a row of the tables and exit code 0; a *prevented* attempt exits with the code of its class, and may be tried again.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from base.errors import Cancelled, Killed, NodeLost, Preempted, SlipwayError, StorageError
from workflow.run.record.causes_outside import prevented_by

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

OOM_EXIT: Final = 41
NAN_EXIT: Final = 42
CHECKPOINT_EXIT: Final = 43
FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
SECONDARY: Final = re.compile(
    r"connection (was )?(reset|closed|refused|aborted|lost)|broken pipe|closed by peer|socket closed|remote process exited"
    r"|peer (has )?(gone|left|disconnected)|no longer reachable|ncclRemoteError|ncclSystemError|EOF occurred"
    r"|Application timeout caused pair closure",
    re.IGNORECASE,
)
OF_A_CHILD: Final = re.compile(r"killed|SIGKILL|signal 9|out of memory|allocate memory|exited unexpectedly", re.IGNORECASE)
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

    @property
    def rank(self) -> int:
        """The rank to be named."""
        return self.ranks[0] if self.failed_rank is None else self.failed_rank


@dataclass(frozen=True, kw_only=True)
class Look:
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
        }


class Verdict(NamedTuple):
    """What one ended process means. The lower `weight`, the more it is a cause and the less a consequence."""

    status: Status
    weight: int
    what: str


def verdict(end: RankEnd) -> Verdict | None:
    """None if the process ended as it should."""
    if end.exit_code == CHECKPOINT_EXIT and end.checkpoint is not None:
        return None
    if end.error_kind == "oom" or end.exit_code == OOM_EXIT:
        return Verdict("oom", 0, f"ran out of memory{_message(end)}")
    if end.error_kind == "nan" or end.exit_code == NAN_EXIT:
        return Verdict("nan", 0, f"met a loss that is not a number{_message(end)}")
    prevented = prevented_by(end)
    if prevented is not None:
        return Verdict(prevented[0], 0, prevented[1])
    if end.exit_code is not None and end.exit_code < 0:
        return _signal_verdict(end, -end.exit_code)
    if end.exit_code:
        weight = 2 if SECONDARY.search(end.error_message or end.last_lines) else 1
        if end.oom_kill and _may_be_of_memory(end):
            what = f"ended with exit code {end.exit_code}, after the kernel had killed a process beside it for want of memory"
            return Verdict("oom", weight, f"{what}{_message(end)}")
        return Verdict("error", weight, f"ended with exit code {end.exit_code}{_message(end)}")
    if not end.run_stop:
        return Verdict("error", 1, "ended with exit code 0, but its events stop before run_stop: the record would be incomplete")
    return Verdict("error", 1, end.wrong_clock) if end.wrong_clock is not None else None


def _may_be_of_memory(end: RankEnd) -> bool:
    """Whether a process may have failed because one that it had started was killed: torchrun by its rank, a rank by a loader's worker. Not
    where it tells of an error of its own."""
    return end.error_message is None or any(pattern.search(end.error_message) for pattern in (SECONDARY, OF_A_CHILD))


def _signal_verdict(end: RankEnd, number: int) -> Verdict:
    name = signal_name(number)
    if number == signal.SIGKILL and end.oom_kill:
        return Verdict("oom", 0, f"was killed by the kernel ({name}), whose count of processes killed for want of memory went up meanwhile")
    if number in FROM_OUTSIDE:
        return Verdict("killed", 0, f"was killed from outside by {name}, without a sign of missing memory")
    secondary = number == signal.SIGABRT and SECONDARY.search(end.last_lines)
    return Verdict("error", 2 if secondary else 0, f"died of {name}{_message(end)}")


def root_cause(ends: Iterable[RankEnd]) -> Ending | None:
    """The first failure by time, causes before consequences; None if all ended well."""
    found = [(said.weight, end.time, end.rank, end, said) for end in ends if (said := verdict(end)) is not None]
    if not found:
        return None
    *_, end, said = min(found, key=lambda entry: entry[:3])
    return Ending(status=said.status, reason=f"rank {end.rank} on {end.host} {said.what}", rank_end=end)


def hang(looks: Iterable[Look]) -> Ending:
    """The rank that hangs, from what the nodes saw of all: one that is stopped, else the one furthest behind, else the longest silent.

    `looks`: at least one.
    """
    found = min(looks, key=lambda look: (not look.is_frozen, -1 if look.step is None else look.step, -look.silent_s))
    state = f"; its process is stopped (state {found.state})" if found.is_frozen else ""
    phase = f"in phase {found.phase}" if found.phase else "and has written no event"
    silence = f"has said nothing for {found.silent_s:.0f} s {phase}, limit {found.limit_s:.0f} s{state}"
    reason = f"rank {found.rank} on {found.host} {silence}"
    end = RankEnd(ranks=(found.rank,), host=found.host, exit_code=None, time=0.0, last_lines=found.last_lines)
    return Ending(status="hang", reason=reason, rank_end=end)


def only_consequences(ends: Iterable[RankEnd]) -> bool:
    """Whether all failures among `ends` look like the echo of another one that has not been seen."""
    verdicts = [said for end in ends if (said := verdict(end)) is not None]
    return all(said.weight >= 2 for said in verdicts)


def signal_name(number: int) -> str:
    """Such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _message(end: RankEnd) -> str:
    return f": {end.error_message}" if end.error_message else ""
