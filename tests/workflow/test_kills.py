"""kill -9 anything at a random moment, then the same command again: it finishes, nothing is wrong, nothing stays behind.

SLIPWAY_KILLS=20 sets the trials per victim (default 1); the seed of each trial is printed when it fails.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from tests.workflow.double_starts import SITE, start_snakemake

pytestmark = pytest.mark.slow
TRIALS = int(os.environ.get("SLIPWAY_KILLS", "1"))
VICTIMS = {"snakemake": "bin/snakemake", "supervisor": "workflow.run.supervisor", "build": "data_prep.build"}
"""Those below a supervisor are killed in run/test_kills.py: Snakemake sees no more of them than its exit code."""

STUDY = """
study: kills
datasets:
  noise: {{source: synthetic, samples: 120, size: 32, channels: grey, shards: 2}}
programs:
  small: {{folder: train, command: ["{{python}}", "{{folder}}/program.py", {hurry}], launcher: ranks, python: {python}}}
base: {{program: small, dataset: noise, batch_size: 8, steps: {{warmup: 1, measured: 20}}, repeats: 1}}
axes: {{nodes: [1, 2]}}
baseline: {{nodes: 1}}
"""
PROGRAM = """
import os, sys, time
import slipway_events
for batch in slipway_events.start().steps([[1, 2]], samples=len):
    time.sleep(0.01 if os.path.exists(sys.argv[1]) else 0.5)
"""
"""It lasts until the kill is over, and not much longer."""


class Place:
    """A study of its own with storage and cache of its own; its path marks every process that belongs to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "study.yaml").write_text(STUDY.format(python=sys.executable, hurry=path / "hurry"))
        (path / "train").mkdir()
        (path / "train" / "program.py").write_text(PROGRAM)
        (path / "site.yaml").write_text(SITE)

    def processes(self) -> dict[int, str]:
        """pid -> command line of every process that names this place."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if state != "Z" and str(self.path).encode() in command + environment:
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
        return found

    def kill_all(self) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.kill_all()


def wait_for(condition: Callable[[], object], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.05)


@pytest.mark.parametrize("trial", range(TRIALS))
@pytest.mark.parametrize("victim", VICTIMS)
def test_the_same_command_finishes_after_a_kill(place: Place, victim: str, trial: int) -> None:
    dice = random.Random(f"{victim}-{trial}")
    snakemake = start_snakemake(place.path, place.path)
    wait_for(
        lambda: [pid for pid, command in place.processes().items() if VICTIMS[victim] in command] or snakemake.poll() is not None,
        120,
        f"a {victim} to kill",
    )
    time.sleep(dice.uniform(0, 0.05 if victim == "build" else 2))
    targets = [pid for pid, command in place.processes().items() if VICTIMS[victim] in command]
    assert targets or victim == "build", "it may have ended"
    if targets:
        os.kill(dice.choice(sorted(targets)), signal.SIGKILL)
    (place.path / "hurry").touch()
    wait_for(lambda: snakemake.poll() is not None, 180, "Snakemake to end")
    wait_for(lambda: not place.processes(), 60, f"no process left after the {victim} was killed, but there is {place.processes()}")
    for part in place.path.glob("storage/results/*/runs/*/.*.part-*"):  # its writer was killed: the next start removes it a minute later
        os.utime(part, (1, 1))

    again = start_snakemake(place.path, place.path)
    wait_for(lambda: again.poll() is not None, 240, "the second Snakemake to end")
    output = (place.path / "output").read_text(errors="replace")
    assert again.returncode == 0, output[-4000:]
    wait_for(lambda: not place.processes(), 60, "no process left at the end")
    check_results(place.path / "storage" / "results" / "kills")
    check_left_behind(place.path)


def check_results(results: Path) -> None:
    records = [json.loads(path.read_text()) for path in sorted(results.glob("runs/*/record.json"))]
    assert len(records) == 2
    for record in records:
        attempt = results / "runs" / record["run_id"] / "attempts" / str(record["attempt"])
        assert record["status"] in ("ok", "error")
        for file in record["files"]:
            content = (attempt / file["path"]).read_bytes()
            assert (len(content), blake3(content).hexdigest()) == (file["bytes"], file["blake3"])
    assert (results / "report.html").exists()


def check_left_behind(place: Path) -> None:
    assert not list(place.glob("storage/results/*/runs/*/lease.json"))
    assert not list(place.glob("storage/**/*.part-*"))
    assert not list(place.glob("cache/*/leases/*/*"))
    assert not list(place.glob("cache/*/runs/*"))
