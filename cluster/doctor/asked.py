"""What a site file says of the cluster, as far as it can be compared with what the cluster says of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Asked:
    """None: the site file does not say it."""

    scheduler: str
    queue: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    parallel_environment: str | None = None
    device: str = "cpu"
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    memory_per_node_bytes: int | None = None
    walltime_s: float | None = None
    share_nodes: bool = False
