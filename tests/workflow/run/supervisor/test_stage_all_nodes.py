"""A dataset on all nodes before the runs, from outside."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.workflow.run.world import ROOT, World

pytestmark = pytest.mark.slow


def warmed(world: World, dataset: str = "tiny") -> tuple[int, dict[str, Any], str]:
    """Exit code, what the file says, and the log."""
    world.write()
    output = world.results / ".warm" / "1" / "tiny.json"
    argv = [
        sys.executable,
        "-m",
        "workflow.run.supervisor.stage_all_nodes",
        "--results",
        str(world.results),
        "--dataset",
        dataset,
        "--output",
        str(output),
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240)
    return done.returncode, json.loads(output.read_text()) if output.exists() else {}, done.stderr


def test_all_nodes_have_it_and_storage_was_read_once(world: World) -> None:
    run_id = world.cell(3, 1)
    code, found, log = warmed(world)
    assert code == 0, log
    assert found["nodes"] == {"local-0": None, "local-1": None, "local-2": None}
    read = found["storage_bytes"]
    assert world.left() == []
    assert not [path for index in range(3) for path in (world.cache / f"local-{index}" / "runs").iterdir()]
    code, found, log = warmed(world)
    assert code == 0, log
    assert found["storage_bytes"] == 0
    log = world.ends(run_id)
    record = world.record(run_id)
    assert all(node["stage"]["hit"] for node in record["nodes"])
    assert read == record["dataset"]["bytes"], "once, however many nodes"


def test_a_node_that_cannot_stage_does_not_stop_the_others(world: World) -> None:
    world.cell(3, 1)
    world.cache.mkdir()
    (world.cache / "local-1").write_text("no directory")
    code, found, log = warmed(world)
    assert code == 0, log
    assert [bool(why) for why in found["nodes"].values()] == [False, True, False]
    assert found["storage_bytes"] > 0


def test_where_no_node_can_the_error_is_the_first_ones(world: World) -> None:
    world.cell(2, 1)
    world.cache.write_text("no directory")
    code, found, log = warmed(world)
    assert code == 15, log
    assert found == {}
    code, _, log = warmed(world, "other")
    assert code == 10
    assert "tiny" in log
