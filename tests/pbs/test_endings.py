"""A few of the endings of `python -m tests.endings` on OpenPBS, each once."""

from __future__ import annotations

import pytest

from tests.endings.few import few_endings

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_walltime_and_qdel_are_told_apart_and_leave_nothing() -> None:
    """The walltime ends the parent of the supervisor too: the record says `timeout` nevertheless."""
    few_endings("pbs", "walltime", "cancel")
