"""A few endings of `python -m tests.endings` by a scheduler that has tests of its own, each once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests import images
from tests.minicluster import missing_here


def few_endings(scheduler: str, *kinds: str) -> None:
    """All of these must come out right, and leave nothing. Skips where what they need is not here."""
    if reason := missing_here(docker=True, scheduler=scheduler) or images.missing_here():
        pytest.skip(reason)
    num = str(len(kinds))
    words = ["--scheduler", scheduler, "--only", *kinds, "--endings", num, "--seed", str(random.randrange(1 << 20))]
    argv = [sys.executable, "-m", "tests.endings", *words]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done
    assert f"{num} of {num} right" in done.stdout
