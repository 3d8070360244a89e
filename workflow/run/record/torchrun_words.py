"""Which of the ranks below a torchrun failed first, by what it says at its end: it ends with 1 whatever happened to them. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from workflow.run.record.events import Event
from workflow.run.record.first_cause import SECONDARY

FAILED_RANK: Final = re.compile(r"^ *rank *: (\d{1,9}) \(local_rank: \d+\)\n *exitcode *: (-?\d{1,9}) \(pid: \d+\)", re.MULTILINE)
"""A rank in its table of failures, since PyTorch 1.9."""
ROOT_CAUSE: Final = re.compile(r"^Root Cause", re.MULTILINE)
SIGNALLED: Final = re.compile(r"^\S*SignalException: Process \d+ got signal: (?:Signals\.)?(SIG[A-Z]+|\d{1,2})$", re.MULTILINE)
"""It was told to end: `15`, with older Pythons `Signals.SIGTERM`."""


class FailedRank(NamedTuple):
    """A rank, and its exit code; negative for a signal."""

    rank: int
    exit_code: int


def first_failed(code: int, said: str, ranks: Collection[int], errors: Mapping[int, Event]) -> tuple[int | None, int]:
    """The rank whose failure made a torchrun end with `code`, and that rank's exit code; (None, its own) where it failed itself.

    `said`: the last that was printed. `errors`: of those of its `ranks` that told of one by an event.
    """
    if code < 0 or (code := -_signal(said) or code) < 0:
        return None, code
    failed = [one for one in _table(said) if one.rank in ranks]
    if not failed:
        rank = min(errors, key=lambda rank: (_echoes(errors[rank].get("message") or ""), errors[rank].get("time") or 0.0), default=None)
        return rank, code
    first, *others = failed
    # those that it ended itself by SIGTERM stand in the table too
    candidates = [first, *(one for one in others if one.exit_code != -signal.SIGTERM)]
    return next((one for one in candidates if not _is_echo(one, said, errors)), first)


def _table(said: str) -> list[FailedRank]:
    """The one that torchrun saw first stands first. Of those that it saw in the same look, which takes a tenth of a second, that is any."""
    root = ROOT_CAUSE.search(said)
    if root is None:
        return []
    found = [(match.start() < root.start(), FailedRank(int(match[1]), int(match[2]))) for match in FAILED_RANK.finditer(said)]
    return [failed for _, failed in sorted(found, key=lambda entry: entry[0])]


def _is_echo(failed: FailedRank, said: str, errors: Mapping[int, Event]) -> bool:
    """Whether it looks like the consequence of another's end: by its own words, or by those of all where it ended as an exception ends."""
    message = (errors.get(failed.rank) or {}).get("message")
    return _echoes(message) if message else failed.exit_code in (1, -signal.SIGABRT) and _echoes(said)


def _echoes(words: str) -> bool:
    return SECONDARY.search(words) is not None


def _signal(said: str) -> int:
    """That it was told to end by; 0 where it was not."""
    told = SIGNALLED.search(said)
    word = "0" if told is None else told[1]
    return int(word) if word.isdigit() else int(signal.Signals.__members__.get(word, 0))
