"""Sidecars: processes around the ranks of a program, on two nodes of this machine."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.run.test_programs import program
from tests.workflow.run.test_runs import checked, ended
from tests.workflow.run.world import PATIENCE_S, World

pytestmark = pytest.mark.slow

SERVE = """
import os, signal, socket, sys
if sys.argv[1] == "wait":
    print("I wait", flush=True)
    signal.pause()
server = socket.create_server((sys.argv[2], int(sys.argv[3])))
ranks = [server.accept()[0] for _ in range(2)]
print("all are here", flush=True)
if sys.argv[1] != "answer":
    sys.exit(int(sys.argv[1]))
for rank in ranks:
    rank.sendall(b".")
signal.pause()
"""
TRAIN = """
import signal, socket, sys, time
import slipway_events
for _ in range(1000):
    try:
        link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
if not link.recv(1) and sys.argv[3] == "needs":
    signal.pause()
run = slipway_events.start(framework="mine", parameters=3)
for batch in run.steps([[1, 2]], samples=len):
    run.loss(1.0)
"""


def run_of(world: World, does: str, **keys: Any) -> str:
    """A run whose two ranks want something of a sidecar on the head, which `does` this; another one is on each node."""
    asked = "may" if keys.get("ends") == "with-ranks" else "needs"
    serve = {"name": "server", "where": "head", "command": ["{python}", "{folder}/serve.py", does, "{head}", "{port.echo}"]}
    wait = {"name": "waiter", "where": "each", "command": ["{python}", "{folder}/serve.py", "wait"], "env": {}, "ends": "stopped"}
    sidecars = [{"env": {}, "ends": "stopped", **serve, **keys}, wait]
    run_id = program(world, TRAIN, nodes=2, command=["{python}", "{folder}/train.py", "{head}", "{port.echo}", asked], sidecars=sidecars)
    (world.path / "train" / "serve.py").write_text(SERVE)
    return run_id


def test_they_serve_the_ranks_and_are_stopped_after_them(world: World) -> None:
    run_id = run_of(world, "answer")
    record = ended(world, run_id)
    assert (record["status"], record["status_reason"]) == ("ok", None)
    logs = world.run_dir(run_id) / "attempts" / "1" / "logs"
    assert (logs / "sidecar-server-0.log").read_text() == "all are here\n"
    assert [(logs / f"sidecar-waiter-{index}.log").read_text() for index in (0, 1)] == ["I wait\n", "I wait\n"]


def test_one_that_ends_with_the_ranks_may_be_first(world: World) -> None:
    assert ended(world, run_of(world, "0", ends="with-ranks"))["status"] == "ok"


def test_one_that_ends_while_ranks_run_is_the_run_s_failure(world: World) -> None:
    run_id = run_of(world, "0")
    log = world.ends(run_id)
    assert "last lines of sidecar server on local-0:\nall are here\n" in log[: log.index(" ERROR error: ")], "the reason is said last"
    assert world.left() == []
    record = checked(world, run_id)
    assert record["status"] == "error"
    assert record["status_reason"].startswith("sidecar server on local-0 ended with exit code 0 while ranks were running")
    failed = record["failed_rank"]
    assert (failed["rank"], failed["sidecar"], failed["exit_code"], failed["last_lines"]) == (None, "server", 0, "all are here")


def test_one_that_is_killed_on_another_node_is_named(world: World) -> None:
    run_id = run_of(world, "answer", command=["sleep", "1000"])
    process = world.start(run_id)
    world.wait_for(lambda: len(world.pids("serve.py")) == 2 and len(world.pids("train.py")) >= 2, PATIENCE_S)
    (on_second,) = [pid for pid in world.pids("serve.py") if b"SLIPWAY_NODE_RANK=1" in Path(f"/proc/{pid}/environ").read_bytes()]
    os.kill(on_second, signal.SIGKILL)
    log = world.end_of(process, 23)
    assert "sidecar waiter on local-1 was killed from outside by SIGKILL" in log
    assert world.left() == []
