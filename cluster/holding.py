"""Describe a process of this machine as a holder: which process it is, of which job, and of which start of that job."""

from __future__ import annotations

import os

from base.errors import LeaseError
from cluster import processes
from cluster.types import Holder


def holder_of(pid: int, scheduler: str, job_id: str, restart_count: int) -> Holder:
    """The holder that process `pid` of this machine is."""
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
