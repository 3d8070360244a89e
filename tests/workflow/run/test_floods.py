"""Another user of the machine connects to everything that listens, thousands of times: runs start and end as if he were not there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.run.valid import validate_record
from tests.workflow.run.world import ROOT, World

# long: how soon the attackers find what listens is for the machine to decide, so the run has to be long.
pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))),
        reason="needs root, unshare, nsenter and ip: a flood has a network namespace of its own",
    ),
]


class Apart(World):
    """Supervisors in a network namespace of their own, where each node has an address of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        script = "ip link set lo up && echo up && exec cat"
        self.holder = subprocess.Popen(["unshare", "-n", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"up\n"
        self.inside = ["nsenter", "-t", str(self.holder.pid), "-n"]
        self.attackers: list[subprocess.Popen[bytes]] = []

    def start(self, run_id: str) -> subprocess.Popen[str]:
        argv = [*self.inside, sys.executable, "-m", "tests.workflow.run.loopback", "--results", str(self.results), "--run", run_id]
        env = {**os.environ, "SLIPWAY_TEST_WORLD": str(self.path)}
        process = subprocess.Popen(argv, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.started.append(process)
        return process

    def attack(self, mode: str, most: int) -> None:
        argv = [*self.inside, sys.executable, "-m", "tests.workflow.run.flood", mode, str(most)]
        self.attackers.append(subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    def end_attack(self) -> list[int]:
        """How many connections were made to each port."""
        found: list[int] = []
        for attacker in self.attackers:
            words, _ = attacker.communicate(b"end\n", timeout=60)
            found += json.loads(words).values()
        self.attackers = []
        return found

    def close(self) -> None:
        for attacker in self.attackers:
            attacker.kill()
            attacker.communicate()
        super().close()
        self.holder.communicate()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Apart]:
    made = Apart(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(("mode", "most"), [("pass", 5000), ("hold", 10000)])
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_run_is_whole_while_strangers_flood_all_that_listens(world: Apart, nodes: int, mode: str, most: int) -> None:
    run_id = world.cell(nodes, measured=40, step_s=0.2, sync=False)
    world.attack(mode, most)
    code, log = world.run(run_id)
    made = world.end_attack()
    assert code == 0, log
    record = world.record(run_id)
    validate_record(record)
    assert record["status"] == "ok"
    assert [node["stage"]["bytes"] > 0 for node in record["nodes"]] == [True] * nodes
    assert {f"events-{rank}.jsonl" for rank in range(nodes)} <= {Path(file["path"]).name for file in record["files"]}
    assert sum(made) > 100, "many times the places that there are; how many more, the machine decides"
    assert "Traceback" not in log
    assert log.count("refused") < 100, log
    assert world.left() == []
