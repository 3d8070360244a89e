"""The labels of our containers: what `slipway reap` and people find them by. No secret is in them: everybody on the node may read them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from cluster.types import Allocation, Holder

RUN: Final = "slipway.run"
ATTEMPT: Final = "slipway.attempt"
TAG: Final = "slipway.tag"
JOB: Final = "slipway.job"
USER: Final = "slipway.user"
NODE: Final = "slipway.node"
DEADLINE: Final = "slipway.deadline"
HOLDER: Final = "slipway.holder"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of a container: an attempt of a run, and the node program that starts it."""

    run_id: str
    attempt: int
    tag: str
    deadline: float | None = None
    """Unix time."""
    uid: int | None = None
    holder: Holder | None = None


def labels_of(allocation: Allocation, node: str, owner: Owner) -> tuple[tuple[str, str], ...]:
    """Return the labels of a container."""
    labels = {
        RUN: owner.run_id,
        ATTEMPT: owner.attempt,
        TAG: owner.tag,
        JOB: f"{allocation.scheduler}:{allocation.job_id}:{allocation.restart_count}",
        USER: owner.uid,
        NODE: node,
        DEADLINE: None if owner.deadline is None else int(owner.deadline),
        HOLDER: None if owner.holder is None else json.dumps(owner.holder.to_json(), sort_keys=True),
    }
    return tuple((name, str(value)) for name, value in labels.items() if value is not None)
