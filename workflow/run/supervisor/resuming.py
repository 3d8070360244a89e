"""Before the ranks start: the newest whole checkpoint of the run's earlier attempts is brought to every node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from base.errors import StorageError
from base.units import format_duration
from containers.spec import CHECKPOINT
from workflow.run.link.orders import Fetch, Forget
from workflow.run.link.said import Fetched
from workflow.run.record.continuation import EarlierAttempt
from workflow.run.record.outcome import Ending
from workflow.run.storage.prepared import PreparedRun
from workflow.run.supervisor.limits import CHECKPOINT_LEAST_S
from workflow.run.supervisor.nodes import Nodes
from workflow.run.supervisor.run_scope import RunScope
from workflow.run.supervisor.staging import Staging

logger = logging.getLogger(__name__)

LEAST_RATE: Final = 5 << 20
"""Bytes per second that the slowest storage gives."""


def bring_checkpoint(
    scope: RunScope, nodes: Nodes, staging: Staging, run: PreparedRun, warn: Callable[[str], None]
) -> EarlierAttempt | None:
    """The earlier attempt whose checkpoint every node now has, None: the run begins at the start. A damaged one is passed over, with a
    warning."""
    for offer in run.resumable:
        problem = _bring(scope, nodes, staging, run, offer)
        if problem is None:
            before = format_duration(offer.used_s)
            logger.info("going on from attempt %d at step %d; %s were trained before", offer.attempt, offer.step, before)
            return offer
        warn(f"attempt {offer.attempt} cannot be resumed: {problem}")
        nodes.tell(Forget())
    return None


def _bring(scope: RunScope, nodes: Nodes, staging: Staging, run: PreparedRun, offer: EarlierAttempt) -> str | None:
    """To all nodes; what is wrong with it, None: nothing. Ends the run where storage does not give it."""
    source = str(Path(run.run_dir, "attempts", str(offer.attempt), CHECKPOINT))
    limit_s = max(CHECKPOINT_LEAST_S, offer.bytes / LEAST_RATE)
    if not staging.bring_checkpoint(Fetch(source=source, bytes=offer.bytes, blake3=offer.blake3, limit_s=limit_s, listed=offer.listed)):
        silent = ", ".join(node.node.name for node in nodes.all if not node.has_said(Fetched))
        reason = f"the checkpoint {source} did not reach {silent} within {limit_s:.0f} s"
        scope.fail(Ending(status="storage", reason=reason, error=StorageError))
    return next((problem for node in nodes.all if (problem := node.answer(Fetched).problem) is not None), None)
