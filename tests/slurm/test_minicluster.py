"""The mini-cluster itself: nothing of it stays."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.minicluster import missing_here

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "tests.minicluster"]
pytestmark = pytest.mark.slow


@pytest.fixture
def name() -> Iterator[str]:
    """A name of its own, taken down whatever the test did."""
    if reason := missing_here():
        pytest.skip(reason)
    name = f"test{os.getpid()}x{random.getrandbits(24):x}"
    yield name
    subprocess.run([*PROGRAM, "down", "--name", name], cwd=ROOT, check=True)


def traces(name: str) -> list[str]:
    """All on this machine that carries the cluster's name."""
    own = f"slipway-minicluster-{name}"
    found = [str(path) for path in Path("/run/netns").glob(f"{name}-*")]
    found += [str(path) for path in Path("/sys/fs/cgroup").rglob(own)]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if own in line or f"/{name}-" in line]
    found += [str(path) for path in (Path("/tmp") / own, Path("/run/slipway-minicluster") / name) if path.exists()]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if own in words or " /run/netns/" + name in words:
            found.append(f"{path.parent.name}: {words}")
    return found


def up(name: str, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*PROGRAM, "up", "--name", name, *options], cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)


@pytest.mark.parametrize("after_s", [0.05, 0.3])
def test_a_killed_up_leaves_nothing_that_down_does_not_find(name: str, after_s: float) -> None:
    building = up(name, "--nodes", "2", "--storage-mbit", "100")
    try:
        building.wait(timeout=after_s)
    except subprocess.TimeoutExpired:
        building.send_signal(signal.SIGKILL)
        building.wait()
    subprocess.run([*PROGRAM, "down", "--name", name], cwd=ROOT, check=True)
    assert traces(name) == []
