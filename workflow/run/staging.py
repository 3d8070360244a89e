"""The stage step as the supervisor sees it: node programs come up, get their orders, and bring the dataset to their nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from base.errors import StagingError
from base.units import format_duration, format_size
from cluster.types import Node
from workflow.run.loop import Loop
from workflow.run.nodes import Nodes
from workflow.run.outcome import Ending

logger = logging.getLogger(__name__)

CONNECT_S: Final = 60.0
STALL_S: Final = 300.0
SHOW_EVERY_S: Final = 5.0


class Staging:
    """Waits in the loop; `on_end(ending)`, which raises, where a node does not come up or nothing moves."""

    def __init__(self, loop: Loop, nodes: Nodes, on_end: Callable[[Ending], None]) -> None:
        self._loop, self._nodes, self._on_end = loop, nodes, on_end
        self._begun = self._heard = self._shown = time.monotonic()

    def run(self, orders: Mapping[str, Any], cache_of: Callable[[Node], str]) -> None:
        """Until every node has the dataset, and the head a port for the rendezvous."""
        if not self._loop.until(lambda: self._everybody("ready"), CONNECT_S):
            missing = ", ".join(node.node.name for node in self._nodes.all if not node.has_said("ready"))
            self._on_end(Ending(status="node_lost", reason=f"no node program came up on {missing} within {CONNECT_S:.0f} s"))
        for node in self._nodes.all:
            self._nodes.send(node, "plan", **orders, cache=cache_of(node.node))
            self._nodes.send(node, "stage")
        head = self._nodes.all[0]
        self._nodes.send(head, "reserve")
        self._begun = self._heard = time.monotonic()
        while not self._loop.until(lambda: self._everybody("staged") and head.has_said("reserved"), 1.0):
            if time.monotonic() - self._heard > STALL_S:
                self._on_end(Ending(status="storage", reason=f"staging made no progress for {STALL_S:.0f} s", error=StagingError))

    def _everybody(self, what: str) -> bool:
        return all(node.has_said(what) for node in self._nodes.all)

    def progress(self) -> None:
        """A node has told how far it is: a line for people now and then, with rate and time left."""
        self._heard = now = time.monotonic()
        if now - self._shown < SHOW_EVERY_S:
            return
        self._shown = now
        said = [message for node in self._nodes.all if (message := node.said.get("progress")) is not None]
        done, total = sum(message["done"] for message in said), sum(message["total"] for message in said)
        rate = done / (now - self._begun)
        left = f", {format_duration((total - done) / rate)} left" if rate else ""
        logger.info("stage: %s of %s, %s/s%s", format_size(done), format_size(total), format_size(rate), left)
