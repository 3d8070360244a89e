"""The supervisor's side of the stage step, with a clock, a loop and nodes of the test's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from msgspec import structs

from cluster.types import Node
from data_prep.staging.copy import MAX_CHUNK_BYTES
from tests.run.link.test_messages import PLAN, STAGED
from workflow.run.link import orders, said
from workflow.run.record.outcome import Ending
from workflow.run.supervisor.nodes import NodeHandle
from workflow.run.supervisor.staging import LARGEST_CHUNK, STALL_S, Staging, stall_s

FOREVER = 10 * STALL_S
STEP_S = 1.0


class Ended(Exception):
    """What a step raises."""


class World:
    """`done(node, second)` is how many bytes a node says that it has, twice a second as it were; all have staged at `FOREVER`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, done: Callable[[int, float], int]) -> None:
        self.now, self.done = 0.0, done
        self.listens_at: dict[int, float] = {}
        self.peers: list[tuple[int, tuple[int, ...], bool]] = []
        monkeypatch.setattr("workflow.run.supervisor.staging.time", SimpleNamespace(monotonic=lambda: self.now))
        self.all = [NodeHandle(index, Node(name=f"n{index}", hostname=f"n{index}", address="127.0.0.1")) for index in range(3)]
        self.all[0].note(said.Reserved(address="127.0.0.1", port=1))
        self.staging = Staging(cast(Any, self), cast(Any, self))

    def fail(self, ending: Ending) -> NoReturn:
        raise Ended(ending.reason)

    def send(self, node: NodeHandle, order: orders.Order) -> None:
        """Nobody is there to hear it."""
        if isinstance(order, orders.MeetPeers):
            self.peers.append((node.index, order.others.readers, order.others.late))

    def present(self) -> list[NodeHandle]:
        return self.all

    def tell(self, order: orders.Order) -> None:
        """Nor this."""

    def wait(self, done: Callable[[], bool], limit_s: float) -> bool:
        end = self.now + limit_s
        while not done() and self.now < end:
            self.now += STEP_S
            for node in self.all:
                if self.now >= FOREVER:
                    node.note(STAGED)
                if self.listens_at.get(node.index, FOREVER) <= self.now and not node.has_said(said.Listening):
                    self.say(node, said.Listening(address="127.0.0.1", port=1, have=""))
                self.say(node, said.Progress(done=self.done(node.index, self.now), total=1000))
        return done()

    def say(self, node: NodeHandle, message: said.OfStaging) -> None:
        node.note(message)
        self.staging.heard(node, message)

    def run(self, bytes_per_s: float | None = None) -> None:
        self.staging.run(structs.replace(PLAN, bytes_per_s=bytes_per_s), lambda _node: "/cache", None)


def test_nodes_that_say_the_same_forever_have_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, lambda index, _now: 100 * index)
    with pytest.raises(Ended, match="no progress for 300 s"):
        world.run()
    assert world.now < STALL_S + 30


@pytest.mark.parametrize(
    "done",
    [
        lambda index, now: int(now / (STALL_S - 50)) if index == 2 else 1000,
        lambda index, now: 1000 if index == 1 else int(now),
        lambda index, now: 1000 if index == 1 else 500 - int(now) % 200,
    ],
    ids=["all but one have all", "two share a stager", "somebody else's copy begins again"],
)
def test_as_long_as_one_gets_on_all_wait(monkeypatch: pytest.MonkeyPatch, done: Callable[[int, float], int]) -> None:
    world = World(monkeypatch, done)
    world.run()
    assert world.now >= FOREVER


def test_a_rate_that_the_site_has_limited_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = 3 * LARGEST_CHUNK / 700  # the first chunk of each of three nodes comes after 700 s
    World(monkeypatch, lambda _index, now: int(now / 700)).run(rate)
    with pytest.raises(Ended, match="no progress for 1000 s"):
        World(monkeypatch, lambda _index, _now: 0).run(rate)


def test_the_limit_is_for_those_that_read_at_once() -> None:
    assert LARGEST_CHUNK == MAX_CHUNK_BYTES
    assert stall_s(None, 1000, None) == STALL_S
    assert stall_s(LARGEST_CHUNK, 1000, None) == STALL_S + 1000
    assert stall_s(LARGEST_CHUNK, 1000, 8) == STALL_S + 8
    assert stall_s(LARGEST_CHUNK, 2, 8) == STALL_S + 2


@pytest.mark.parametrize(
    ("listens_at", "told"),
    [
        ({0: 1, 1: 2, 2: 3}, [(0, (0, 1, 2), False), (1, (0, 1, 2), False), (2, (0, 1, 2), False)]),
        ({0: 1, 1: 100, 2: 3}, [(0, (0, 2), False), (2, (0, 2), False), (1, (0, 2), True)]),
        ({0: 90, 1: 50, 2: 70}, [(1, (1,), False), (2, (1,), True), (0, (1,), True)]),
    ],
    ids=["all in time", "one late", "nobody in time"],
)
def test_somebody_is_always_appointed_to_read(
    monkeypatch: pytest.MonkeyPatch, listens_at: dict[int, float], told: list[tuple[int, tuple[int, ...], bool]]
) -> None:
    """Where nobody came in time all of them were readers once, each at the whole rate that the site allows."""
    world = World(monkeypatch, lambda _index, now: int(now))
    world.listens_at = listens_at
    world.run()
    assert world.peers == told
