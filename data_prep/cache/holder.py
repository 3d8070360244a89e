"""Who holds something on this node, and whether it still lives: pid, start time and boot id together name one process for ever."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from base.foreign import text, whole
from cluster.processes import boot_id, pid_namespace, state_of

MAX_PID = 2**31 - 1


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which `pid` started; None if there is no such process, or only its remains."""
    state = state_of(pid)
    return None if state is None or state.state in "ZX" else state.start


def this_process(
    run_id: str | None = None, job_id: str | None = None, scheduler: str | None = None, pid: int | None = None
) -> dict[str, Any]:
    """A holder for a lease: this process, or the one with `pid`."""
    pid = pid or os.getpid()
    return {
        "run_id": run_id,
        "pid": pid,
        "start_time": start_time(pid),
        "boot_id": boot_id(),
        "pid_namespace": pid_namespace(),
        "uid": os.geteuid(),
        "job_id": job_id,
        "scheduler": scheduler,
    }


def is_alive(holder: Mapping[str, Any]) -> bool:
    """Whether the holder may still be at work. What cannot be found out counts as alive; `--force` is for people."""
    pid = whole(holder.get("pid"), 1, MAX_PID)
    return True if pid is None else _process_alive(pid, holder)


def describe(holder: Mapping[str, Any]) -> str:
    """For messages: run, job and process, as far as known."""
    said = {key: text(value, 100) for key, value in holder.items() if value is not None}
    words = [
        f"run {said['run_id']}" if said.get("run_id") else "",
        f"{said.get('scheduler') or 'job'} {said['job_id']}" if said.get("job_id") else "",
        f"pid {said['pid']}" if said.get("pid") else "",
        f"uid {said['uid']}" if said.get("uid") not in (None, str(os.geteuid())) else "",
    ]
    return ", ".join(word for word in words if word) or "an unknown holder"


def _process_alive(pid: int, holder: Mapping[str, Any]) -> bool:
    started, boot, namespace = holder.get("start_time"), holder.get("boot_id"), holder.get("pid_namespace")
    if boot is not None and boot != boot_id():
        return False
    if namespace is not None and namespace != pid_namespace():
        return True  # its number means another process here, or none: leases of earlier versions do not say where it counts
    visible = True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        visible = False  # another user's: it exists, and /proc may hide it from us
    found = start_time(pid)
    if found is None:
        return not visible
    return not isinstance(started, int) or found == started
