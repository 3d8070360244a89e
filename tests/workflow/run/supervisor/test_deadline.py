"""Why a run ends is noted anywhere, and heard where a step waits: in each wait, and only there."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from base.errors import NotEnoughSpace
from base.jsonfile import from_plain, plain
from tests.workflow.run.link.test_messages import PLAN
from tests.workflow.run.supervisor.made import ALLOCATION, RUN, running_attempt
from workflow.run.link.event_loop import Loop
from workflow.run.record.outcome import Ending
from workflow.run.storage.description import Work
from workflow.run.storage.results import PreparedRun
from workflow.run.supervisor.deadline import TimeLimit
from workflow.run.supervisor.node_locks import NodeLocks
from workflow.run.supervisor.preflight import Preflight
from workflow.run.supervisor.run_scope import RunEnded, RunScope
from workflow.run.supervisor.running_attempt import RunningAttempt
from workflow.study.cell import RunLimits

LOST, LATER = Ending(status="node_lost", reason="n1 is gone"), Ending(status="cancelled", reason="SIGTERM")


@pytest.fixture
def attempt() -> Iterator[RunningAttempt]:
    """Whose node programs never come up."""
    attempt = running_attempt()
    yield attempt
    attempt.nodes.close()


@pytest.fixture
def scope() -> RunScope:
    return RunScope(Loop())


def wait_for_a_lock(scope: RunScope, path: Path) -> None:
    path.touch()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        NodeLocks(scope, [path], 1).take()


WAITS: dict[str, Callable[[RunningAttempt, Path], object]] = {
    "anything": lambda attempt, _: attempt.scope.wait(lambda: False),
    "a call": lambda attempt, _: attempt.scope.call("storage", time.sleep, 1000),
    "a lock": lambda attempt, path: wait_for_a_lock(attempt.scope, path / "lock"),
    "node programs": lambda attempt, _: attempt.staging.wait_for_nodes(),
    "preflight": lambda attempt, _: Preflight(attempt.scope, attempt.nodes, ALLOCATION).run(),
    "staging": lambda attempt, _: attempt.staging.run(PLAN, None),
    "a checkpoint": lambda attempt, _: attempt.staging.bring_checkpoint(RUN, no_warning),
    "the end of the staging": lambda attempt, _: attempt.staging.end(),
}


def no_warning(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.processes
@pytest.mark.parametrize("what", WAITS)
def test_each_wait_ends_by_the_first_cause(attempt: RunningAttempt, tmp_path: Path, what: str) -> None:
    def two_causes() -> None:
        attempt.scope.end(LOST)
        attempt.scope.end(LATER)

    attempt.scope.loop.after(0.02, two_causes)
    with pytest.raises(RunEnded) as caught:
        WAITS[what](attempt, tmp_path)
    assert caught.value.ending == LOST
    attempt.scope.end(LATER)
    with pytest.raises(RunEnded) as caught:
        WAITS[what](attempt, tmp_path)
    assert caught.value.ending == LOST, "the step after it does not begin"


@pytest.mark.processes
def test_a_node_that_goes_with_its_job_while_a_checkpoint_comes_ends_nothing_before_the_scheduler_s_word(attempt: RunningAttempt) -> None:
    loop, attempt.is_ending = attempt.scope.loop, True

    def gone() -> None:
        for node in attempt.nodes.all:
            node.lost = True
        loop.after(0.02, lambda: attempt.scope.end(LATER))

    loop.after(0.02, gone)
    with pytest.raises(RunEnded) as caught:
        attempt.staging.bring_checkpoint(RUN, no_warning)
    assert caught.value.ending == LATER


def test_what_storage_was_prepared_with_travels_whole() -> None:
    assert from_plain(json.loads(json.dumps(plain(RUN))), PreparedRun) == RUN


@pytest.mark.processes
def test_the_steps_of_an_attempt_end_by_the_first_cause(attempt: RunningAttempt) -> None:
    attempt.scope.loop.after(0.02, lambda: attempt.scope.end(LOST))
    work = cast(Work, None)  # nobody comes up to do it
    assert attempt.run_steps(work) == LOST
    attempt.scope.end(LATER)
    assert attempt.scope.ending == LOST


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


@pytest.mark.processes
def test_without_an_end_a_wait_tells_whether_it_came_and_a_call_its_result(scope: RunScope) -> None:
    assert not scope.wait(lambda: False, 0.01)
    assert scope.wait(lambda: True)
    assert scope.call("sum", sum, [1, 2]) == 3
    with pytest.raises(NotEnoughSpace, match="3 bytes"):
        scope.call("space", no_space)


def no_space() -> None:
    raise NotEnoughSpace("there are 3 bytes")


@pytest.mark.processes
def test_the_child_of_a_call_that_an_end_interrupts_is_killed(scope: RunScope) -> None:
    reader, writer = os.pipe()
    scope.loop.watch(reader, lambda: scope.end(LOST))
    with pytest.raises(RunEnded):
        scope.call("storage", sleep_for_ever, writer)
    os.close(writer)
    scope.loop.unwatch(reader)
    assert os.read(reader, 10) == b"x"
    assert os.read(reader, 10) == b"", "the child holds its end of the pipe still"
    os.close(reader)


def sleep_for_ever(writer: int) -> None:
    os.write(writer, b"x")
    time.sleep(1000)


def test_a_run_ends_when_its_walltime_is_over(scope: RunScope) -> None:
    scope.loop.after(30.0, lambda: scope.end(LATER))
    TimeLimit(scope, msgspec.structs.replace(RUN, limits=RunLimits(walltime_s=0.1), resumable=())).begin()
    with pytest.raises(RunEnded) as caught:
        scope.wait(lambda: False)
    assert caught.value.ending.status == "timeout"
