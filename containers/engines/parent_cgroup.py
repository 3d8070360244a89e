"""The job's cgroup as parent of its containers: asked of the node and of dockerd, in the child that prepares the node.

Docker only. Podman of a user stays in the job's cgroup as it is; podman of root would leave a cgroup `conmon` of its own below the parent
(seen with 4.3), which keeps the scheduler from removing the job's: there the limits are copied.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cluster.cgroups import Parent, parent_of
from containers.engines import client, docker

ROOT: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")
DRIVER: Final = (docker.NAME, "info", "--format", "{{.CgroupDriver}}")
"""How dockerd makes cgroups: `cgroupfs` by paths, `systemd` by slices, of which a job is none."""


def find_parent(engine: str, scheduler: str, job_id: str, membership: Path = MEMBERSHIP, root: Path = ROOT) -> Parent:
    """Whether containers may be put into the job's cgroup. The daemon is asked last, and only where all else says yes. Raises
    ContainerError where it does not answer."""
    if engine != docker.NAME:
        return Parent(None, f"containers of {engine} are not put into cgroups of others")
    found = parent_of(membership.read_text(), scheduler, job_id)
    if found.path is None:
        return found
    try:
        processes = (root / found.path.lstrip("/") / "cgroup.procs").read_text().split()
    except OSError as error:
        return Parent(None, f"{found.path} cannot be looked at: {error.strerror}")
    if processes:
        return Parent(None, f"{found.path} holds processes, and then no groups may be below it")
    answer = client.call(DRIVER, docker.socket_of(os.environ))
    driver = answer.stdout.strip()
    if answer.returncode or driver != "cgroupfs":
        return Parent(None, f"dockerd makes cgroups by {driver or 'what it does not tell'}, and only cgroupfs takes a path as parent")
    return found
