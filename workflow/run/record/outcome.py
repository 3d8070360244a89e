"""Decide how a run ended: the one table from endings to rows and exit codes, and the first cause among all that the nodes saw.

A *result* is a row of the tables and exit code 0; a *prevented* attempt exits with the code of its class, and may be tried again.
"""

import re
import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from msgspec import UNSET

from base.errors import Cancelled, Killed, NodeLost, Preempted, SlipwayError, StorageError
from base.humanize import counted, some
from workflow.run.record.events import (
    ErrorEvent,
    RankEvents,
    RequestedSteps,
    drives_all,
    processes,
    reporting_ranks,
    too_few_lines,
    too_few_steps,
    wrong_model,
)
from workflow.run.record.model import FailedRank, Kind, Status

RESULT: Final[Kind] = "result"
PREVENTED: Final[Kind] = "prevented"

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

MEANINGS: Final[dict[Status, str]] = {
    "ok": "Every rank ended with 0 and wrote `run_stop`, and storage has `run_start`, `run_stop` and all steps of each rank",
    "oom": "The program reported missing memory (exit 41, its error event, or the exception that it printed last). Or a process got "
    "SIGKILL, or failed without an error of its own, while the kernel's count of out-of-memory kills went up",
    "nan": "A loss was not finite: exit 42, the error event, or the `loss` of a step",
    "timeout": "The walltime over all attempts was used, less the time for checkpoint and push (`deadline_margin`, at most 20 % "
    "of the walltime)",
    "hang": "A rank was silent for longer than its phase allows, or was stopped (state T)",
    "error": "The program failed by itself: an exit code or signal of its own (SIGSEGV, SIGABRT, ...), or exit 0 without "
    "`run_stop`. Or its events do not fit the cell: they were removed, cut or exchanged, another number of "
    "parameters, fewer steps, another rank, number of ranks or device, less time than went by. Or no node, or the "
    "image, has an interpreter, command or mount of the study's program",
    "killed": "A signal from outside (SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT) ended a rank, a process of it (exit 45) such as "
    "a data loader, a torchrun, an mpirun or a sidecar, without evidence of missing memory",
    "node_lost": "A node program ended, is silent, or cannot start the ranks; or only some nodes have the interpreter, command or "
    "mount of the study's program",
    "storage": "Staging or push failed, storage does not answer, the lease was lost, or a defect of Slipway kept it from making "
    "the record. Or a rank met a full disk, an input/output error or a changed dataset (exit 44, its event, SIGBUS), "
    "or the node's cache was removed while the run worked",
    "preempted": "The job ends before the run's walltime does, or the scheduler took the nodes back or requeued the job",
    "cancelled": "The supervisor or a node program got SIGTERM, SIGINT or SIGHUP, or Snakemake ended",
}
"""Status -> when an attempt ends so, for the pages of reference."""

FROZEN: Final = ("T", "t")


class ObservedWindow(NamedTuple):
    """The length of the measured window of a rank by its node's clock, at least and at most; numbers of its first and its last step."""

    rank: int
    first: int
    last: int
    least_s: float
    most_s: float
    begin_s: float | None = None
    """Begin and end: in a message of the node, before the moment of sending (negative); at the supervisor, by its monotonic clock."""
    end_s: float | None = None


class RankEnd(NamedTuple):
    """The end of a process of ranks, or that it hangs, as its node saw it. `exit_code` is negative for a signal, None for one that hangs;
    `time` is unix time."""

    ranks: tuple[int, ...]
    host: str
    exit_code: int | None
    time: float
    error_kind: str | None = None
    error_message: str | None = None
    oom_kill: bool = False
    run_stop: bool = True
    """True if every rank of the process wrote run_stop."""
    last_step: int | None = None
    """The last step that one of its ranks reported."""
    broken_lines: int = 0
    """The lines of the events of its ranks that are no events."""
    last_lines: str = ""
    failed_rank: int | None = None
    """The rank, of a process with several, whose events tell of an error, or of times that cannot be."""
    checkpoint: int | None = None
    """The step of the checkpoint that it told of."""
    wrong_clock: str | None = None
    """What its events tell of time that cannot be."""
    windows: tuple[ObservedWindow, ...] = ()
    """What was seen of the windows of its ranks, where it ended well."""
    sidecar: str | None = None
    """Its name, where it is a process around the ranks: then there are no ranks."""
    may_end: bool = False
    """True for a sidecar that ends by itself, with 0, when the ranks do."""
    launcher: str | None = None
    """Its name, where it is what started the ranks and failed itself: of none of them is known that it did before."""

    @property
    def rank(self) -> int | None:
        """Return the rank to be named in messages, or None for a sidecar or a launcher."""
        if self.launcher is not None:
            return None
        return next(iter(self.ranks), None) if self.failed_rank is None else self.failed_rank

    @property
    def who(self) -> str:
        """Return the words that stand for this process in sentences."""
        name = f"sidecar {self.sidecar}" if self.sidecar is not None else self.launcher or f"rank {self.rank}"
        return f"{name} on {self.host}"

    @property
    def printed_by(self) -> str:
        """Name the process that printed the last lines: the ranks of one launcher print into one output."""
        return self.who if len(self.ranks) <= 1 else f"ranks {', '.join(map(str, self.ranks))} on {self.host}"


@dataclass(frozen=True, kw_only=True)
class RankState:
    """The state of one rank, as its node sees it. `state`: of its process, as in /proc; `?` where that is not known."""

    rank: int
    host: str
    phase: str | None
    step: int | None
    silent_s: float
    limit_s: float
    """How long it may be silent in this phase."""
    state: str
    last_lines: str

    @property
    def is_overdue(self) -> bool:
        """Return True if the rank has been silent for longer than its limit."""
        return self.silent_s > self.limit_s

    @property
    def is_frozen(self) -> bool:
        """Return True if the process of the rank is stopped."""
        return self.state in FROZEN


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why a run ended. `error` overrides the exit code of the table's class, with one below it or beside it (DigestMismatch, PushError)."""

    status: Status
    reason: str | None = None
    rank_end: RankEnd | None = None
    error: type[SlipwayError] | None = None
    planned: bool = False
    """True for an end by our own clock: there is time left for the push."""
    nodes: tuple[str, ...] = ()
    """The nodes at fault, by the scheduler's names, where that is known."""
    requeue: bool = False
    """True if the job is to be put back into the queue when all is done: the run resumes from a checkpoint."""

    @property
    def kind(self) -> Kind:
        """Return the kind of the attempt: `result` or `prevented`."""
        return RESULT if TABLE[self.status] is None else PREVENTED

    @property
    def failed_nodes(self) -> tuple[str, ...]:
        """Return the nodes that the run's next attempt avoids: those that prevented this one, by themselves or by their cache's disk."""
        if self.nodes or self.rank_end is None or self.status not in ("node_lost", "storage"):
            return self.nodes if self.kind == PREVENTED else ()
        return (self.rank_end.host,)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the supervisor."""
        table = TABLE[self.status]
        return 0 if table is None else (self.error or table).exit_code

    def failed_rank(self) -> FailedRank | None:
        """Return the failed rank as a record has it."""
        end = self.rank_end
        if end is None:
            return None
        code = end.exit_code
        return FailedRank(
            rank=end.rank,
            host=end.host,
            exit_code=code if code is not None and code >= 0 else None,
            signal=signal_name(-code) if code is not None and code < 0 else None,
            last_lines=end.last_lines,
            sidecar=end.sidecar or end.launcher or UNSET,
        )


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Ends that are not the program's fault: one of its processes was killed, or a disk or the staged dataset failed it.


STORAGE_EXIT: Final = 44
KILLED_EXIT: Final = 45
CHILD_KILLED: Final = re.compile(
    r"DataLoader worker .* is killed by signal: (Killed|Terminated|Hangup|Interrupt|Quit)\b"
    r"|loader process \d+ is killed by signal SIG(KILL|TERM|HUP|INT|QUIT)\b"
)
"""The words of PyTorch, and of Slipway's reader, for a loader process."""
ADVICE: Final = (
    (
        re.compile(r"No space left|Disk quota|os error (28|122)\b"),
        "make room in the node's cache (`slipway cache ls`, `slipway cache rm NAME`)",
    ),
    (re.compile(r"Input/output error|Read-only file|os error (5|30)\b"), "the node's disk fails: look at the node's kernel log"),
    (re.compile(r"No such file|cannot be opened|manifest"), "somebody removed or changed files of the node's cache: keep cleaners off it"),
)
MAPPED: Final = (
    "what it had mapped into its memory could not be read: the node's disk failed or is full, or a file was cut; look at the node's kernel "
    "log, and at the room in its cache (`slipway cache ls`)"
)


def prevented_by(end: RankEnd) -> tuple[Literal["oom", "killed", "storage"], str] | None:
    """Return a status and what happened to the process, or None where nothing shows such a cause."""
    said = f": {end.error_message}" if end.error_message else ""
    if _lost_a_process(end):
        if end.oom_kill:
            return "oom", f"lost a process of its own, and the kernel had killed one for want of memory{said}"
        return "killed", f"lost a process of its own to a signal from outside, without a sign of missing memory{said}"
    if end.error_kind == "storage" or end.exit_code == STORAGE_EXIT:
        advice = next((f"; {advice}" for pattern, advice in ADVICE if pattern.search(said)), "")
        return "storage", f"could not read its dataset or write its files{said}{advice}"
    if end.exit_code == -signal.SIGBUS:
        return "storage", f"died of SIGBUS: {MAPPED}"
    return None


def _lost_a_process(end: RankEnd) -> bool:
    if not end.exit_code or end.exit_code < 0:
        return False
    return end.error_kind == "killed" or end.exit_code == KILLED_EXIT or CHILD_KILLED.search(end.error_message or "") is not None


# The first failure of a run: causes before consequences, by what the nodes saw of all ranks.


OOM_EXIT: Final = 41
NAN_EXIT: Final = 42
CHECKPOINT_EXIT: Final = 43
FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
SECONDARY: Final = re.compile(
    r"connection (was )?(reset|closed|refused|aborted|lost)|broken pipe|closed by peer|socket closed|remote process exited"
    r"|peer (has )?(gone|left|disconnected)|no longer reachable|ncclRemoteError|ncclSystemError|EOF occurred"
    r"|Application timeout caused pair closure|lost communication with a remote daemon",
    re.IGNORECASE,
)
OF_A_CHILD: Final = re.compile(r"killed|SIGKILL|signal 9|out of memory|allocate memory|exited unexpectedly", re.IGNORECASE)
OUT_OF_MEMORY: Final = re.compile(
    r"can't allocate memory|CUDA out of memory|RESOURCE_EXHAUSTED|(^|\s)[\w.]*(MemoryError|ResourceExhaustedError)(:|$)"
)
"""The words of PyTorch on the CPU and on a GPU and of XLA, and the names of exceptions as Python prints them, as in slipway_events: another
error may quote the name, such as one of a PyTorch that does not have it."""
READ_ONLY: Final = re.compile(r"Read-only file system|\bos error 30\b|(Permission denied|\bos error 13\b)", re.IGNORECASE)
MAY_WRITE: Final = "a program may write to SLIPWAY_OUT ({out}, where it starts) and to mounts with `writable: true`, not to its folder"
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning|NotFound)\b")
"""The last line of a traceback."""
_TRACEBACK: Final = "Traceback (most"
"""Its first one begins so."""
MAX_WORDS: Final = 300


class Verdict(NamedTuple):
    """What one ended process means. The lower `weight`, the more it is a cause and the less a consequence."""

    status: Status
    weight: int
    what: str


def verdict(end: RankEnd) -> Verdict | None:
    """Judge how a process ended. None if it ended as it should."""
    if end.exit_code == CHECKPOINT_EXIT and end.checkpoint is not None:
        return None
    if end.error_kind == "oom" or end.exit_code == OOM_EXIT or _printed_out_of_memory(end):
        return Verdict("oom", 0, f"ran out of memory{_message(end) or _last_words(end)}")
    if end.error_kind == "nan" or end.exit_code == NAN_EXIT:
        return Verdict("nan", 0, f"met a loss that is not a number{_message(end)}")
    prevented = prevented_by(end)
    if prevented is not None:
        return Verdict(prevented[0], 0, prevented[1])
    if end.exit_code is not None and end.exit_code < 0:
        return _signal_verdict(end, -end.exit_code)
    if end.exit_code:
        weight = 2 if SECONDARY.search(end.error_message or (end.last_lines if len(end.ranks) <= 1 else _last_words(end))) else 1
        if end.oom_kill and _may_be_of_memory(end):
            what = f"ended with exit code {end.exit_code}, after the kernel had killed a process beside it for want of memory"
            return Verdict("oom", weight, f"{what}{_message(end)}")
        words = _message(end) or _last_words(end)
        return Verdict("error", weight, f"ended with exit code {end.exit_code}{words}{_what_to_do(words)}")
    if end.sidecar is not None:
        return None if end.may_end else Verdict("error", 1, f"ended with exit code 0 while ranks were running{_last_words(end)}")
    if not end.run_stop:
        return Verdict("error", 1, f"ended with exit code 0, {_why_not_whole(end)}{_last_words(end)}")
    return Verdict("error", 1, end.wrong_clock) if end.wrong_clock is not None else None


def _why_not_whole(end: RankEnd) -> str:
    if end.last_step is not None:
        return f"but its events stop before run_stop: it left its steps early, after step {end.last_step}"
    if end.broken_lines:
        lines = counted(end.broken_lines, "line is no event", "lines are no events")
        return f"and reported no step: in its events file {lines}: let slipway_events write it"
    return "and reported no step: call slipway_events in the script, or let `events:` of the program match the lines that it prints"


def _printed_out_of_memory(end: RankEnd) -> bool:
    """Return True for a program that ended so before slipway_events could report it, or without slipway_events."""
    return bool(end.exit_code and end.exit_code > 0 and not end.error_message and OUT_OF_MEMORY.search(_last_words(end)))


def _last_words(end: RankEnd) -> str:
    """Return the exception that a process printed, or its last line, for a process that reported no error by an event."""
    lines = end.last_lines.splitlines()
    raised = [line for line in lines if _EXCEPTION.match(line)] if any(line.startswith(_TRACEBACK) for line in lines) else []
    if len(end.ranks) > 1:
        lines, raised = _of_the_cause(end, lines, raised)
    words = (raised or lines)[-1:]
    return f": {words[0][:MAX_WORDS]}" if words else ""


def _of_the_cause(end: RankEnd, lines: list[str], raised: list[str]) -> tuple[list[str], list[str]]:
    """Select the lines that tell of the cause, where several ranks of one launcher print into one output.

    An exception ends a rank with exit code 1; what looks like an echo comes from another rank.
    """
    if end.exit_code == 1:
        return lines, [line for line in raised if not SECONDARY.search(line)] or raised
    tracebacks = (" ", _TRACEBACK)
    return [line for line in lines if not (line.startswith(tracebacks) or _EXCEPTION.match(line) or SECONDARY.search(line))], []


def _what_to_do(words: str) -> str:
    found = READ_ONLY.search(words)
    if found is None:
        return ""
    return f"; {'if it was to be written to: ' * bool(found[1])}{MAY_WRITE}"


def _may_be_of_memory(end: RankEnd) -> bool:
    """Return True if a process may have failed because one that it had started was killed, such as a loader's worker.

    False where it reports an error of its own.
    """
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
    """Find the first failure by time, causes before consequences. None if all processes ended well."""
    found = [(said.weight, end.time, min(end.ranks, default=0), end, said) for end in ends if (said := verdict(end)) is not None]
    if not found:
        return None
    *_, end, said = min(found, key=lambda entry: entry[:3])
    return Ending(status=said.status, reason=f"{end.who} {said.what}", rank_end=end)


def hang(states: Iterable[RankState]) -> Ending:
    """Find the rank that hangs: one that is stopped, else the one furthest behind, else the longest silent.

    `states`: what the nodes saw of all ranks, at least one.
    """
    found = min(states, key=lambda rank: (not rank.is_frozen, -1 if rank.step is None else rank.step, -rank.silent_s))
    state = f"; its process is stopped (state {found.state})" if found.is_frozen else ""
    phase = f"in phase {found.phase}" if found.phase else "and has written no event"
    silence = f"has said nothing for {found.silent_s:.0f} s {phase}, limit {found.limit_s:.0f} s{state}"
    reason = f"rank {found.rank} on {found.host} {silence}"
    end = RankEnd(ranks=(found.rank,), host=found.host, exit_code=None, time=0.0, last_lines=found.last_lines)
    return Ending(status="hang", reason=reason, rank_end=end)


def only_consequences(ends: Iterable[RankEnd]) -> bool:
    """Return True if all failures among `ends` look like consequences of another one that has not been seen."""
    verdicts = [said for end in ends if (said := verdict(end)) is not None]
    return all(said.weight >= 2 for said in verdicts)


def _message(end: RankEnd) -> str:
    return f": {end.error_message}" if end.error_message else ""


def judge_missing(told: Mapping[str, str], nodes: int) -> Ending:
    """Judge a run whose nodes lack something, by the names of these nodes.

    Where all nodes lack it, every other attempt will too: that is a result. Where some have it, the others are at fault, and an attempt
    on other nodes may succeed.
    """
    everywhere = len(told) == nodes
    names = "all nodes" if everywhere and nodes > 1 else some(list(told), 4)
    reason = f"{next(iter(told.values()))} (on {names}{'' if everywhere else '; other nodes of the run have it'})"
    return Ending(status="error", reason=reason) if everywhere else Ending(status="node_lost", reason=reason, nodes=tuple(told))


# The check of status `ok` against the files that were pushed.


def contradiction(
    events: Mapping[int, RankEvents], world_size: int, model: tuple[str, int] | None, steps: RequestedSteps | None = None
) -> str | None:
    """Explain why a run with these pushed events did not end `ok`, or return None where nothing contradicts it.

    `model`: name and parameter count of the cell's network; `steps`: the steps requested of each rank.
    """
    return (
        unfinished(events, world_size)
        or elsewhere(events, world_size)
        or (None if model is None else wrong_model(events, *model))
        or untrained(events)
        or uncounted(events)
        or (None if steps is None else _too_few(events, world_size, steps))
    )


def _too_few(events: Mapping[int, RankEvents], world_size: int, steps: RequestedSteps) -> str | None:
    source, told, _ = reporting_ranks(events, world_size)
    return too_few_steps(told, steps) if source == "program" else too_few_lines(told, steps)


def elsewhere(events: Mapping[int, RankEvents], world_size: int) -> str | None:
    """Find the first rank that was not in the requested run.

    A rank that worked by itself, where all should work together, has done nothing that a table compares, however well it ended.
    """
    if drives_all(events) and len(events) > 1:
        return f"rank 0 tells that it works for all ranks, and there is an events-{max(events)}.jsonl: they did not work together"
    for rank, entry in sorted(events.items()):
        start = entry.head
        if start.world_size not in (None, world_size):
            return f"rank {rank} tells of {start.world_size} ranks in all, and the run has {world_size}: they did not work together"
        if start.rank not in (None, rank):
            return f"events-{rank}.jsonl was written by rank {start.rank}, as that tells"
    return None


def untrained(events: Mapping[int, RankEvents]) -> str | None:
    """Find the first rank with a loss that is not finite. Where a node program saw it, the run has already ended as `nan`."""
    for rank, entry in sorted(events.items()):
        if entry.not_finite is not None:
            return f"rank {rank} ended well, and tells that the loss of its step {entry.not_finite} is NaN or infinite"
    return None


def uncounted(events: Mapping[int, RankEvents]) -> str | None:
    """Find the first rank that reported an invalid number of samples or tokens.

    Without them its rate would use the batch of the cell, which it may not have done.
    """
    for rank, entry in sorted(events.items()):
        if entry.no_count is not None:
            return f"rank {rank} tells of {entry.no_count}: expected a whole number from 0 on, or nothing where it does not know"
    return None


def other_device(events: Mapping[int, RankEvents], device: str) -> str | None:
    """Find the first rank that computed on another device, cpu or cuda, than the run was granted."""
    for rank, entry in sorted(events.items()):
        told = entry.head.device
        if told is not None and told.partition(":")[0] != device:
            return f"rank {rank} computed on {told}, as it tells, and the run's device is {device}"
    return None


def unfinished(events: Mapping[int, RankEvents], world_size: int) -> str | None:
    """Find the first rank whose events do not go from run_start to run_stop."""
    for rank in range(processes(events, world_size)):
        entry = events.get(rank)
        if entry is None:
            return f"rank {rank} ended well, and there is no events-{rank}.jsonl among what could be pushed: {_WHY}"
        missing = [kind for kind, event in (("run_start", entry.start), ("run_stop", entry.stop)) if event is None]
        if missing:
            return f"rank {rank} ended well, and its events-{rank}.jsonl was pushed without {' and '.join(missing)}: {_WHY}"
    return None


_WHY = "the program, or another process, has changed its output directory before it was on storage; nothing in it is to be believed"


# The first failed rank below a torchrun, read from the table that it prints at its end.


FAILED_RANK: Final = re.compile(r"^ *rank *: (\d{1,9}) \(local_rank: \d+\)\n *exitcode *: (-?\d{1,9}) \(pid: \d+\)", re.MULTILINE)
"""A rank in its table of failures, since PyTorch 1.9."""
ROOT_CAUSE: Final = re.compile(r"^Root Cause", re.MULTILINE)
SIGNALLED: Final = re.compile(r"^\S*SignalException: Process \d+ got signal: (?:Signals\.)?(SIG[A-Z]+|\d{1,2})$", re.MULTILINE)
"""It was told to end: `15`, with older Pythons `Signals.SIGTERM`."""


class _Failed(NamedTuple):
    """A rank, and its exit code; negative for a signal."""

    rank: int
    exit_code: int


def first_failed(code: int, said: str, ranks: Collection[int], errors: Mapping[int, ErrorEvent]) -> tuple[int | None, int]:
    """Find the rank whose failure made a torchrun end with `code`, and that rank's exit code. (None, its own code) where the torchrun
    itself failed.

    `said`: the end of what was printed. `errors`: the error events of those of its `ranks` that wrote one.
    """
    if code < 0 or (code := -_signal(said) or code) < 0:
        return None, code
    failed = [one for one in _table(said) if one.rank in ranks]
    if not failed:
        rank = min(errors, key=lambda rank: (_echoes(errors[rank].message or ""), errors[rank].time or 0.0), default=None)
        return rank, code
    first, *others = failed
    # those that it ended itself by SIGTERM stand in the table too
    candidates = [first, *(one for one in others if one.exit_code != -signal.SIGTERM)]
    return next((one for one in candidates if not _is_echo(one, said, errors)), first)


def _table(said: str) -> list[_Failed]:
    """Parse the failed ranks, the one that torchrun saw first in front.

    Among ranks that it saw in the same poll, which takes a tenth of a second, that is an arbitrary one.
    """
    root = ROOT_CAUSE.search(said)
    if root is None:
        return []
    found = [(match.start() < root.start(), _Failed(int(match[1]), int(match[2]))) for match in FAILED_RANK.finditer(said)]
    return [failed for _, failed in sorted(found, key=lambda entry: entry[0])]


def _is_echo(failed: _Failed, said: str, errors: Mapping[int, ErrorEvent]) -> bool:
    """Return True if the failure looks like the consequence of another rank's end, by its own message or by what all ranks printed."""
    message = errors[failed.rank].message if failed.rank in errors else None
    return _echoes(message) if message else failed.exit_code in (1, -signal.SIGABRT) and _echoes(said)


def _echoes(words: str) -> bool:
    return SECONDARY.search(words) is not None


def _signal(said: str) -> int:
    """Return the signal that ended torchrun, 0 if none did."""
    told = SIGNALLED.search(said)
    word = "0" if told is None else told[1]
    return int(word) if word.isdigit() else int(signal.Signals.__members__.get(word, 0))
