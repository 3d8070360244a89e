"""A result that waits on its nodes, since storage did not take it: the words by which its supervisor tells, and everybody knows, that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WAITS: Final = "its result waits on "
MAY_WAIT: Final = "its result may wait on "
"""Where only the log of a run says so: whether a node has it, nobody knows who does not ask there."""
DELIVER: Final = "; deliver it there with `slipway reap --push`"
PUSH: Final = "push: "
"""What the errors of a push begin with, in the words of a node."""
STATUS: Final = "storage"
"""How such a run has ended."""


def waiting_words(nodes: Sequence[str]) -> str:
    """What to do about it: the end of a reason."""
    return f"{WAITS}{', '.join(nodes)}{DELIVER}"


def tells_waiting(reason: str) -> bool:
    """Whether it says that a result waits, or may wait."""
    return WAITS in reason or MAY_WAIT in reason


def waiting_reason(error: str) -> str | None:
    """Why a run without a record has none, by the last error in its log, if its result waits. A log on a storage that is full
    ends with what a node said, since nothing more could be written."""
    if tells_waiting(error):
        return error
    return f"{error}; {MAY_WAIT}its nodes{DELIVER}" if error.startswith(PUSH) else None
