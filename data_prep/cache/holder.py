"""Describe the users of a node's cache in leases and locks, and find out whether they still live."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from base.sanitize import text, whole
from cluster.holder import holder_of, lives
from cluster.types import Holder

MAX_PID = 2**31 - 1


def this_process() -> dict[str, Any]:
    """Describe this process as a user that is no job."""
    return as_user(holder_of(os.getpid(), "", "", 0), None)


def as_user(holder: Holder, run_id: str | None) -> dict[str, Any]:
    """Return what a lease, a lock and `slipway cache ls --json` show of a user. Everything in it concerns this node."""
    return {
        "run_id": run_id,
        "pid": holder.pid,
        "start_time": holder.pid_start,
        "boot_id": holder.boot_id,
        "pid_namespace": holder.pid_namespace,
        "uid": os.geteuid(),
        "job_id": holder.job_id or None,
        "scheduler": holder.scheduler or None,
    }


def is_alive(user: Mapping[str, Any]) -> bool:
    """Return True if the user may still be at work. Doubt counts as alive, and people have `--force`."""
    pid, start = whole(user.get("pid"), 1, MAX_PID), user.get("start_time")
    if pid is None:
        return True
    started = start if isinstance(start, int) else None
    return lives(pid, started, user.get("boot_id"), user.get("pid_namespace"), same_machine=True) is not False


def describe(holder: Mapping[str, Any]) -> str:
    """Describe a user for messages by run, job and process, as far as known."""
    said = {key: text(value, 100) for key, value in holder.items() if value is not None}
    words = [
        f"run {said['run_id']}" if said.get("run_id") else "",
        f"{said.get('scheduler') or 'job'} {said['job_id']}" if said.get("job_id") else "",
        f"pid {said['pid']}" if said.get("pid") else "",
        f"uid {said['uid']}" if said.get("uid") not in (None, str(os.geteuid())) else "",
    ]
    return ", ".join(word for word in words if word) or "an unknown holder"
