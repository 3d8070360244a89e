"""A few of the endings of `python -m tests.endings` on OpenLava, each once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests import images
from tests.minicluster import missing_here

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_bkill_is_told_from_the_loss_of_a_node_program_and_leaves_nothing() -> None:
    """bkill ends the launchers of node programs too, maybe before it reaches the supervisor: the record says `cancelled` nevertheless."""
    if reason := missing_here(docker=True, scheduler="lsf") or images.missing_here():
        pytest.skip(reason)
    words = ["--scheduler", "lsf", "--only", "cancel", "node program", "--endings", "2", "--seed", str(random.randrange(1 << 20))]
    argv = [sys.executable, "-m", "tests.endings", *words]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done
    assert "2 of 2 right" in done.stdout
