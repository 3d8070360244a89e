from pathlib import Path
from typing import Any

from cluster.types import Allocation, Holder, Node


def holder(scheduler: str, job_id: str = "7", restart_count: int = 0) -> Holder:
    """A process of another machine."""
    job: dict[str, Any] = {"scheduler": scheduler, "job_id": job_id, "restart_count": restart_count}
    return Holder(**job, host="?", pid=1, pid_start=1, boot_id="?", pid_namespace="?")


def allocation(scheduler: str, *names: str, **changes: Any) -> Allocation:
    """Job 7, on n1 where no nodes are named."""
    nodes = tuple(Node(name=name, hostname=name, address=f"10.0.0.{number}") for number, name in enumerate(names or ["n1"], start=1))
    return Allocation(**{"scheduler": scheduler, "job_id": "7", "nodes": nodes, "device": "cpu", "exclusive": True, **changes})


def write_command(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
