"""The stage step as the supervisor sees it: node programs come up, get their orders, and bring dataset and image to their nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, assert_never, get_args

from msgspec.structs import replace

from base.errors import StagingError
from base.units import format_duration, format_size
from cluster.types import Node
from workflow.run.link import orders
from workflow.run.link.fields import What
from workflow.run.link.limits import NODE_CONNECT_S
from workflow.run.link.said import (
    DatasetIsHere,
    Failed,
    Fetched,
    Listening,
    LoadedImage,
    Loading,
    LookedAt,
    Message,
    OfStaging,
    Progress,
    Ready,
    Reserved,
    Staged,
    StagingEnded,
    Waiting,
)
from workflow.run.record.outcome import Ending
from workflow.run.supervisor.limits import CHECKPOINT_ANSWER_S, SHOW_EVERY_S, STAGING_STALL_S
from workflow.run.supervisor.nodes import NodeHandle, Nodes
from workflow.run.supervisor.run_scope import RunScope
from workflow.run.supervisor.transfer import Transfer

logger = logging.getLogger(__name__)


LARGEST_CHUNK: Final = 64 << 20
"""data_prep.staging.copy.MAX_CHUNK_BYTES: a chunk shows as progress when all of it has come."""


class Staging:
    """Ends the run where a node does not come up or nothing moves."""

    def __init__(self, scope: RunScope, nodes: Nodes, clock: Callable[[], float] = time.monotonic) -> None:
        self._scope, self._nodes, self._clock = scope, nodes, clock
        self._heard = self._shown = self._clock()
        self._transfers: dict[What, Transfer] = {}
        self._readers: int | None = None
        self._is_limited = False

    def wait_for_nodes(self) -> None:
        """Until every node program has come up."""
        while not self._scope.wait(lambda: self._everybody(Ready), max(0.0, self._nodes.launched + NODE_CONNECT_S - self._clock())):
            if self._clock() < self._nodes.launched + NODE_CONNECT_S:
                continue
            late = tuple(node.node.name for node in self._nodes.all if not node.has_said(Ready))
            missing = ", ".join(late)
            self._scope.fail(
                Ending(status="node_lost", reason=f"no node program came up on {missing} within {NODE_CONNECT_S:.0f} s", nodes=late)
            )

    def look(self, plan: orders.Plan, cache_of: Callable[[Node], str]) -> None:
        """Send every node the plan, and wait until each has delivered what waits there and has looked for what it needs. `cache_of`: each
        node's own, in the place of the plan's."""
        for node in self._nodes.all:
            self._nodes.send(node, replace(plan, cache=cache_of(node.node)))
        if plan.ranks is not None:
            self._scope.wait(lambda: self._everybody(LookedAt, Failed))

    def run(self, plan: orders.Plan, readers: int | None) -> None:
        """Until every node, which has the plan, has dataset and image, and the ports of its processes. At most `readers` nodes read
        storage; None: all may."""
        self._readers, self._is_limited = readers, plan.bytes_per_s is not None or readers is not None
        self._transfers = {what: Transfer(what, self._nodes, readers) for what in get_args(What)}
        self._nodes.tell(orders.Stage())
        self._nodes.tell(orders.Reserve())
        self._heard = self._clock()
        self._transfers["dataset"].begin(self._heard)
        limit_s = stall_s(plan.bytes_per_s, len(self._nodes.all), readers)
        while not self._scope.wait(lambda: self._is_over() and self._everybody(Reserved, Failed), 1.0):
            if self._clock() - self._heard > limit_s:
                self._scope.fail(Ending(status="storage", reason=f"staging made no progress for {limit_s:.0f} s", error=StagingError))
        show_origin("image", [said.image for node in self._nodes.all if (said := node.last(Staged)) is not None and said.image is not None])

    def bring_file(self, order: orders.Fetch) -> bool:
        """Until every node has answered; False where no node has got on for as long as one may take to copy it."""
        transfer = self._transfers["checkpoint"] = Transfer("checkpoint", self._nodes, self._readers)
        self._heard = self._clock()
        self._nodes.forget(Fetched)
        self._nodes.tell(order)

        def is_over() -> bool:
            transfer.introduce(self._clock(), _has_answered)
            return all(map(_has_answered, self._nodes.all))  # one that goes while its job is ended is lost, and is no end of ours

        while not self._scope.wait(is_over, 1.0):
            if self._clock() - self._heard > order.limit_s + CHECKPOINT_ANSWER_S:
                return False
        show_origin(order.what, [node.answer(Fetched) for node in self._nodes.all])
        return True

    def end(self) -> None:
        """Until nothing of it goes on on any node: what is measured comes next."""
        self._nodes.tell(orders.AllStaged())
        self._scope.wait(lambda: self._everybody(StagingEnded, Failed))

    def _is_over(self) -> bool:
        """Whether every node has all; those that stage the same are introduced before. Where the site limits how storage is read, the image
        is read when no node lacks the dataset."""
        now = self._clock()
        self._transfers["dataset"].introduce(now, _has_dataset)
        if not self._is_limited or all(node.lost or _has_dataset(node) for node in self._nodes.all):
            self._transfers["image"].introduce(now, _has_image)
        return self._everybody(Staged, Failed)

    def heard(self, node: NodeHandle, message: OfStaging) -> None:
        """What a node says while it is prepared."""
        if not self._transfers:
            return  # nothing was ordered yet
        now = self._clock()
        match message:
            case Listening():
                self._heard = now
                self._transfers[message.what].answers(node, message, now)
            case Waiting():
                self._transfers[message.what].answers(node, None, now)
            case Progress():
                transfer = self._transfers[message.what]
                if transfer.progress(node, message, now):
                    self._heard = now
                if self._is_time_to_show(now):
                    logger.info("%s: %s", "stage" if message.what == "dataset" else message.what, transfer.described(now))
            case DatasetIsHere():
                self._heard = now
            case Loading():
                self._loads(now)
            case _:
                assert_never(message)

    def _everybody(self, *kinds: type[Message]) -> bool:
        """Whether each of the nodes that are there has said one of these."""
        return all(node.lost or node.has_said(*kinds) for node in self._nodes.all)

    def _loads(self, now: float) -> None:
        """A node waits for its engine, which is no progress while another lacks bytes: it may wait for that one's load."""
        if not self._transfers["image"].is_under_way:
            self._heard = now
        if not self._is_time_to_show(now):
            return
        nodes = [node for node in self._nodes.all if not node.lost and not node.has_said(Staged)]
        loading = [(node.node.name, said.seconds) for node in nodes if (said := node.last(Loading)) is not None]
        if not loading:
            return
        seconds = max(seconds for _, seconds in loading)
        names = ", ".join(name for name, _ in loading[:8]) + (" ..." if len(loading) > 8 else "")
        logger.info("image: comes to %s, for %s so far", names, format_duration(seconds))

    def _is_time_to_show(self, now: float) -> bool:
        """A line for people now and then."""
        if now - self._shown < SHOW_EVERY_S:
            return False
        self._shown = now
        return True


def show_origin(what: str, brought: Sequence[LoadedImage | Fetched]) -> None:
    """For people: what the nodes have read from storage, and what they have sent each other."""
    read, sent = sum(one.storage_bytes for one in brought), sum(one.peer_bytes for one in brought)
    if read or sent:
        logger.info("%s: %s were read from storage, %s sent by other nodes", what, format_size(read), format_size(sent))


def _has_answered(node: NodeHandle) -> bool:
    return node.has_said(Fetched)


def _has_dataset(node: NodeHandle) -> bool:
    return node.has_said(DatasetIsHere, Staged, Failed)


def _has_image(node: NodeHandle) -> bool:
    return node.has_said(Staged, Failed)


def stall_s(bytes_per_s: float | None, nodes: int, most_readers: int | None) -> float:
    """Pure: how long no node may get on. `bytes_per_s` is shared by the nodes that read storage, at most `most_readers` (None: all)."""
    readers = nodes if most_readers is None else max(1, min(nodes, most_readers))
    return STAGING_STALL_S + (LARGEST_CHUNK * readers / bytes_per_s if bytes_per_s else 0.0)
