"""The way down, where the engine that made a container is slow to take it away."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from base.errors import ContainerError
from containers.engines import Process
from containers.spec import ContainerPlan, ContainerSpec, EnginePlan
from tests.containers.specs import spec
from workflow.run.link.event_loop import Loop
from workflow.run.node.ranks import Ranks, Shutdown

pytestmark = pytest.mark.processes


class SlowEngine:
    """Takes the container away when something is written into the pipe `told`: a word is what it complains about."""

    NAME = "slow"

    def __init__(self, told: int) -> None:
        self.told = told
        self.closed = False

    def plan(self, spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
        control = ContainerPlan(where="nobody", run=(), find=("there is one",), remove=(), files=())
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
