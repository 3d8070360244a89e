"""Which failure of a run was first, and what it means: causes before consequences, by what the nodes saw of all ranks. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from base.units import some
from workflow.run.record.causes_outside import prevented_by
from workflow.run.record.outcome import Ending, RankEnd, RankState, Status, signal_name

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
        weight = 2 if SECONDARY.search(end.error_message or (end.last_lines if len(end.ranks) <= 1 else _last_words(end))) else 1
        if end.oom_kill and _may_be_of_memory(end):
            what = f"ended with exit code {end.exit_code}, after the kernel had killed a process beside it for want of memory"
            return Verdict("oom", weight, f"{what}{_message(end)}")
        words = _message(end) or _last_words(end)
        return Verdict("error", weight, f"ended with exit code {end.exit_code}{words}{_what_to_do(words)}")
    if end.sidecar is not None:
        return None if end.may_end else Verdict("error", 1, f"ended with exit code 0 while ranks were running{_last_words(end)}")
    if not end.run_stop:
        why = "it left its steps early, or writes no events (slipway_events does, or `events:` of the program)"
        return Verdict("error", 1, f"ended with exit code 0, but its events stop before run_stop: {why}")
    return Verdict("error", 1, end.wrong_clock) if end.wrong_clock is not None else None


def _last_words(end: RankEnd) -> str:
    """Of a process that told of no error by an event: the exception that it printed, or its last line."""
    lines = end.last_lines.splitlines()
    raised = [line for line in lines if _EXCEPTION.match(line)] if any(line.startswith(_TRACEBACK) for line in lines) else []
    if len(end.ranks) > 1:
        lines, raised = _of_the_cause(end, lines, raised)
    words = (raised or lines)[-1:]
    return f": {words[0][:MAX_WORDS]}" if words else ""


def _of_the_cause(end: RankEnd, lines: list[str], raised: list[str]) -> tuple[list[str], list[str]]:
    """Where several ranks of one launcher print into one: an exception ends a rank with 1, and echoes are another's words."""
    if end.exit_code == 1:
        return lines, [line for line in raised if not SECONDARY.search(line)] or raised
    tracebacks = (" ", _TRACEBACK)
    return [line for line in lines if not (line.startswith(tracebacks) or _EXCEPTION.match(line) or SECONDARY.search(line))], []


def _what_to_do(words: str) -> str:
    """About a place that may not be written to."""
    found = READ_ONLY.search(words)
    if found is None:
        return ""
    return f"; {'if it was to be written to: ' * bool(found[1])}{MAY_WRITE}"


def _may_be_of_memory(end: RankEnd) -> bool:
    """Whether a process may have failed because one that it had started was killed, such as a loader's worker. Not where it tells of an
    error of its own."""
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
    found = [(said.weight, end.time, min(end.ranks, default=0), end, said) for end in ends if (said := verdict(end)) is not None]
    if not found:
        return None
    *_, end, said = min(found, key=lambda entry: entry[:3])
    return Ending(status=said.status, reason=f"{end.who} {said.what}", rank_end=end)


def hang(states: Iterable[RankState]) -> Ending:
    """The rank that hangs, from what the nodes saw of all: one that is stopped, else the one furthest behind, else the longest silent.

    `states`: at least one.
    """
    found = min(states, key=lambda rank: (not rank.is_frozen, -1 if rank.step is None else rank.step, -rank.silent_s))
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


def _message(end: RankEnd) -> str:
    return f": {end.error_message}" if end.error_message else ""


def of_what_is_missing(told: Mapping[str, str], nodes: int) -> Ending:
    """What nodes lack, by their names. Where none has it, no other attempt will have it either: that is a result. Where some have it,
    the others are at fault, and other nodes may do."""
    everywhere = len(told) == nodes
    names = "all nodes" if everywhere and nodes > 1 else some(list(told), 4)
    reason = f"{next(iter(told.values()))} (on {names}{'' if everywhere else '; other nodes of the run have it'})"
    return Ending(status="error", reason=reason) if everywhere else Ending(status="node_lost", reason=reason, nodes=tuple(told))
