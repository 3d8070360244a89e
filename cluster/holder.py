"""Describe a process as a holder (which process, of which job and of which start of it), and tell whether that process still lives."""

import os

from base.errors import LeaseError
from cluster import processes
from cluster.types import Holder


def holder_of(pid: int, scheduler: str, job_id: str, restart_count: int) -> Holder:
    """Describe process `pid` of this machine as a holder."""
    state = processes.state_of(pid)
    if state is None:
        raise LeaseError(f"process {pid}, which wants a lease, has ended")
    return Holder(
        scheduler=scheduler,
        job_id=job_id,
        restart_count=restart_count,
        host=os.uname().nodename,
        pid=pid,
        pid_start=state.start,
        boot_id=processes.boot_id(),
        pid_namespace=processes.pid_namespace(),
        machine=processes.machine(),
    )


def lives(pid: int, start: int | None, boot_id: str | None, pid_namespace: str | None, *, same_machine: bool) -> bool | None:
    """Return True if a process still runs, by its own notes. A missing note, as in those of earlier versions, counts as equal.

    The result is None if this cannot be seen from here: the process belongs to another pid namespace, or to another boot of a machine that
    may not be the `same_machine`.
    """
    if boot_id not in (None, processes.boot_id()):
        return False if same_machine else None
    if pid_namespace not in (None, processes.pid_namespace()):
        return None
    return processes.is_alive(pid, start)


def holder_lives(holder: Holder, *, same_machine: bool) -> bool | None:
    """Return True if the process of a holder still runs, as `lives` does."""
    return lives(holder.pid, holder.pid_start, holder.boot_id, holder.pid_namespace, same_machine=same_machine)
