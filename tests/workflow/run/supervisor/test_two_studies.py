"""Two studies of one user with the same cell, on one node at the same time: their runs have the same name, and nothing else in common."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.runtime import runtime_directory
from tests.workflow.run.world import PATIENCE_S, World

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")]
ALONE = 'mount -t tmpfs -o mode=0700 none "$0" && exec "$@"'
"""With a place for locks of its own, a supervisor does not wait for the other, as if the nodes of a cluster were shared."""


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[tuple[World, World]]:
    pair = World(tmp_path / "first"), World(tmp_path / "second")
    for world in pair:
        world.cache = tmp_path / "cache"
        world.site["cache"] = {"path": str(tmp_path / "cache"), "max_bytes": None}
    yield pair
    for world in pair:
        world.close()


def start(world: World, run_id: str) -> subprocess.Popen[str]:
    return world.start_by(["unshare", "--mount", "sh", "-c", ALONE, str(runtime_directory()), *world.argv(run_id)])


def test_the_same_cell_of_two_studies_runs_twice_on_one_node(worlds: tuple[World, World], tmp_path: Path) -> None:
    first, second = worlds
    run_id = first.held()
    assert second.cell() == run_id
    running = start(first, run_id)
    first.wait_for(lambda: first.steps(run_id))
    _, log = start(second, run_id).communicate(timeout=PATIENCE_S)
    assert second.record(run_id)["status"] == "ok", log
    first.go_on()
    _, log = running.communicate(timeout=PATIENCE_S)
    assert first.record(run_id)["status"] == "ok", log
    assert list((tmp_path / "cache").glob("local-*/runs/*")) == []
