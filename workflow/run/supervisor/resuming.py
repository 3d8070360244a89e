"""Bring to every node what the ranks start from: the newest whole checkpoint of the run's earlier attempts, else the parameters that the
cell names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from base.errors import DigestMismatch, StorageError
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
        source = str(Path(run.run_dir, "attempts", str(offer.attempt), CHECKPOINT))
        problem = _bring(scope, nodes, staging, _order("checkpoint", source, offer.bytes, offer.blake3, listed=offer.listed))
        if problem is None:
            before = format_duration(offer.used_s)
            logger.info("going on from attempt %d at step %d; %s were trained before", offer.attempt, offer.step, before)
            return offer
        warn(f"attempt {offer.attempt} cannot be resumed: {problem}")
        nodes.tell(Forget())
    return None


def bring_parameters(scope: RunScope, nodes: Nodes, staging: Staging, given: Mapping[str, Any]) -> None:
    """Bring the file of parameters `given` to all nodes. Ends the run where it is not the one that the study was read with."""
    problem = _bring(scope, nodes, staging, _order("parameters", given["path"], given["bytes"], given["blake3"], listed=False))
    if problem is not None:
        reason = f"parameters: {problem}: a file that is another one now makes other cells; the same command reads the study again"
        scope.fail(Ending(status="storage", reason=reason, error=DigestMismatch))


def _order(what: Literal["checkpoint", "parameters"], source: str, num_bytes: int, blake3: str, *, listed: bool) -> Fetch:
    limit_s = max(CHECKPOINT_LEAST_S, num_bytes / LEAST_RATE)
    return Fetch(what=what, source=source, bytes=num_bytes, blake3=blake3, limit_s=limit_s, listed=listed)


def _bring(scope: RunScope, nodes: Nodes, staging: Staging, order: Fetch) -> str | None:
    """Return what is wrong with the file, once all nodes have answered; None: nothing. Ends the run where storage does not give it."""
    if not staging.bring_file(order):
        silent = ", ".join(node.node.name for node in nodes.all if not node.has_said(Fetched))
        reason = f"the {order.what} {order.source} did not reach {silent} within {order.limit_s:.0f} s"
        scope.fail(Ending(status="storage", reason=reason, error=StorageError))
    return next((problem for node in nodes.all if (problem := node.answer(Fetched).problem) is not None), None)
