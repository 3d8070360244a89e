"""A few of the endings of `python -m tests.endings` on OpenLava, each once."""

from __future__ import annotations

import pytest

from tests.endings.few import few_endings

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_bkill_is_told_from_the_loss_of_a_node_program_and_leaves_nothing() -> None:
    """bkill ends the launchers of node programs too, maybe before it reaches the supervisor: the record says `cancelled` nevertheless."""
    few_endings("lsf", "cancel", "node program")
