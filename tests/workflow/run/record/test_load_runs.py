"""Runs beside others, and as alone as this machine lets them be: what the record says of it against what a test sees by itself.

Nobody knows how quiet the machine is on which tests run. So what the record tells is compared with the machine's own count of busy time,
by the same clock, never with an expected load.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.processes import TICKS_PER_S
from tests.workflow.run.valid import validate_record
from tests.workflow.run.world import World
from workflow.run.record.machine_load import is_loaded_by_others

pytestmark = pytest.mark.slow

CORES = os.sched_getaffinity(0)
NEAR = 0.25
"""Cores by which the kernel's count by its tick, in this test, may be off from its count of idle time, in the record."""


class Machine(threading.Thread):
    """Looks how busy the cores are: seconds of user, nice and system, by the tick."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.looks: list[tuple[float, float]] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            busy = 0
            for line in Path("/proc/stat").read_text().splitlines():
                words = line.split()
                if words[0].startswith("cpu") and words[0][3:].isdigit() and int(words[0][3:]) in CORES:
                    busy += sum(map(int, words[1:4]))
            self.looks.append((time.monotonic(), busy / TICKS_PER_S))

    def cores(self, begin: float, end: float) -> float:
        """In the time between."""
        inside = [look for look in self.looks if begin <= look[0] <= end]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def measured(world: World, run_id: str) -> tuple[dict[str, Any], dict[str, Any], float]:
    """The record of a run, its load while it measured, and how many cores were busy then as the test saw it."""
    machine = Machine()
    machine.start()
    code, log = world.run(run_id)
    machine.over.set()
    machine.join()
    assert code == 0, log
    record = world.record(run_id)
    validate_record(record)
    (node,) = record["nodes"]
    directory = world.run_dir(run_id) / "attempts" / "1"
    steps = [json.loads(line) for line in (directory / "events-0.jsonl").read_text().splitlines() if '"measured": true' in line]
    assert steps
    return record, node["load"], machine.cores(steps[0]["monotonic_ns"] / 1e9 - steps[0]["seconds"], steps[-1]["monotonic_ns"] / 1e9)


def test_a_program_beside_the_run_is_found_and_named(world: World) -> None:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in CORES]
    try:
        record, load, busy = measured(world, world.cell(measured=40, step_s=0.1))
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    during = load["during"]
    assert load["cores"] == len(CORES)
    assert during["others_cores"] == pytest.approx(busy - during["own_cores"] - (during["kernel_cores"] or 0.0), abs=NEAR)
    assert during["others_cores"] > 0.5
    assert record["exclusive"] is False
    assert any("others used" in words for words in record["busy"])
    assert set(record["busy"]) <= set(record["warnings"])
    assert any(one["name"].startswith("python") for one in during["busiest"])


def test_without_one_the_record_says_what_the_machine_says(world: World) -> None:
    record, load, busy = measured(world, world.cell(measured=40, step_s=0.1))
    during = load["during"]
    others = busy - during["own_cores"] - (during["kernel_cores"] or 0.0)
    assert during["others_cores"] == pytest.approx(max(0.0, others), abs=NEAR)
    said = any("others used" in words for words in record["busy"])
    is_busy = is_loaded_by_others(load["cores"], during["others_cores"], during["seconds"])
    assert said == is_busy
    if others < 0:
        assert not said
    if is_busy:
        assert record["exclusive"] is False


def test_two_nodes_of_one_machine_are_no_others_to_each_other(world: World) -> None:
    """Each has its own cores, and what the other's ranks do on theirs counts for nobody; the supervisor is of both."""
    world.ends(run_id := world.cell(nodes=2, measured=20, step_s=0.05))
    record = world.record(run_id)
    for node in record["nodes"]:
        assert node["load"]["cores"] == len(node["cores"])
        assert node["load"]["during"]["own_cores"] <= len(node["cores"]) + NEAR


def test_a_watcher_that_hangs_holds_nobody_up(world: World) -> None:
    process = world.start(run_id := world.cell(measured=30, step_s=0.1))
    watchers = world.wait_for(lambda: world.pids("cluster.load"))
    for pid in watchers:
        os.kill(pid, signal.SIGSTOP)
    world.end_of(process)
    record = world.record(run_id)
    validate_record(record)
    assert record["performance"]["num_measured_steps"] == 30
    assert record["nodes"][0]["load"] is None or record["nodes"][0]["load"]["during"] is None, "nothing is made up"
    assert world.left() == []
