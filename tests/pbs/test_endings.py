"""A few of the endings of `python -m tests.endings` on OpenPBS, each once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests import images
from tests.minicluster import missing_here

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_walltime_and_qdel_are_told_apart_and_leave_nothing() -> None:
    """The walltime ends the parent of the supervisor too: the record says `timeout` nevertheless."""
    if reason := missing_here(docker=True, scheduler="pbs") or images.missing_here():
        pytest.skip(reason)
    words = ["--scheduler", "pbs", "--only", "walltime", "cancel", "--endings", "2", "--seed", str(random.randrange(1 << 20))]
    argv = [sys.executable, "-m", "tests.endings", *words]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done
    assert "2 of 2 right" in done.stdout
