"""The way down, where the engine that made a container is slow to take it away."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec import structs

from base.errors import ContainerError
from containers.engines import Process
from containers.spec import ContainerPlan, ContainerSpec, EnginePlan, ProcessPlan
from tests.containers.specs import spec
from tests.workflow.run.link.test_messages import PLAN
from workflow.run.link import reports
from workflow.run.link.event_loop import Loop
from workflow.run.node.node_work import NodeWork
from workflow.run.node.preparation import Preparation
from workflow.run.node.ranks import Ranks, Shutdown, Watched

pytestmark = pytest.mark.processes


class SlowEngine:
    """Takes the container away when something is written into the pipe `told`: a word is what it complains about."""

    NAME = "slow"

    def __init__(self, told: int) -> None:
        self.told = told
        self.closed = False

    def plan(self, spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
        control = ContainerPlan(run=(), find=("there is one",), remove=(), files=())
        return EnginePlan(engine=self.NAME, spec=spec, processes=(), container=control)

    def start(self, plan: EnginePlan, index: int) -> Process:
        raise NotImplementedError

    def close(self, plan: EnginePlan) -> None:
        self.closed = True

    def remove(self, plan: EnginePlan) -> None:
        words = os.read(self.told, 100).decode()
        if words != "gone":
            raise ContainerError(words)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    descriptors = os.pipe()
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize(("words", "clean"), [("gone", True), ("is still there", False)])
def test_the_node_lives_on_while_the_engine_is_slow(tmp_path: Path, pipe: tuple[int, int], words: str, clean: bool) -> None:
    loop = Loop()
    engine = SlowEngine(pipe[0])
    ranks = Ranks(loop, engine, engine.plan(spec(tmp_path), {}), lambda end: None, lambda error: None)
    said: list[object] = []
    shutdown = Shutdown(loop, ranks, said.append)
    shutdown.also(lambda _clean: said.append("told too"))

    def alive() -> None:
        """A turn of the loop, in which the removal has not ended: beats go on."""
        said.append("alive")
        shutdown.rank_ended()  # does not begin it anew
        os.write(pipe[1], words.encode())

    assert engine.closed
    assert not shutdown.finished
    loop.after(0.0, alive)
    assert loop.until(lambda: shutdown.finished, 60)
    assert said == ["alive", clean, "told too"]


class EndedProcess:
    """A process of rank 0 that has ended, of which the loop has not heard yet. Its container has run out of memory."""

    plan = ProcessPlan(name="rank-0", ranks=(0,), argv=("true",), env=(), cwd="/")
    pid = 0
    oom_kill = True
    gpus_seen = None

    def __init__(self, exit_fd: int) -> None:
        self.exit_fd = exit_fd
        self.output_fd = os.open(os.devnull, os.O_RDONLY)

    def exit_code(self) -> int:
        return 0

    def signal(self, number: int) -> None:
        """Nobody is there to get it."""

    def close(self) -> None:
        os.close(self.output_fd)


def test_a_tick_that_finds_the_last_rank_ended_finishes_the_shutdown(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """On a busy machine the tick may come before the loop hears of the exit: nothing of the node is lost by that."""
    loop, told = Loop(), list[reports.Report]()
    engine = SlowEngine(pipe[0])
    work = NodeWork(loop, 0, b"", told.append, lambda: "")
    work.preparation = Preparation(loop, 0, structs.replace(PLAN, cache=str(tmp_path)), b"", told.append, work.fail)
    work.preparation.directory.path.mkdir(parents=True)
    work.preparation.directory.beat.touch()
    plan = EnginePlan(engine=engine.NAME, spec=spec(tmp_path), processes=(EndedProcess.plan,), container=None)
    work.ranks = Ranks(loop, engine, plan, work._rank_ended, work._container_failed)
    work.ranks.watched = [Watched(EndedProcess(pipe[0]), tmp_path, tmp_path, "here")]
    work.do_stop()
    assert told == [], "the rank is waited for"
    work._tick()
    assert [type(report) for report in told] == [reports.Exited, reports.Stopped]
    assert isinstance(told[0], reports.Exited)
    assert told[0].end.oom_kill
    assert told[1] == reports.Stopped(clean=True)
    assert work.ranks is None
