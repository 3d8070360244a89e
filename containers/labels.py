"""The labels of our containers: what `slipway reap` and people find them by. No secret is in them: everybody on the node may read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cluster.types import Allocation

RUN: Final = "slipway.run"
ATTEMPT: Final = "slipway.attempt"
TAG: Final = "slipway.tag"
JOB: Final = "slipway.job"
USER: Final = "slipway.user"
NODE: Final = "slipway.node"
DEADLINE: Final = "slipway.deadline"
HOLDER: Final = "slipway.holder"


def labels_of(allocation: Allocation, node: str, work: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Pure: the labels of a container. `work`: tag, cell (run_id, attempt), deadline, and of the node program uid and holder."""
    cell, deadline, holder = work["cell"], work.get("deadline"), work.get("holder")
    labels = {
        RUN: cell.get("run_id"),
        ATTEMPT: cell.get("attempt"),
        TAG: work["tag"],
        JOB: f"{allocation.scheduler}:{allocation.job_id}:{allocation.restart_count}",
        USER: work.get("uid"),
        NODE: node,
        DEADLINE: None if deadline is None else int(deadline),
        HOLDER: None if holder is None else json.dumps(holder, sort_keys=True),
    }
    return tuple((name, str(value)) for name, value in labels.items() if value is not None)
