"""The stage step as the supervisor sees it: node programs come up, get their orders, and bring the dataset to their nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, assert_never

from msgspec.structs import replace

from base.errors import StagingError
from base.units import format_duration, format_size
from cluster.types import Node
from workflow.run.link import orders
from workflow.run.link.said import (
    DatasetIsHere,
    Failed,
    ImageRead,
    ImageWanted,
    Listening,
    Loading,
    Message,
    OfStaging,
    Progress,
    Ready,
    Reserved,
    Staged,
    Waiting,
)
from workflow.run.record.outcome import Ending
from workflow.run.supervisor.archive_readers import ArchiveReaders
from workflow.run.supervisor.nodes import NodeHandle, Nodes
from workflow.run.supervisor.run_scope import RunScope

logger = logging.getLogger(__name__)

CONNECT_S: Final = 60.0
STALL_S: Final = 300.0
"""How long no node may get on. Where the site limits the rate of storage, the time that its largest chunk takes comes on top."""

LARGEST_CHUNK: Final = 64 << 20
"""data_prep.staging.copy.MAX_CHUNK_BYTES: a chunk shows as progress when all of it has come."""

MEET_S: Final = 20.0
"""How long nodes wait for each other before those that are there begin."""

SHOW_EVERY_S: Final = 5.0


class Staging:
    """Ends the run where a node does not come up or nothing moves."""

    def __init__(self, scope: RunScope, nodes: Nodes) -> None:
        self._scope, self._nodes = scope, nodes
        self._begun = self._heard = self._shown = time.monotonic()
        self._readers: int | None = None
        self._met: list[Listening | None] | None = None
        """What each node said of where it listens; None before they were told of each other."""
        self._has_waited = False
        self._appointed: tuple[int, ...] = ()
        self._done: dict[int, int] = {}
        """Per node, the bytes that it had last."""
        self._turns: ArchiveReaders | None = None

    def wait_for_nodes(self) -> None:
        """Until every node program has come up."""
        while not self._scope.wait(lambda: self._everybody(Ready), max(0.0, self._nodes.launched + CONNECT_S - time.monotonic())):
            if time.monotonic() < self._nodes.launched + CONNECT_S:
                continue
            missing = ", ".join(node.node.name for node in self._nodes.all if not node.has_said(Ready))
            self._scope.fail(Ending(status="node_lost", reason=f"no node program came up on {missing} within {CONNECT_S:.0f} s"))

    def run(self, plan: orders.Plan, cache_of: Callable[[Node], str], readers: int | None) -> None:
        """Until every node has the dataset, and the head a port for the rendezvous. At most `readers` nodes read storage; None: all may.
        `cache_of`: each node's own, in the place of the plan's."""
        self._readers = readers
        self._turns = ArchiveReaders(self._nodes.all, self._nodes.send, readers, plan.bytes_per_s)
        for node in self._nodes.all:
            self._nodes.send(node, replace(plan, cache=cache_of(node.node)))
            self._nodes.send(node, orders.Stage())
        head = self._nodes.all[0]
        self._nodes.send(head, orders.Reserve())
        self._begun = self._heard = time.monotonic()
        limit_s = stall_s(plan.bytes_per_s, len(self._nodes.all), readers)
        if len(self._nodes.all) > 1:
            self._scope.wait(lambda: self._everybody(Listening, Waiting, Failed), MEET_S)
            self._has_waited = True
            if any(node.has_said(Listening) for node in self._nodes.present()):
                self._introduce()
        while not self._scope.wait(lambda: self._everybody(Staged, Failed) and (head.lost or head.has_said(Reserved)), 1.0):
            if time.monotonic() - self._heard > limit_s:
                self._scope.fail(Ending(status="storage", reason=f"staging made no progress for {limit_s:.0f} s", error=StagingError))
            self._turns.give()
        self._nodes.tell(orders.AllStaged())

    def _introduce(self) -> None:
        """Tell those that listen of each other, and who reads from storage."""
        self._met = [None if node.lost else node.last(Listening) for node in self._nodes.all]
        self._appointed = pick_readers([None if said is None else said.have == "all" for said in self._met], self._readers)
        for node, said in zip(self._nodes.all, self._met, strict=True):
            if said is not None:
                self._tell_of_others(node, late=False)

    def heard(self, node: NodeHandle, message: OfStaging) -> None:
        """What a node says while it is prepared."""
        match message:
            case Listening():
                self.listens(node, message)
            case Progress():
                self.progress(node, message)
            case Loading() | DatasetIsHere() | ImageWanted() | ImageRead():
                self.loads(node)
            case _:
                assert_never(message)

    def listens(self, node: NodeHandle, message: Listening) -> None:
        """A node has come: to the others, if these had been told already. Without anybody there is nobody to appoint as a reader: the first
        that comes then is the one, and the others get it from there."""
        self._heard = time.monotonic()
        if self._met is None:
            if self._has_waited:
                self._introduce()
        elif self._met[node.index] is None:
            self._met[node.index] = message
            self._tell_of_others(node, late=True)

    def _tell_of_others(self, node: NodeHandle, late: bool) -> None:
        assert self._met is not None
        peers = tuple(None if said is None else (said.address, said.port, said.have) for said in self._met)
        others = orders.Others(peers=peers, readers=self._appointed, most_readers=self._readers, late=late)
        self._nodes.send(node, orders.MeetPeers(others=others))

    def _everybody(self, *kinds: type[Message]) -> bool:
        """Whether each of the nodes that are there has said one of these."""
        return all(node.lost or node.has_said(*kinds) for node in self._nodes.all)

    def loads(self, node: NodeHandle) -> None:
        """A node brings the image in, or waits until it may read storage. A line for people now and then."""
        now = time.monotonic()
        if self._turns is not None:
            self._turns.give()
        if self._turns is None or not self._turns.waits(node):
            self._heard = now
        if now - self._shown < SHOW_EVERY_S:
            return
        self._shown = now
        nodes = [node for node in self._nodes.all if not node.lost and not node.has_said(Staged)]
        loading = [(node.node.name, said.seconds) for node in nodes if (said := node.last(Loading)) is not None]
        if not loading:
            return
        seconds = max(seconds for _, seconds in loading)
        names = ", ".join(name for name, _ in loading[:8]) + (" ..." if len(loading) > 8 else "")
        logger.info("image: comes to %s, for %s so far", names, format_duration(seconds))

    def progress(self, node: NodeHandle, message: Progress) -> None:
        """A node has told how far it is, which it does also while it does not get on. A line for people now and then, with rate and time
        left."""
        now = time.monotonic()
        if message.done != self._done.get(node.index):
            self._done[node.index] = message.done
            self._heard = now
        if now - self._shown < SHOW_EVERY_S:
            return
        self._shown = now
        told = [said for node in self._nodes.all if (said := node.last(Progress)) is not None]
        done, total = sum(said.done for said in told), sum(said.total for said in told)
        rate = done / (now - self._begun)
        left = f", {format_duration((total - done) / rate)} left" if rate else ""
        logger.info("stage: %s of %s, %s/s%s", format_size(done), format_size(total), format_size(rate), left)


def pick_readers(complete: Sequence[bool | None], most: int | None) -> tuple[int, ...]:
    """Pure: the nodes that read from storage. `complete[i]`: whether node i has all chunks, None where it is not there. Those that have all
    read nothing; of the others at most `most`, the first."""
    lacking = tuple(index for index, whole in enumerate(complete) if whole is False)
    return lacking if most is None else lacking[: max(1, most)]


def stall_s(bytes_per_s: float | None, nodes: int, most_readers: int | None) -> float:
    """Pure: how long no node may get on. `bytes_per_s` is shared by the nodes that read storage, at most `most_readers` (None: all)."""
    readers = nodes if most_readers is None else max(1, min(nodes, most_readers))
    return STALL_S + (LARGEST_CHUNK * readers / bytes_per_s if bytes_per_s else 0.0)
