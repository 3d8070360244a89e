"""Recognise ends that are not the program's fault: one of its processes was killed, or a disk or the staged dataset failed it. Pure."""

from __future__ import annotations

import re
import signal
from typing import Final, Literal

from workflow.run.record.outcome import RankEnd

STORAGE_EXIT: Final = 44
KILLED_EXIT: Final = 45
CHILD_KILLED: Final = re.compile(r"DataLoader worker .* is killed by signal: (Killed|Terminated|Hangup|Interrupt|Quit)\b")
"""PyTorch's words for a loader process."""
ADVICE: Final = (
    (re.compile(r"No space left|Disk quota|os error (28|122)\b"), "make room in the node's cache (`slipway cache ls`, `slipway cache rm`)"),
    (re.compile(r"Input/output error|Read-only file|os error (5|30)\b"), "the node's disk fails: look at the node's kernel log"),
    (re.compile(r"No such file|cannot be opened|manifest"), "somebody removed or changed files of the node's cache: keep cleaners off it"),
)
MAPPED: Final = (
    "what it had mapped into its memory could not be read: the node's disk failed or is full, or a file was cut; look at the node's kernel "
    "log, and at the room in its cache (`slipway cache ls`)"
)


def prevented_by(end: RankEnd) -> tuple[Literal["oom", "killed", "storage"], str] | None:
    """(status, what happened to it); None where nothing tells of such a cause."""
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
    """By its exit code, by its event, or in the words of its framework."""
    if not end.exit_code or end.exit_code < 0:
        return False
    return end.error_kind == "killed" or end.exit_code == KILLED_EXIT or CHILD_KILLED.search(end.error_message or "") is not None
