"""A result that waits on its nodes, since storage did not take it: the words by which its supervisor tells, and everybody knows, that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WAITS: Final = "its result waits on "
STATUS: Final = "storage"
"""How such a run has ended."""


def waiting_words(nodes: Sequence[str]) -> str:
    """What to do about it: the end of a reason."""
    return f"{WAITS}{', '.join(nodes)}; deliver it there with `slipway reap --push`"


def tells_waiting(reason: str) -> bool:
    """Whether the last error of a supervisor's log says so."""
    return WAITS in reason
