"""Why a run ends is noted anywhere, and heard where a step waits: in each wait, and only there."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from base.errors import NotEnoughSpace
from cluster.types import Allocation, Node
from tests.run.link.test_messages import PLAN
from workflow.run.link.event_loop import Loop
from workflow.run.record.continuation import EarlierAttempt
from workflow.run.record.outcome import Ending
from workflow.run.supervisor.job import Job
from workflow.run.supervisor.node_locks import NodeLocks
from workflow.run.supervisor.nodes import Nodes
from workflow.run.supervisor.preflight import Preflight
from workflow.run.supervisor.resuming import bring_checkpoint
from workflow.run.supervisor.run_scope import RunEnded, RunScope
from workflow.run.supervisor.staging import Staging

LOST, LATER = Ending(status="node_lost", reason="n1 is gone"), Ending(status="cancelled", reason="SIGTERM")
NODES = tuple(Node(name=f"n{index}", hostname="here", address=f"127.0.0.{index + 1}") for index in range(2))
ALLOCATION = Allocation(scheduler="local", job_id="1", nodes=NODES, device="cpu", exclusive=True)


@pytest.fixture
def scope() -> RunScope:
    return RunScope(Loop())


@pytest.fixture
def nodes(scope: RunScope) -> Iterator[Nodes]:
    """Of which none ever comes."""
    nodes = Nodes(scope.loop, ALLOCATION, "127.0.0.1", lambda _node, _message: None, lambda _node, _why: None)
    yield nodes
    nodes.close()


def wait_for_a_lock(scope: RunScope, path: Path) -> None:
    path.touch()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        NodeLocks(scope, [path], 1).take()


def bring(scope: RunScope, nodes: Nodes) -> None:
    earlier = EarlierAttempt(attempt=1, step=5, bytes=10, blake3="0" * 64, used_s=1.0, performance=None, training=None)
    run = SimpleNamespace(scope=scope, nodes=nodes, resumable=(earlier,), run={"run_dir": "/nowhere"}, warnings=[])
    bring_checkpoint(cast(Any, run))


def ask_the_scheduler(scope: RunScope) -> None:
    job = Job(cast(Any, SimpleNamespace(scope=scope)))
    cast(Any, job)._why = object()
    job.wait_if_ending()


WAITS: dict[str, Callable[[RunScope, Nodes, Path], object]] = {
    "anything": lambda scope, _nodes, _path: scope.wait(lambda: False),
    "a call": lambda scope, _nodes, _path: scope.call("storage", time.sleep, 1000),
    "a lock": lambda scope, _nodes, path: wait_for_a_lock(scope, path / "lock"),
    "node programs": lambda scope, nodes, _path: Staging(scope, nodes).wait_for_nodes(),
    "preflight": lambda scope, nodes, _path: Preflight(scope, nodes, ALLOCATION).run(),
    "staging": lambda scope, nodes, _path: Staging(scope, nodes).run(PLAN, lambda _node: "/cache", None),
    "a checkpoint": lambda scope, nodes, _path: bring(scope, nodes),
    "the scheduler's word": lambda scope, _nodes, _path: ask_the_scheduler(scope),
}


@pytest.mark.parametrize("what", WAITS)
def test_each_wait_ends_by_the_first_cause(scope: RunScope, nodes: Nodes, tmp_path: Path, what: str) -> None:
    def two_causes() -> None:
        scope.end(LOST)
        scope.end(LATER)

    scope.loop.after(0.02, two_causes)
    with pytest.raises(RunEnded) as caught:
        WAITS[what](scope, nodes, tmp_path)
    assert caught.value.ending == LOST
    scope.end(LATER)
    with pytest.raises(RunEnded) as caught:
        WAITS[what](scope, nodes, tmp_path)
    assert caught.value.ending == LOST, "the step after it does not begin"


def test_an_end_comes_before_what_was_waited_for(scope: RunScope) -> None:
    arrived: list[int] = []

    def both() -> None:
        arrived.append(1)
        scope.end(LOST)

    scope.loop.after(0.0, both)
    with pytest.raises(RunEnded):
        scope.wait(lambda: bool(arrived))


def test_after_the_end_the_loop_itself_waits_on(scope: RunScope) -> None:
    """As `finish` does: a late cause interrupts nothing."""
    arrived: list[int] = []
    scope.end(LOST)
    scope.loop.after(0.0, lambda: scope.end(LATER))
    scope.loop.after(0.01, lambda: arrived.append(1))
    assert scope.loop.until(lambda: bool(arrived), 20)
    assert scope.ending == LOST


def test_a_step_that_finds_the_cause_itself_ends_there(scope: RunScope) -> None:
    with pytest.raises(RunEnded) as caught:
        scope.fail(LOST)
    assert (caught.value.ending, scope.ending) == (LOST, LOST)


def test_without_an_end_a_wait_tells_whether_it_came_and_a_call_its_result(scope: RunScope) -> None:
    assert not scope.wait(lambda: False, 0.01)
    assert scope.wait(lambda: True)
    assert scope.call("sum", sum, [1, 2]) == 3
    with pytest.raises(NotEnoughSpace, match="3 bytes"):
        scope.call("space", no_space)


def no_space() -> None:
    raise NotEnoughSpace("there are 3 bytes")


def test_the_child_of_a_call_that_an_end_interrupts_is_killed(scope: RunScope) -> None:
    reader, writer = os.pipe()
    scope.loop.watch(reader, lambda: scope.end(LOST))
    with pytest.raises(RunEnded):
        scope.call("storage", sleep_for_ever, writer, keep=(reader, writer))
    os.close(writer)
    scope.loop.unwatch(reader)
    assert os.read(reader, 10) == b"x"
    assert os.read(reader, 10) == b"", "the child holds its end of the pipe still"
    os.close(reader)


def sleep_for_ever(writer: int) -> None:
    os.write(writer, b"x")
    time.sleep(1000)
