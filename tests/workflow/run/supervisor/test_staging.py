"""The supervisor's side of the stage step, with a clock, a loop and nodes of the test's."""

from collections.abc import Callable
from typing import Any, NoReturn, cast

import pytest
from msgspec import structs

from cluster.types import Node
from data_prep.staging.copy import MAX_CHUNK_BYTES
from tests.workflow.run.link.test_messages import PLAN, STAGED
from workflow.run.link import commands, reports
from workflow.run.record.outcome import Ending
from workflow.run.supervisor.nodes import NodeHandle
from workflow.run.supervisor.staging import LARGEST_CHUNK, Staging, Transfer, stall_s
from workflow.run.supervisor.step_limits import PEERS_MEET_S, STAGING_STALL_S

FOREVER = 10 * STAGING_STALL_S
STEP_S = 1.0


class Ended(Exception):
    """What a step raises."""


class World:
    """`done(node, second)` is how many bytes a node says that it has, twice a second as it were; all have staged at `FOREVER`."""

    def __init__(self, done: Callable[[int, float], int]) -> None:
        self.now, self.done = 0.0, done
        self.listens_at: dict[int, float] = {}
        self.also: Callable[[], None] = lambda: None
        """What else happens in every step."""
        self.loads: list[tuple[int, float]] = []
        self.peers: list[tuple[int, tuple[int, ...], bool]] = []
        self.all = [NodeHandle(index, Node(name=f"n{index}", hostname=f"n{index}", address="127.0.0.1")) for index in range(3)]
        self.staging = Staging(cast(Any, self), cast(Any, self), lambda: self.now)

    def fail(self, ending: Ending) -> NoReturn:
        raise Ended(ending.reason)

    def send(self, node: NodeHandle, order: commands.Command) -> None:
        """Nobody is there to hear it."""
        if isinstance(order, commands.MeetPeers):
            self.peers.append((node.index, order.others.readers, order.others.late))
        elif isinstance(order, commands.LoadImage):
            self.loads.append((node.index, self.now))

    def present(self) -> list[NodeHandle]:
        return self.all

    def send_all(self, order: commands.Command) -> None:
        for node in self.all:
            self.send(node, order)

    def wait(self, done: Callable[[], bool], limit_s: float) -> bool:
        end = self.now + limit_s
        while not done() and self.now < end:
            self.now += STEP_S
            self.also()
            for node in self.all:
                if self.now >= FOREVER:
                    node.note(STAGED)
                if self.listens_at.get(node.index, FOREVER) <= self.now and not node.has_reported(reports.Listening):
                    self.say(node, reports.Listening(what="dataset", address="127.0.0.1", port=1, have=""))
                self.say(node, reports.Progress(what="dataset", done=self.done(node.index, self.now), total=1000))
        return done()

    def say(self, node: NodeHandle, message: reports.StagingReport) -> None:
        node.note(message)
        self.staging.heard(node, message)

    def run(self, bytes_per_s: float | None = None) -> None:
        self.staging.run(structs.replace(PLAN, bytes_per_s=bytes_per_s), None)


def test_nodes_that_say_the_same_forever_have_stopped() -> None:
    world = World(lambda index, _now: 100 * index)
    with pytest.raises(Ended, match="no progress for 300 s"):
        world.run()
    assert world.now < STAGING_STALL_S + 30


@pytest.mark.parametrize(
    "done",
    [
        lambda index, now: int(now / (STAGING_STALL_S - 50)) if index == 2 else 1000,
        lambda index, now: 1000 if index == 1 else int(now),
        lambda index, now: 1000 if index == 1 else 500 - int(now) % 200,
    ],
    ids=["all but one have all", "two share a stager", "somebody else's copy begins again"],
)
def test_as_long_as_one_gets_on_all_wait(done: Callable[[int, float], int]) -> None:
    world = World(done)
    world.run()
    assert world.now >= FOREVER


def test_a_rate_that_the_site_has_limited_is_no_standstill() -> None:
    rate = 3 * LARGEST_CHUNK / 700  # the first chunk of each of three nodes comes after 700 s
    World(lambda _index, now: int(now / 700)).run(rate)
    with pytest.raises(Ended, match="no progress for 1000 s"):
        World(lambda _index, _now: 0).run(rate)


def test_the_limit_is_for_those_that_read_at_once() -> None:
    assert LARGEST_CHUNK == MAX_CHUNK_BYTES
    assert stall_s(None, 1000, None) == STAGING_STALL_S
    assert stall_s(LARGEST_CHUNK, 1000, None) == STAGING_STALL_S + 1000
    assert stall_s(LARGEST_CHUNK, 1000, 8) == STAGING_STALL_S + 8
    assert stall_s(LARGEST_CHUNK, 2, 8) == STAGING_STALL_S + 2


@pytest.mark.parametrize(
    ("listens_at", "told"),
    [
        ({0: 1, 1: 2, 2: 3}, [(0, (0, 1, 2), False), (1, (0, 1, 2), False), (2, (0, 1, 2), False)]),
        ({0: 1, 1: 100, 2: 3}, [(0, (0, 2), False), (2, (0, 2), False), (1, (0, 2), True)]),
        ({0: 90, 1: 50, 2: 70}, [(1, (1,), False), (2, (1,), True), (0, (1,), True)]),
    ],
    ids=["all in time", "one late", "nobody in time"],
)
def test_somebody_is_always_appointed_to_read(listens_at: dict[int, float], told: list[tuple[int, tuple[int, ...], bool]]) -> None:
    """Where nobody came in time all of them were readers once, each at the whole rate that the site allows."""
    world = World(lambda _index, now: int(now))
    world.listens_at = listens_at
    world.run()
    assert world.peers == told


IMAGE_AT = 5.0
LISTENS = reports.Listening(what="image", address="127.0.0.1", port=2, have="")


class Nodes:
    """Three nodes of which the second gets the image as a file, and what they are told."""

    def __init__(self, **limits: Any) -> None:
        self.all = [NodeHandle(index, Node(name=f"n{index}", hostname=f"n{index}", address="127.0.0.1")) for index in range(3)]
        self.told: list[tuple[int, str, tuple[int, ...], bool]] = []
        self.transfer = Transfer("image", cast(Any, self), limits.get("readers"))

    def send(self, node: NodeHandle, order: commands.MeetPeers) -> None:
        self.told.append((node.index, order.what, order.others.readers, order.others.late))

    def introduce(self, now: float, *have_it: int) -> list[int]:
        self.transfer.introduce(now, lambda node: node.index in have_it)
        return [index for index, _, _, _ in self.told]


def test_nodes_that_have_the_image_or_wait_for_anothers_load_are_not_waited_for() -> None:
    nodes = Nodes()
    assert nodes.introduce(0.0) == []
    nodes.transfer.answers(nodes.all[1], LISTENS, IMAGE_AT)
    assert nodes.introduce(IMAGE_AT, 0) == [], "nobody knows yet of the third"
    nodes.transfer.answers(nodes.all[2], None, IMAGE_AT)
    assert nodes.introduce(IMAGE_AT, 0) == [1]
    assert nodes.told == [(1, "image", (1,), False)]
    nodes.transfer.answers(nodes.all[2], LISTENS, 2 * IMAGE_AT)
    assert nodes.told[1:] == [(2, "image", (1,), True)], "whose load it waited for has failed"


def test_who_says_nothing_is_waited_for_a_while_and_who_is_lost_is_not() -> None:
    nodes = Nodes(readers=1)
    for index in (0, 1):
        nodes.transfer.answers(nodes.all[index], LISTENS, IMAGE_AT)
    assert nodes.introduce(IMAGE_AT + PEERS_MEET_S) == []
    assert nodes.introduce(IMAGE_AT + PEERS_MEET_S + 1) == [0, 1]
    assert {readers for _, _, readers, _ in nodes.told} == {(0,)}
    others = Nodes()
    others.transfer.answers(others.all[0], LISTENS, IMAGE_AT)
    others.all[1].lost = others.all[2].lost = True
    assert others.introduce(IMAGE_AT) == [0]


@pytest.mark.parametrize("limits", [{"bytes_per_s": 1e6}, {"readers": 2}, {}])
def test_where_storage_is_limited_the_image_is_loaded_when_all_have_the_dataset(limits: dict[str, Any]) -> None:
    world = World(lambda _index, now: int(now))

    def also() -> None:
        for index, at in ((0, 10), (1, 100), (2, 200)):
            if world.now >= at and not world.all[index].has_reported(reports.DatasetIsHere):
                world.say(world.all[index], reports.DatasetIsHere())

    world.also = also
    world.staging.run(structs.replace(PLAN, bytes_per_s=limits.get("bytes_per_s")), limits.get("readers"))
    assert world.loads == [(index, 200.0 if limits else at) for index, at in enumerate([10.0, 100.0, 200.0])]


def test_what_a_node_says_before_anything_was_ordered_ends_nothing() -> None:
    world = World(lambda _index, now: int(now))
    for early in (reports.Waiting(what="image"), reports.Progress(what="dataset", done=1, total=2)):
        world.say(world.all[0], early)
    world.run()


def test_a_load_that_goes_on_for_long_is_progress() -> None:
    """An engine may unpack a large image for longer than a copy may stand still."""
    world = World(lambda _index, _now: 1000)
    world.also = lambda: None if world.loads else world.say(world.all[0], reports.DatasetIsHere())
    world.run()
    assert world.now >= FOREVER


def test_a_load_that_waits_for_a_copy_which_stands_still_is_no_progress() -> None:
    """Nodes that share an engine: one stages the archive, and the others wait for its load."""
    world = World(lambda _index, _now: 1000)

    def also() -> None:
        world.say(world.all[0], reports.Progress(what="image", done=5, total=9))
        if not world.loads:
            world.say(world.all[1], reports.DatasetIsHere())

    world.also = also
    with pytest.raises(Ended, match="no progress for 300 s"):
        world.run()
