"""Launcher `single` on two nodes: one process on the head, which the sidecars of all nodes work for."""

from typing import Any

import pytest

from tests.workflow.run.test_programs import program
from tests.workflow.run.test_runs import ended
from tests.workflow.run.world import World

pytestmark = pytest.mark.slow

WORK = """
import os, signal, socket, sys, time
for _ in range(1000):
    try:
        link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
while link.recv(1):
    link.sendall(os.environ["SLIPWAY_NODE_RANK"].encode())
signal.pause()
"""
DRIVE = """
import os, socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
links = [server.accept()[0] for _ in range(2)]
def work():
    for link in links:
        link.sendall(b".")
    return sorted(link.recv(1) for link in links)
assert work() == [b"0", b"1"], "a worker on each node"
"""
HELPED = """
import slipway_events
run = slipway_events.start(framework="mine", parameters=3)
assert run.world_size == 2
for batch in run.steps(range(3)):
    work()
    run.loss(1.0)
"""
PRINTED = """
import fcntl, termios, time
for step in range(8):
    work()
    print("step %d loss 1.5" % step, flush=True)
    while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))):
        time.sleep(0.001)
"""
"""Each line waits until the one before was read: lines that are read at once are one event, the mean of their steps."""
LINES = {"log": {"step": r"step (?P<step>\d+) loss (?P<loss>\S+)", "every": 1, "ranks": "first"}}


def driven(world: World, text: str, **keys: Any) -> dict[str, Any]:
    words = ["{head}", "{port.work}"]
    worker = {"name": "worker", "where": "each", "command": ["{python}", "{folder}/work.py", *words], "env": {}, "ends": "stopped"}
    command = ["{python}", "{folder}/train.py", *words]
    run_id = program(world, DRIVE + text, nodes=2, launcher="single", command=command, sidecars=[worker], **keys)
    (world.path / "train" / "work.py").write_text(WORK)
    record = ended(world, run_id)
    assert (record["status"], record["status_reason"]) == ("ok", None)
    logs = world.run_dir(run_id) / "attempts" / "1" / "logs"
    assert sorted(path.name for path in logs.glob("[rs]*.log")) == ["rank-0.log", "sidecar-worker-0.log", "sidecar-worker-1.log"]
    return record


def test_one_process_stands_for_all(world: World) -> None:
    """Two nodes with a batch of 2 each: it tells of four samples in a step, without being told to."""
    record = driven(world, HELPED)
    found = record["performance"]
    assert (record["world_size"], found["num_measured_steps"], found["samples"]) == (2, 6, 6 * 4)
    assert found["samples_per_s_per_gpu"] == pytest.approx(found["samples_per_s"] / 2)
    assert record["training"]["first_losses"] == [[step, 1.0] for step in range(5)]
    assert not [line for line in record["warnings"] if "samples" in line or "rank" in line]


def test_its_output_tells_of_all_too(world: World) -> None:
    record = driven(world, PRINTED, events=LINES)
    assert (record["steps_source"], record["performance"]["samples"]) == ("log", 6 * 4)
    assert record["training"]["final_loss"] == 1.5
