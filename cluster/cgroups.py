"""Where the job's containers may be put among its cgroups, read from the text of /proc/self/cgroup. Pure.

Only with cgroup v2. With v1 a parent is a path in every hierarchy: dockerd and podman make it where the scheduler has none (it manages
four of a dozen), as root, and nobody removes those directories when the job is over; and where the job's devices are constrained, runc
cannot start anything below it (`c *:* m` is not permitted). Both were seen with docker 20.10 and runc 1.1.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from base.machine_files import machine_text
from cluster.detection import SIGNS


class Parent(NamedTuple):
    """`path`: the cgroup below which a container of the job may be, from the root of the hierarchy; None: none, for this reason."""

    path: str | None
    reason: str


def parse_membership(text: str) -> dict[str, str]:
    """Controller -> path of the process; the unified hierarchy of v2 has an empty name."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def memory_cgroups(membership: Path, root: Path) -> list[tuple[bool, Path]]:
    """(whether it is one of v1, its directory) of the cgroups that count the memory of the process whose /proc/PID/cgroup is `membership`;
    none if it has ended. `root`: where cgroups are mounted."""
    found = []
    for line in machine_text(membership).splitlines():
        _, controllers, path = (line.split(":", 2) + ["?", "?"])[:3]
        if controllers in ("", "memory") and "\0" not in path:
            found.append((bool(controllers), root / ("memory" if controllers else ".") / path.lstrip("/")))
    return found


def parent_of(text: str, scheduler: str, job_id: str) -> Parent:
    """For the containers of a process whose /proc/self/cgroup holds `text`, in that job."""
    membership = parse_membership(text)
    if any(name and not name.startswith("name=") for name in membership):
        return Parent(None, "this node has cgroup v1, where a parent would be made in every hierarchy and outlive the job")
    own = membership.get("")
    if own is None:
        return Parent(None, "this node has no cgroups")
    if scheduler not in SIGNS:
        return Parent(None, f"jobs of {scheduler} have no cgroup of their own")
    parts = PurePosixPath(own).parts
    name = re.compile(SIGNS[scheduler].cgroup.replace("{job}", re.escape(job_id)))
    if ".." in parts:
        return Parent(None, f"{own} is in another cgroup namespace than the engine's")
    place = next((index for index, part in enumerate(parts) if name.fullmatch(part)), None)
    if place is None:
        return Parent(None, f"{own} is not a cgroup of job {job_id}")
    if place == len(parts) - 1:
        return Parent(None, f"{own} holds the job's processes, and then no groups may be below it")
    return Parent(str(PurePosixPath(*parts[:-1])), "the job's own")
