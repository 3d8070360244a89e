"""kill -9 whatever there is, at random moments; the next start finishes, and nothing is left. Seen from outside, by /proc and the files.

SLIPWAY_KILLS=20 sets the trials per victim (default 2); a failure prints the seed.
"""

import json
import os
import random
import signal
import time

import pytest

from tests.workflow.run.valid import validate_record
from tests.workflow.run.world import World

pytestmark = pytest.mark.slow
TRIALS = int(os.environ.get("SLIPWAY_KILLS", "2"))
VICTIMS = {
    "supervisor": "workflow.run.supervisor",
    "node": "workflow.run.node",
    "rank": "program.py",
    "staging": "data_prep.staging",
    "any": "",
}
CLEAN_S = 20.0


@pytest.mark.parametrize("trial", range(TRIALS))
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_kill_at_any_moment_leaves_nothing_and_the_next_start_finishes(world: World, victim: str, trial: int) -> None:
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    run_id = world.cell(2, 2, measured=40, step_s=0.005, do={"1": [5, "child"]})
    process = world.start(run_id)
    moment = time.monotonic() + dice.uniform(0.0, 1.2)
    while time.monotonic() < moment and process.poll() is None:
        time.sleep(0.002)
    pids = world.pids(VICTIMS[victim])
    if pids:
        os.kill(dice.choice(pids), signal.SIGKILL)
    _, log = process.communicate(timeout=60)
    told = f"seed {seed}, killed {victim}, exit {process.returncode}\n{log}"
    deadline = time.monotonic() + CLEAN_S
    while world.processes() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert world.processes() == [], told
    assert process.returncode in (0, -9, 1, 15, 22, 23, 24, 26), told
    records = [json.loads(path.read_text()) for path in world.run_dir(run_id).glob("**/record.json")]
    for record in records:
        validate_record(record)
    if process.returncode == 0:
        assert world.record(run_id)["kind"] == "result", told
    for part in world.run_dir(run_id).glob(".*.part-*"):  # its writer may have been killed, and the next start removes it a minute later
        os.utime(part, (1, 1))
    code, again = world.run(run_id)
    assert code == 0, told + again
    record = world.record(run_id)
    validate_record(record)
    assert record["status"] == "ok", told + again
    assert world.left() == [], told + again


def test_a_killed_supervisor_takes_everything_with_it(world: World) -> None:
    run_id = world.cell(2, step_s=0.01, measured=10_000_000, do={"0": [1, "child"]})
    process = world.in_training(run_id)
    world.wait_for(lambda: world.pids("sleep"))
    process.kill()
    process.communicate(timeout=30)
    world.wait_for(lambda: not world.processes())


def test_a_killed_node_program_ends_the_run_and_is_named(world: World) -> None:
    run_id = world.cell(2, step_s=0.01, measured=10000, do={"3": [1, "child"]}, each=2)
    process = world.in_training(run_id)
    os.kill(world.node_program(1), signal.SIGKILL)
    world.end_of(process, 24)
    record = world.record(run_id, 1)
    assert record["status"] == "node_lost"
    assert "the node program of local-1" in record["status_reason"]
    assert world.processes() == []
    world.cells[0]["steps"]["measured"] = 5
    world.write()
    assert world.run(run_id)[0] == 0
    assert world.left() == []


def test_a_frozen_node_program_is_lost_by_its_silence(world: World) -> None:
    world.shorter["node_silence_s"] = 6.0  # a node program may be silent for seconds where the machine is loaded
    run_id = world.cell(step_s=0.01, measured=10000)
    process = world.in_training(run_id)
    os.kill(world.node_program(0), signal.SIGSTOP)
    world.end_of(process, 24)
    assert "nothing heard from it" in world.record(run_id, 1)["status_reason"]
    assert world.processes() == []


def test_processes_that_a_double_kill_left_are_ended_by_the_next_start(world: World) -> None:
    run_id = world.cell(step_s=0.01, measured=10000, do={"0": [1, "child"]})
    process = world.in_training(run_id)
    world.wait_for(lambda: world.pids("sleep"))
    node = world.node_program(0)
    process.send_signal(signal.SIGSTOP)  # so that neither cleans up after the other
    os.kill(node, signal.SIGKILL)
    process.kill()
    process.communicate(timeout=30)
    left = world.processes()
    assert left, "the grandchild is nobody's"
    world.cells[0]["steps"]["measured"] = 5
    world.cells[0]["optimizer"]["fake"] = {}
    world.write()
    assert world.run(run_id)[0] == 0
    assert world.left() == []
